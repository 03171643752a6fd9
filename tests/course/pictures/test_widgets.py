"""Widgets: drawn at once, and again after each change."""

import ipywidgets

from specdec_course.pictures import widgets


def test_an_explorer_draws_at_once_and_again_at_each_change():
    box = widgets.explorer(
        lambda a, b: f"{a}-{b}", a=widgets.slider("a", 1, 0, 5), b=widgets.choice("b", ["x", "y"], "x")
    )
    a, b, output = box.children
    assert isinstance(output, ipywidgets.HTML)
    assert output.value == "1-x"
    a.value = 3
    b.value = "y"
    assert output.value == "3-y"
    assert a.continuous_update is False
