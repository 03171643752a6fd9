"""Notebook widgets: controls above a page that is drawn again whenever one of them changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import ipywidgets

T = TypeVar("T")
STYLE = {"description_width": "initial"}


def slider(label: str, value: int, low: int, high: int, step: int = 1) -> ipywidgets.IntSlider:
    """A slider for integers that reports its value when it is released, not while it moves."""
    return ipywidgets.IntSlider(
        value=value, min=low, max=high, step=step, description=label, continuous_update=False, style=STYLE
    )


def choice(label: str, options: Sequence[T], value: T) -> ipywidgets.Dropdown:
    """A drop-down list."""
    return ipywidgets.Dropdown(options=options, value=value, description=label, style=STYLE)


def explorer(render: Callable[..., str], **controls: ipywidgets.ValueWidget) -> ipywidgets.VBox:
    """Controls above the HTML that `render(**values)` returns, drawn at once and again after each change.

    Every explorer of the course is a thin layer over a function that also works without widgets.
    """
    output = ipywidgets.HTML(render(**{name: c.value for name, c in controls.items()}))

    def update(_change: object) -> None:
        output.value = render(**{name: c.value for name, c in controls.items()})

    for control in controls.values():
        control.observe(update, names="value")
    return ipywidgets.VBox([*controls.values(), output])
