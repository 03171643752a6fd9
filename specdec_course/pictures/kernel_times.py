"""A recorded run of paged attention on a GPU, as a picture: time against context, above what the memory allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from specdec_course.pictures.plots import BLACK, BLUE, GREEN, GREY, ORANGE, RED, new_figure
from specdec_ref.arithmetic import accelerator

_WAYS = (
    ("dense", "one piece (dense)", BLUE, "o", "-"),
    ("gathered", "blocks, copied together first", ORANGE, "s", "--"),
    ("kernel", "blocks, read in place (kernel)", GREEN, "^", "-"),
    ("one_part", "the same kernel, context unsplit", RED, "D", ":"),
)
_ROWS = 16  # query rows that one program of the recorded kernel holds


@dataclass(frozen=True)
class KernelTimes:
    """One way to attend, for one number of new tokens: microseconds by context, and what the memory allows.

    low, median, high: of the repeats. floor: microseconds to read the keys and values once, at the bandwidth of the
        datasheet. readings: how often the kernel reads them, 16 query rows at a time.
    """

    contexts: Sequence[int]
    low: Sequence[float]
    median: Sequence[float]
    high: Sequence[float]
    floor: Sequence[float]
    readings: int

    def share(self, context: int) -> float:
        """Share of the memory's speed that is reached, if the cache is read once."""
        i = list(self.contexts).index(context)
        return self.floor[i] / self.median[i]


def kernel_times(
    record: Mapping[str, Any], way: str, new_tokens: int, chip: str = "h200-sxm", dtype: str = "bf16"
) -> KernelTimes:
    """Times of one `way` ("dense", "gathered", "kernel", "one_part") from a record of `tools/record_paged_gpu.py`.

    Raises ValueError where the record holds no such run.
    """
    runs = [r for r in record["runs"] if (r["dtype"], r["new_tokens"]) == (dtype, new_tokens)]
    if not runs or way not in runs[0]["microseconds"]:
        raise ValueError(f"the record holds no {way!r} in {dtype} with {new_tokens} new tokens")
    low, median, high = zip(*(r["microseconds"][way] for r in runs), strict=True)
    floor = [1e6 * r["kv_bytes"] / accelerator(chip).bandwidth for r in runs]
    readings = -(-new_tokens * record["shape"]["queries_per_head"] // _ROWS)
    return KernelTimes([r["context"] for r in runs], low, median, high, floor, readings)


def kernel_figure(record: Mapping[str, Any], new_tokens: Sequence[int] = (1, 5)) -> Figure:
    """Time of one layer's attention against context, one panel per number of new tokens; bars: fastest to slowest."""
    figure, axes = new_figure(9.5, 4.6, columns=len(new_tokens))
    for ax, n in zip(axes, new_tokens, strict=True):
        for way, label, colour, marker, line in _WAYS:
            t = kernel_times(record, way, n)
            spread = [[m - a for m, a in zip(t.median, t.low)], [b - m for m, b in zip(t.median, t.high)]]
            ax.errorbar(
                t.contexts, t.median, spread, color=colour, marker=marker, linestyle=line, capsize=3, label=label
            )
        ax.plot(t.contexts, t.floor, color=BLACK, linestyle="-.", marker="", label="reading the cache once, 4.8 TB/s")
        if t.readings > 1:
            times = [t.readings * f for f in t.floor]
            ax.plot(t.contexts, times, color=GREY, linestyle=":", marker="", label=f"reading it {t.readings} times")
        ax.set(xscale="log", yscale="log", xlabel="context, tokens", ylim=(0.1, 6000))
        ax.set_xticks(list(t.contexts), [f"{c:,}" for c in t.contexts], fontsize=9)
        ax.minorticks_off()
        ax.set_title(f"{n} new token{'s' if n > 1 else ''}")
    axes[0].set_ylabel("µs for one layer")
    figure.legend(
        *axes[-1].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False, fontsize=10
    )
    return figure


def kernel_words(record: Mapping[str, Any], new_tokens: Sequence[int] = (1, 5)) -> str:
    """What `kernel_figure` shows, in words."""
    lines = []
    for n in new_tokens:
        for way, label, *_ in _WAYS:
            t = kernel_times(record, way, n)
            points = ", ".join(f"{m:.0f} µs at {c:,}" for c, m in zip(t.contexts, t.median, strict=True))
            lines.append(f"{n} new, {label}: {points}.")
        lines.append(f"Reading the cache once: {t.floor[0]:.1f} to {t.floor[-1]:.0f} µs.")
    return " ".join(lines)
