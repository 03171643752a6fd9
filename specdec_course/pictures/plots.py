"""Pictures of the lessons: one style, safe for all eyes, each with its words."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence

import matplotlib
from cycler import cycler
from IPython.display import HTML
from matplotlib.figure import Figure

# Okabe and Ito's colours; marker and line style change too, so that no line is told apart by colour alone.
BLUE, ORANGE, GREEN, YELLOW, SKY, RED, PURPLE, BLACK = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#F0E442",
    "#56B4E9",
    "#D55E00",
    "#CC79A7",
    "#000000",
)
CYCLE = cycler(color=[BLUE, RED, GREEN, ORANGE, PURPLE, SKY, BLACK]) + cycler(
    marker=["o", "s", "^", "D", "v", "P", "X"], linestyle=["-", "--", "-.", ":", "-", "--", "-."]
)


def new_figure(width: float = 7.5, height: float = 3.8, columns: int = 1) -> tuple[Figure, list]:
    """A figure and its axes, in the style of the course; sizes in inches. It belongs to no global state."""
    with matplotlib.rc_context({"axes.prop_cycle": CYCLE, "font.size": 11}):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)[0].tolist()
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
    return figure, axes


def show(figure: Figure, alt: str) -> HTML:
    """The figure as HTML with a description that screen readers find and that stands in for it when it is missing.

    Raises ValueError without a description.
    """
    if not alt.strip():
        raise ValueError("describe the figure in words: give alt")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return HTML(
        f'<figure><img style="max-width: 100%" alt="{html.escape(alt)}" src="data:image/png;base64,{data}"></figure>'
    )


def ratio_figure(names: Sequence[str], ratios: Sequence[Sequence[float]], guesses: Sequence[float] = ()) -> Figure:
    """Speedups of several races: every pair of runs as a dot, the median as a bar, a learner's guesses as crosses."""
    figure, (ax,) = new_figure(7.5, 1.3 + 0.7 * len(names))
    for y, values in enumerate(ratios):
        ordered = sorted(values)
        ax.barh(y, ordered[len(ordered) // 2], height=0.5, color=SKY, label="median" if y == 0 else None)
        ax.plot(
            values, [y] * len(values), "o", color=BLUE, linestyle="none", label="each pair of runs" if y == 0 else None
        )
    if guesses:
        ax.plot(
            guesses, range(len(guesses)), "x", color=RED, markersize=11, mew=3, linestyle="none", label="your guess"
        )
    ax.axvline(1, color=BLACK, linestyle="--", linewidth=1)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.set_xlabel("times as fast as plain decoding (dashed: equally fast)")
    figure.legend(loc="outside upper right", ncols=3, frameon=False)
    return figure


def pass_cost_figure(relative: dict[int, float]) -> Figure:
    """T(n) / T(1) of one pass over n tokens, beside the n that n separate passes would cost."""
    figure, (ax,) = new_figure(7, 3.8)
    n = sorted(relative)
    ax.plot(n, n, color=RED, marker="s", linestyle="--", label="n passes over one token each")
    ax.plot(
        n, [relative[i] for i in n], color=BLUE, marker="o", linestyle="-", label="one pass over n tokens (measured)"
    )
    ax.set_xlabel("tokens n")
    ax.set_ylabel("time, in passes over one token")
    ax.set_xticks(n)
    ax.set_ylim(bottom=0)
    ax.legend()
    return figure
