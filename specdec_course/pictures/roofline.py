"""Rooflines: chips as roofs, and the passes and kernels of models as points under them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specdec_course.pictures.passes import times_of
from specdec_course.pictures.plots import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, new_figure, show, table_html
from specdec_course.pictures.widgets import choice, explorer, slider, steps_slider
from specdec_ref.arithmetic import (
    Accelerator,
    ModelShape,
    Work,
    accelerator,
    accelerators,
    attainable,
    decode,
    fit,
    forward_kernels,
    model_shape,
    prefill,
    step_time,
    verification,
)

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
    """Roofs of `chips`, and `points` under the first, each with its name; a point without a rate lies on its roof.

    Raises ValueError without a chip.
    """
    if not chips:
        raise ValueError("a roofline needs a chip: give at least one")
    figure, (ax,) = new_figure(8.5, 4.4)
    draw_roofs(ax, chips, dtype, [p.intensity for p in points])
    heights: list[float] = []
    for point, (colour, marker) in zip(points, POINTS * len(points), strict=False):
        rate = attainable(point.intensity, chips[0], dtype) if point.rate is None else point.rate
        label = f"{point.label}: {_digits(point.intensity)} FLOP/byte"
        ax.plot([point.intensity], [rate / 1e12], color=colour, marker=marker, markersize=9, ls="none", label=label)
        # Points that lie close together get their names one below the other.
        down = 13 + 14 * sum(0.5 < rate / other < 2 for other in heights)
        heights.append(rate)
        place: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9.5}
        if point.intensity > chips[0].ridge(dtype or chips[0].half_precision):
            text = label.replace(": ", "\n")
            ax.annotate(text, (point.intensity, rate / 1e12), (0, -down), ha="center", va="top", **place)
        else:
            ax.annotate(label, (point.intensity, rate / 1e12), (8, -down), **place)
    return figure


def draw_roofs(
    ax: Axes,
    chips: Sequence[Accelerator],
    dtype: str | None = None,
    intensities: Sequence[float] = (),
    unit: tuple[float, str] = (1e12, "TFLOP/s"),
    bottom: float | None = None,
) -> None:
    """The roofs of `chips`, the two regions under the first one shaded, and its ridge written on it."""
    scale, name = unit
    ridges = [chip.ridge(dtype or chip.half_precision) for chip in chips]
    low = min([0.5, *(i / 2 for i in intensities)])
    high = max([8 * max(ridges), *(4 * i for i in intensities)])
    for chip, ridge, (colour, style) in zip(chips, ridges, ROOFS, strict=False):
        x = np.array([low, ridge, high])
        y = np.array([attainable(i, chip, dtype) for i in x]) / scale
        ax.plot(x, y, color=colour, linestyle=style, marker="", lw=2, label=f"{chip.name}, ridge {ridge:.0f}")
        if chip is chips[0]:
            ax.fill_between(x[:2], y[:2], 1e-9, color=BLUE, alpha=0.10, lw=0)
            ax.fill_between(x[1:], y[1:], 1e-9, color=ORANGE, alpha=0.14, lw=0)
            bottom = bottom or 0.5 * min(attainable(low, c, dtype) for c in chips) / scale
            ax.plot([ridge, ridge], [bottom, y[1]], color=colour, lw=1, ls=":", marker="")
            ax.text(ridge, y[1] * 1.2, f"ridge: {ridge:.0f} FLOP/byte", ha="center", fontsize=9.5, color=colour)
            ax.text(ridge / 1.15, bottom * 1.3, "memory-bound", ha="right", fontsize=9.5, color="#004c78")
            ax.text(ridge * 1.15, bottom * 1.3, "compute-bound", ha="left", fontsize=9.5, color="#8a5f00")
    top = 3 * max(chip.rate(dtype or chip.half_precision) for chip in chips) / scale
    ax.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOP/byte", ylabel=name)
    ax.set(xlim=(low, high), ylim=(bottom, top))
    if len(chips) > 1:
        ax.legend(handles=ax.lines[: 2 * len(chips)], loc="upper left", frameon=False, fontsize=10)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def chips_rows() -> list[tuple[str, ...]]:
    """The known chips as text: name, dense 16-bit TFLOP/s, TB/s, GB, ridge in FLOP/byte, date of the figures."""
    return [
        (
            name,
            f"{chip.rate(chip.half_precision) / 1e12:,.0f}",
            f"{chip.bandwidth / 1e12:.2f}",
            f"{chip.capacity / 1e9:,.0f}",
            f"{chip.ridge(chip.half_precision):.0f}",
            chip.date,
        )
        for name, chip in accelerators().items()
    ]


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
    works, device = passes(model, **settings), accelerator(chip)
    figure = roofline_figure([device], [Point(name, work.intensity) for name, work in works.items()])
    ax = figure.axes[0]
    (_, plain), (_, check) = list(works.items())[1:]
    start, end = ((work.intensity, 1.6 * attainable(work.intensity, device) / 1e12) for work in (plain, check))
    ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "lw": 1.5})
    longer = step_time(check, device).overlapped_s / step_time(plain, device).overlapped_s - 1
    text = f"{check.flops / plain.flops:.1f} x the arithmetic\n{100 * longer:+.2f}% time"
    middle = (start[0] * end[0]) ** 0.5 / 1.2, (start[1] * end[1]) ** 0.5 * 2
    ax.annotate(text, middle, ha="center", fontsize=9.5)
    return figure


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


def kernels_of(model: str, batch: int, context: int, gamma: int, weights: str = "bf16") -> dict[str, tuple[Work, Work]]:
    """The (linear layers, attention) of a decode pass and of a verification of `gamma` drafts."""
    shape = model_shape(model)
    return {
        name: forward_kernels(shape, n, context, batch, weights=weights)
        for name, n in (("decode", 1), (f"verify {gamma}", gamma + 1))
    }


def kernels_rows(chip: Accelerator, passes: Mapping[str, tuple[Work, Work]]) -> list[tuple[str, ...]]:
    """Each pass as text: what bounds its linear layers, their ms, attention's ms, the sum, the sum in decode steps."""
    rows: list[tuple[str, ...]] = []
    plain = 0.0
    for name, kernels in passes.items():
        linear, attention = times_of(kernels, chip)
        total = linear.overlapped_s + attention.overlapped_s
        plain = plain or total
        ms = (f"{1e3 * s:,.2f}" for s in (linear.overlapped_s, attention.overlapped_s, total))
        rows.append((name, linear.bound, *ms, f"{total / plain:.2f}"))
    return rows


