"""Rooflines: chips as roofs, passes and layers as points, and measurements of this machine beside predictions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets
import numpy as np
from matplotlib.figure import Figure

from specdec_course.pictures.plots import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, new_figure, show, table_html
from specdec_course.pictures.widgets import choice, explorer, slider
from specdec_course.progress_line import progress
from specdec_ref.arithmetic import (
    Accelerator,
    Work,
    accelerator,
    accelerators,
    attainable,
    compute_bound_batch,
    decode,
    fit,
    forward_work,
    linear_intensity,
    model_shape,
    prefill,
    step_time,
    time_ratio,
    verification,
)
from specdec_ref.measure import SHORT_NAMES, DecodeTimes, Machine, Rates, WeightStream, shape_of
from specdec_ref.models.llama import Llama

ROOFS = ((BLUE, "-"), (PURPLE, "--"), (BLACK, ":"), (SKY, "-."))
POINTS = ((RED, "o"), (GREEN, "s"), (ORANGE, "^"), (SKY, "D"), (PURPLE, "v"), (BLACK, "P"))
MODELS = ("smollm2-135m", "llama-3.2-1b", "llama-3-8b", "llama-3-70b", "mixtral-8x7b", "deepseek-v3")
WEIGHTS = ("bf16", "fp8", "int4-g128")


@dataclass(frozen=True)
class Point:
    """A pass or a layer in the picture: intensity in FLOP/byte, and the measured rate in FLOP/s (None: on the roof)."""

    label: str
    intensity: float
    rate: float | None = None


def roofline_figure(chips: Sequence[Accelerator], points: Sequence[Point] = (), dtype: str | None = None) -> Figure:
    """Roofs of `chips`, and `points` under the first; a point without a rate lies on its roof.

    Raises ValueError without a chip.
    """
    if not chips:
        raise ValueError("a roofline needs a chip: give at least one")
    figure, (ax,) = new_figure(7.5, 4.6)
    ridges = [chip.ridge(dtype or chip.half_precision) for chip in chips]
    low = min([0.5, *(p.intensity / 2 for p in points)])
    high = max([4 * max(ridges), *(2 * p.intensity for p in points)])
    for chip, ridge, (colour, style) in zip(chips, ridges, ROOFS, strict=False):
        x = np.array([low, ridge, high])
        y = np.array([attainable(i, chip, dtype) for i in x])
        ax.plot(x, y / 1e12, color=colour, linestyle=style, marker="", lw=2, label=f"{chip.name}, ridge {ridge:.0f}")
        ax.plot([ridge], [y[1] / 1e12], color=colour, marker="|", markersize=14, mew=2)
    for point, (colour, marker) in zip(points, POINTS * len(points), strict=False):
        rate = attainable(point.intensity, chips[0], dtype) if point.rate is None else point.rate
        label = f"{point.label}: {point.intensity:,.{0 if point.intensity >= 100 else 1}f} FLOP/byte"
        ax.plot([point.intensity], [rate / 1e12], color=colour, marker=marker, markersize=9, ls="none", label=label)
    edge = attainable(ridges[0], chips[0], dtype) / 1e12
    ax.annotate("compute-bound", (ridges[0], 1.25 * edge), fontsize=9, color=ROOFS[0][0])
    ax.annotate("memory-bound ", (ridges[0] / 8, edge / 8), fontsize=9, color=ROOFS[0][0], ha="right", va="bottom")
    ax.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOP/byte", ylabel="attainable TFLOP/s")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=10)
    figure.set_figwidth(10)
    return figure


def passes(
    model: str, batch: int = 1, context: int = 1024, gamma: int = 5, weights: str = "bf16", prompt: int = 1024
) -> dict[str, Work]:
    """The work of the three kinds of pass: prefill, decode, and verification of `gamma` drafts."""
    shape = model_shape(model)
    return {
        f"prefill of {prompt:,}": prefill(shape, prompt, batch, weights=weights),
        "decode": decode(shape, context, batch, weights=weights),
        f"verify {gamma}": verification(shape, gamma, context, batch, weights=weights),
    }


def passes_figure(model: str, chip: str, **settings: Any) -> Figure:
    """Prefill, decode and verify of `model` under the roof of `chip`; settings as for `passes`."""
    points = [Point(name, work.intensity) for name, work in passes(model, **settings).items()]
    return roofline_figure([accelerator(chip)], points)


def passes_rows(chip: Accelerator, works: Mapping[str, Work]) -> list[tuple[str, ...]]:
    """Each pass as text: name, FLOP/byte, ms, what bounds it, and how much of the time arithmetic units are busy."""
    rows: list[tuple[str, ...]] = []
    for name, work in works.items():
        time = step_time(work, chip)
        busy = time.compute_s / time.overlapped_s
        rows.append(
            (name, f"{work.intensity:,.1f}", f"{time.overlapped_s * 1e3:,.2f}", time.bound, f"{100 * busy:,.1f}%")
        )
    return rows


def passes_html(model: str, chip: str, **settings: Any) -> str:
    """`passes_figure` with its numbers, and whether the model fits on the chip."""
    device, shape, works = accelerator(chip), model_shape(model), passes(model, **settings)
    rows = passes_rows(device, works)
    weights, context = settings.get("weights", "bf16"), settings.get("context", 1024)
    room = fit(shape, device, max(1, context), weights=weights)
    crossing = compute_bound_batch(shape, device, context=context, weights=weights)
    notes = [
        "The weights fit on one such chip."
        if room.weights_fit
        else f"The weights do not fit on one such chip: {room.weight_bytes / 1e9:,.0f} GB.",
        "At this context, decode stays memory-bound at every batch size."
        if crossing is None
        else f"At this context, decode becomes compute-bound at batch {crossing:,}"
        + (f", but only {room.sequences:,} caches fit." if crossing > room.sequences else "."),
    ]
    alt = f"Roofline of {chip} with {model}. " + "; ".join(f"{r[0]}: {r[1]} FLOP/byte, {r[3]}-bound" for r in rows)
    head = ("pass", "FLOP/byte", "ms at least", "bound by", "arithmetic units busy")
    picture = show(passes_figure(model, chip, **settings), alt).data
    return picture + table_html(head, rows) + "".join(f"<p>{note}</p>" for note in notes)


def passes_explorer(model: str = "llama-3-70b", chip: str = "h100-sxm") -> ipywidgets.VBox:
    """Choose model, chip, batch, context, gamma and weight format, and see where the passes lie."""
    return explorer(
        passes_html,
        model=choice("model", MODELS, model),
        chip=choice("chip", list(accelerators()), chip),
        batch=slider("batch (sequences)", 1, 1, 512),
        context=slider("context (tokens in the cache)", 1024, 0, 32_768, 512),
        gamma=slider("gamma (drafted tokens)", 5, 0, 16),
        weights=choice("weights", WEIGHTS, "bf16"),
    )


def layer_points(stream: WeightStream, n_tokens: Sequence[int], repeats: int = 4) -> list[Point]:
    """One linear layer over n tokens, measured: the best of `repeats` rounds, its weights never in a CPU cache."""
    rows, width = stream.rows, stream.width
    best = dict.fromkeys(n_tokens, float("inf"))
    for _ in progress(range(repeats), "rounds"):
        for n in n_tokens:
            best[n] = min(best[n], stream.seconds(n, matrices=4))
    return [
        Point(
            f"{n} token{'s' * (n > 1)}",
            linear_intensity(n, width, rows, stream.dtype.itemsize),
            2 * n * rows * width / seconds,
        )
        for n, seconds in best.items()
    ]


def machine_rows(machine: Machine) -> list[tuple[str, ...]]:
    """Of each measured setting, as text: format, threads, GB/s, GFLOP/s, ridge, and how quiet the machine was."""
    return [
        (
            r.dtype,
            str(r.threads),
            f"{r.bandwidth / 1e9:,.1f}",
            f"{r.matrix_rate / 1e9:,.0f}",
            f"{r.ridge:,.0f}",
            quietness(r),
        )
        for r in machine.rates
    ]


def quietness(rates: Rates) -> str:
    """Whether the rounds of a measurement agree, in words."""
    percent = f"median {100 * rates.steadiness:.0f}% of the best"
    return ("quiet: " if rates.steadiness > 0.8 else "disturbed: ") + percent


def layer_verdict(points: Sequence[Point], chip: Accelerator, dtype: str) -> str:
    """What the measured layer shows about the roof, in words for every outcome."""
    first, last = points[0], points[-1]
    assert first.rate is not None and last.rate is not None
    gain, share = last.rate / first.rate, last.rate / chip.rate(dtype)
    growth = f"From {first.label} to {last.label} the same layer does {gain:.1f} times as many FLOP/s"
    if gain < 1.5:
        return f"{growth}: it is compute-bound from the start, or the run was disturbed."
    if share > 1.1:
        return f"{growth}. It climbs the slope and ends above the roof: the measurement of the roof was disturbed."
    return f"{growth}: it climbs the slope, up to {100 * share:.0f}% of the matrix rate measured above."


def decode_rows(times: DecodeTimes) -> list[tuple[str, str]]:
    """A decode step taken apart, as text: bytes, bandwidth, overhead, prediction and measurement."""
    middle = statistics.median
    bandwidth = middle(times.bandwidths)
    return [
        ("bytes to read (by arithmetic)", f"{times.work.bytes / 1e6:,.1f} MB"),
        ("bandwidth for such weights (measured)", f"{bandwidth / 1e9:,.1f} GB/s"),
        ("so reading takes", f"{times.work.bytes / bandwidth * 1e3:,.1f} ms"),
        ("the framework's overhead (measured)", f"{middle(times.overheads) * 1e3:,.1f} ms"),
        ("predicted step", f"{middle(times.predicted) * 1e3:,.1f} ms"),
        ("measured step", f"{middle(times.measured) * 1e3:,.1f} ms"),
    ]


def decode_verdict(times: DecodeTimes, tolerance: float = 0.3) -> str:
    """Whether the prediction holds within `tolerance`, in words for both outcomes."""
    allowed = f"{100 * tolerance:.0f}%"
    if times.within(tolerance):
        return f"The prediction is {times}: within {allowed}, and nothing was fitted."
    direction = "slower" if times.ratio < 1 else "faster"
    return (
        f"The prediction is {times}: not within {allowed}. The step was {direction} than bytes, bandwidth and overhead "
        "explain. Look at how much the rounds differ: if the machine was busy, run the cell again."
    )


def predicted_pass_cost(
    model: Llama, times: DecodeTimes, matrix_rate: float, n_tokens: Iterable[int], context: int = 64
) -> dict[int, float]:
    """T(n) / T(1) on the measured roofline, the framework's overhead included; `matrix_rate` in FLOP/s."""
    name = SHORT_NAMES[model.dtype]
    bandwidth, overhead = statistics.median(times.bandwidths), statistics.median(times.overheads)

    def seconds(n: int) -> float:
        work = forward_work(shape_of(model), n, context, weights=name, kv=name)
        return max(work.bytes / bandwidth, work.flops / matrix_rate) + overhead

    v = time_ratio(seconds)
    return {n: v(n - 1) for n in n_tokens}
