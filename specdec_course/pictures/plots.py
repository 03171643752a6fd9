"""Figures and tables in one style: colours that everybody can tell apart, and a description with every picture."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence

import matplotlib
from cycler import cycler
from IPython.display import HTML
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours. Marker and line style differ as well, so that colour is never the only difference.
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
GREY, LIGHT_GREY = "#808080", "#D9D9D9"
CYCLE = cycler(color=[BLUE, RED, GREEN, ORANGE, PURPLE, SKY, BLACK]) + cycler(
    marker=["o", "s", "^", "D", "v", "P", "X"], linestyle=["-", "--", "-.", ":", "-", "--", "-."]
)


def new_figure(width: float = 7.5, height: float = 3.8, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure and its axes side by side, in the style of the course; sizes in inches.

    It is not registered with pyplot, so that nothing shows it twice and nothing has to close it.
    """
    with matplotlib.rc_context({"axes.prop_cycle": CYCLE, "font.size": 11}):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)[0].tolist()
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
    return figure, axes


def show(figure: Figure, alt: str) -> HTML:
    """The figure as HTML, with a description for screen readers and for places where pictures are missing.

    Raises ValueError where the description is empty.
    """
    if not alt.strip():
        raise ValueError("describe the figure in words: give alt")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return HTML(
        f'<figure><img style="max-width: 100%" alt="{html.escape(alt)}" src="data:image/png;base64,{data}"></figure>'
    )


def table_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain HTML table; the first column is aligned left, the others right."""
    lines = [head, *rows]
    cells = [
        "".join(
            f"<{tag} style='text-align: {'left' if i == 0 else 'right'}'>{html.escape(str(cell))}</{tag}>"
            for i, cell in enumerate(line)
        )
        for tag, line in zip(["th", *["td"] * len(rows)], lines, strict=True)
    ]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def pass_cost_figure(measured: Mapping[int, float], predicted: Mapping[int, float] | None = None) -> Figure:
    """T(n) / T(1) of one pass over n tokens, beside the cost of n separate passes and, if given, a prediction."""
    figure, (ax,) = new_figure(7, 3.8)
    n = sorted(measured)
    ax.plot(n, n, color=RED, marker="s", linestyle="--", label="n passes over one token each")
    if predicted:
        ax.plot(n, [predicted[i] for i in n], color=GREEN, marker="^", linestyle="-.", label="one pass, predicted")
    ax.plot(n, [measured[i] for i in n], color=BLUE, marker="o", linestyle="-", label="one pass, measured")
    top = 1.3 * max([*measured.values(), *predicted.values(), 2.5]) if predicted else None
    ax.set(xlabel="tokens n in the pass", ylabel="time, in passes over one token", ylim=(0, top))
    ax.set_xticks(n)
    ax.legend()
    return figure