def crossing_batch(shape: ModelShape, chip: Accelerator, n_tokens: int = 1, weights: str = "bf16") -> int:
    """The smallest batch at which the linear layers of a pass over `n_tokens` tokens of each sequence are not bound by
    memory; the context makes no difference to them.
    """

    def computes(batch: int) -> bool:
        linear, _ = forward_kernels(shape, n_tokens, 0, batch, weights=weights)
        return step_time(linear, chip).bound != "memory"

    return 1 + bisect_left(range(1, 1 << 16), True, key=computes)


def kernels_html(
    model: str, chip: str, batch: int = 1, context: int = 1024, gamma: int = 5, weights: str = "bf16"
) -> str:
    """Decode and verify of `model` as kernels under the roof of `chip`, with their times, and what fits on the chip."""
    device, shape = accelerator(chip), model_shape(model)
    kernels = kernels_of(model, batch, context, gamma, weights)
    points = [
        Point(f"{name}, {part}", work.intensity)
        for part, of in (("linear", 0), ("attention", 1))
        for name, works in kernels.items()
        for work in [works[of]]
    ]
    room = fit(shape, device, max(1, context), weights=weights)
    first, then = (crossing_batch(shape, device, n, weights) for n in (1, gamma + 1))
    notes = [
        f"The linear layers turn compute-bound at a batch of {first:,} in decode, of {then:,} in verification.",
        f"The caches of {room.sequences:,} such sequences fit on one chip."
        if room.weights_fit
        else f"The weights, {room.weight_bytes / 1e9:,.0f} GB, do not fit on one such chip. Several that share it "
        "take less time; the ratios are the same.",
    ]
    head = ("pass", "linear layers bound by", "linear, ms", "attention, ms", "pass, ms", "in decode steps")
    rows = kernels_rows(device, kernels)
    alt = f"Roofline of {chip} with the kernels of {model}. " + "; ".join(
        f"{p.label}: {_digits(p.intensity)} FLOP/byte" for p in points
    )
    picture = show(roofline_figure([device], points), alt).data
    return picture + table_html(head, rows) + "".join(f"<p>{note}</p>" for note in notes)


def kernels_explorer(model: str = "llama-3-8b", chip: str = "h100-sxm", batch: int = 64) -> ipywidgets.VBox:
    """Choose model, chip, batch, context, gamma and weight format, and see where the kernels lie and what they take."""
    return explorer(
        kernels_html,
        model=choice("model", MODELS, model),
        chip=choice("chip", list(accelerators()), chip),
        batch=steps_slider("batch (sequences)", batch, [2**i for i in range(11)]),
        context=steps_slider("context (tokens of each)", 1024, [0, *(2**i for i in range(8, 16))]),
        gamma=slider("gamma (drafted tokens)", 5, 0, 16),
        weights=choice("weights", WEIGHTS, "bf16"),
    )
