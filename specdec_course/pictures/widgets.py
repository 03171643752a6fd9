"""Notebook widgets: controls above a page that is drawn again whenever one of them changes."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ipywidgets

T = TypeVar("T")
STYLE = {"description_width": "initial"}
WIDE = "40em"
"""Label, track and number of a slider together: with a long label, still 200 pixels of track to drag along."""


def slider(label: str, value: int, low: int, high: int, step: int = 1) -> ipywidgets.IntSlider:
    """A slider for integers that reports its value when it is released, not while it moves."""
    return ipywidgets.IntSlider(
        value=value,
        min=low,
        max=high,
        step=step,
        description=label,
        continuous_update=False,
        style=STYLE,
        layout=ipywidgets.Layout(width=WIDE),
    )


def steps_slider(label: str, value: int, options: Sequence[int]) -> ipywidgets.SelectionSlider:
    """A slider over a few integers, for ranges of several powers of two; its value is the integer itself."""
    return ipywidgets.SelectionSlider(
        options=[(f"{n:,}", n) for n in options],
        value=value,
        description=label,
        continuous_update=False,
        style=STYLE,
        layout=ipywidgets.Layout(width=WIDE),
    )


def choice(label: str, options: Sequence[T], value: T) -> ipywidgets.Dropdown:
    """A drop-down list."""
    return ipywidgets.Dropdown(
        options=options, value=value, description=label, style=STYLE, layout=ipywidgets.Layout(width="max-content")
    )


def text_box(label: str, value: str) -> ipywidgets.Text:
    """A line of text, reported when Enter is pressed or the box is left."""
    return ipywidgets.Text(
        value=value, description=label, continuous_update=False, style=STYLE, layout=ipywidgets.Layout(width=WIDE)
    )


class Explorer(ipywidgets.VBox):
    """Controls above a page; `still` is shown where no kernel runs: on GitHub, in handouts, before the cell has run."""

    still: str

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The widget, and its first page as HTML for viewers without widgets."""
        bundle = super()._repr_mimebundle_(**kwargs)
        return {**bundle, "text/plain": "An explorer: run the cell to use it.", "text/html": self.still}


def explorer(render: Callable[..., str], **controls: ipywidgets.ValueWidget) -> Explorer:
    """Controls above the HTML that `render(**values)` returns, drawn at once and again after each change.

    While it is drawn again the old page is pale, and says so. What `render` raises is shown in the page's place.
    Every explorer of the course is a thin layer over a function that also works without widgets.
    """

    def page() -> str:
        return render(**{name: c.value for name, c in controls.items()})

    output = ipywidgets.HTML(page())
    last = output.value

    def update(_change: object) -> None:
        nonlocal last
        output.value = f'<div style="position: absolute"><b>computing …</b></div><div style="opacity: 0.3">{last}</div>'
        try:
            last = page()
        except Exception as error:  # a widget would swallow it
            last = f"<pre>{html.escape(f'{type(error).__name__}: {error}')}</pre>"
        output.value = last

    for control in controls.values():
        control.observe(update, names="value")
    box = Explorer([*controls.values(), output])
    settings = " · ".join(f"{html.escape(c.description)}: <b>{html.escape(_shown(c))}</b>" for c in controls.values())
    box.still = f"<p>{settings}<br><small>Run this cell to change these.</small></p>{last}"
    return box


def _shown(control: ipywidgets.ValueWidget) -> str:
    label = getattr(control, "label", None)  # of a selection
    if isinstance(label, str):
        return label
    return f"{control.value:,}" if isinstance(control.value, int) else str(control.value)
