"""One pass drawn: when memory and arithmetic units work, a weight that meets several tokens, and kernels by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from specdec_course.pictures.plots import BLACK, BLUE, GREY, LIGHT_GREY, ORANGE, SKY, new_figure
from specdec_ref.arithmetic import (
    Accelerator,
    ModelShape,
    StepTime,
    Work,
    accelerator,
    forward_kernels,
    model_shape,
    step_time,
)

LINEAR: dict[str, Any] = {"facecolor": BLUE, "edgecolor": "white"}
ATTENTION: dict[str, Any] = {"facecolor": ORANGE, "edgecolor": "white", "hatch": "//"}


def times_of(kernels: Sequence[Work], chip: Accelerator) -> list[StepTime]:
    """Of each kernel of a pass, the seconds on memory and on arithmetic; the pass takes the sum of the larger ones."""
    return [step_time(kernel, chip) for kernel in kernels]


def pass_seconds_by_kernel(
    shape: ModelShape, chip: Accelerator, n_tokens: int, context: int, batch: int
) -> list[float]:
    """Seconds of (linear layers, attention) in a pass over `n_tokens` tokens of each of `batch` sequences."""
    kernels = forward_kernels(shape, n_tokens, context, batch)
    return [time.overlapped_s for time in times_of(kernels, chip)]


def timeline_figure(passes: Mapping[str, Sequence[StepTime]]) -> Figure:
    """When memory and arithmetic units work during each pass, to scale: one block per kernel, each after the last."""
    figure, (ax,) = new_figure(9.5, 1.1 + 0.8 * len(passes))
    ends = [1e3 * sum(t.overlapped_s for t in times) for times in passes.values()]
    for row, (times, end) in enumerate(zip(passes.values(), ends, strict=True)):
        start = 0.0
        for i, time in enumerate(times):
            if i:
                ax.plot([start, start], [row - 0.4, row + 0.4], color=BLACK, lw=0.8, ls=":", marker="")
            ax.barh(row - 0.17, 1e3 * time.memory_s, 0.32, start, color=BLUE)
            ax.barh(row + 0.17, 1e3 * time.compute_s, 0.32, start, color=ORANGE)
            start += 1e3 * time.overlapped_s
        for y, busy in ((row - 0.17, sum(t.memory_s for t in times)), (row + 0.17, sum(t.compute_s for t in times))):
            ax.annotate(f"  {_ms(1e3 * busy)}", (end, y), va="center", fontsize=9.5)
    names = [f"{name}\n{_ms(end)}" for name, end in zip(passes, ends, strict=True)]
    ax.set_yticks(range(len(passes)), names, fontsize=10)
    ax.tick_params(axis="y", length=0)
    ax.set(xlabel="ms, to scale", xlim=(0, 1.14 * max(ends)), ylim=(len(passes) - 0.5, -0.5))
    ax.grid(axis="y", visible=False)
    handles = [Patch(color=BLUE, label="memory moves bytes"), Patch(color=ORANGE, label="arithmetic units compute")]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
    return figure


def _ms(value: float) -> str:
    return f"{value:,.2f} ms" if value < 1 else f"{value:,.1f} ms"


def tile_figure(columns: Sequence[int] = (1, 6)) -> Figure:
    """A tile of a weight matrix, read once, times the columns of 1 token and of several."""
    figure, axes = new_figure(10, 3.1, len(columns))
    side = 8
    for ax, n in zip(axes, columns, strict=True):
        _grid(ax, 0, 0, side, side, SKY, "weights, read once")
        _grid(ax, side + 1.5, 0, n, side, ORANGE, f"{n} token{'s' * (n > 1)}")
        _grid(ax, side + n + 4, 0, n, side, LIGHT_GREY, "results")
        ax.text(side + 0.75, side / 2, "×", ha="center", va="center", fontsize=16)
        ax.text(side + n + 2.75, side / 2, "=", ha="center", va="center", fontsize=16)
        ax.add_patch(Rectangle((2, 4), 1, 1, facecolor=BLUE, edgecolor="white"))
        for i in range(n):
            ax.add_patch(Rectangle((side + 1.5 + i, 5), 1, 1, facecolor=BLACK, edgecolor="white"))
        times = "once" if n == 1 else f"{n} times"
        ax.set_title(f"each weight is read once and used {times}: {n} FLOP/byte", fontsize=11)
        ax.set(xlim=(-0.5, side + 2 * max(columns) + 5), ylim=(-1.6, side + 0.4), aspect="equal")
        ax.axis("off")
    return figure


def _grid(ax: Axes, x: float, y: float, columns: int, rows: int, colour: str, label: str) -> None:
    for i in range(columns):
        for j in range(rows):
            ax.add_patch(Rectangle((x + i, y + j), 1, 1, facecolor=colour, edgecolor="white"))
    ax.text(x + columns / 2, y - 0.4, label, ha="center", va="top", fontsize=10)


def two_roofs_figure() -> Figure:
    """The roofline as the article draws it, and as it is."""
    figure, (article, right) = new_figure(10, 3.4, 2)
    article.plot([0, 1], [1, 1], color=GREY, lw=2.5, marker="")
    article.plot([0.45, 0.95], [0, 1], color=GREY, lw=2.5, ls="--", marker="")
    article.text(0.77, 0.45, "compute-bound", fontsize=10)
    article.text(0.62, 0.14, "memory-bound", fontsize=10)
    article.set_title("as the article draws it", fontsize=11)
    right.fill_between([0, 0.5], [0, 1], color=BLUE, alpha=0.15, lw=0)
    right.fill_between([0.5, 1], [1, 1], color=ORANGE, alpha=0.2, lw=0)
    right.plot([0, 0.5, 1], [0, 1, 1], color=BLACK, lw=2.5, marker="")
    right.plot([0.5, 0.5], [0, 1], color=BLACK, lw=1, ls=":", marker="")
    right.text(0.36, 0.14, "memory-bound", fontsize=10, ha="center")
    right.text(0.75, 0.45, "compute-bound", fontsize=10, ha="center")
    right.annotate("the ridge", (0.5, 1), (0.55, 1.1), fontsize=10)
    right.set_title("as it is", fontsize=11)
    for ax in (article, right):
        ax.set(xlabel="arithmetic intensity", ylabel="attainable FLOP/s", xlim=(0, 1.05), ylim=(0, 1.25))
        ax.set_xticks([])
        ax.set_yticks([])
    return figure


def kernels_figure(
    model: str, chip: str, batches: Sequence[int], contexts: Sequence[int] = (1024, 8192), gamma: int = 5
) -> Figure:
    """Time of linear layers and attention, decode (left bar) beside the verification of `gamma` drafts (right bar)."""
    shape, device = model_shape(model), accelerator(chip)
    figure, axes = new_figure(10, 4, len(contexts))
    highest = 0.0
    for ax, context in zip(axes, contexts, strict=True):
        for x, batch in enumerate(batches):
            totals = []
            for n, where in ((1, x - 0.2), (gamma + 1, x + 0.2)):
                linear, attention = pass_seconds_by_kernel(shape, device, n, context, batch)
                ax.bar(where, 1e3 * linear, 0.36, **LINEAR)
                ax.bar(where, 1e3 * attention, 0.36, 1e3 * linear, **ATTENTION)
                totals.append(1e3 * (linear + attention))
            ax.annotate(f"{totals[1] / totals[0]:.2f}x", (x + 0.2, totals[1]), ha="center", va="bottom", fontsize=10)
            highest = max(highest, *totals)
        ax.set_xticks(range(len(batches)), [str(b) for b in batches])
        ax.set_title(f"{context:,} tokens of context each", fontsize=11)
        ax.set(xlabel="batch", ylabel="ms of a pass")
        ax.grid(axis="x", visible=False)
    for ax in axes:
        ax.set_ylim(0, 1.12 * highest)
    handles = [Patch(label="linear layers", **LINEAR), Patch(label="attention", **ATTENTION)]
    handles.append(Patch(color="none", label=f"left bar: decode; right bar: verify {gamma}"))
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
    return figure
