"""Widgets: drawn at once, and again after each change; a still where no kernel runs."""

import ipywidgets

from specdec_course.pictures import widgets


def example(render=lambda a, b: f"{a}-{b}"):
    box = widgets.explorer(render, a=widgets.slider("first", 1, 0, 5), b=widgets.choice("second", ["x", "y"], "x"))
    return box, *box.children


def test_an_explorer_draws_at_once_and_again_at_each_change():
    _, a, b, output = example()
    assert isinstance(output, ipywidgets.HTML)
    assert output.value == "1-x"
    a.value = 3
    b.value = "y"
    assert output.value == "3-y"
    assert a.continuous_update is False


def test_an_explorer_says_that_it_computes():
    seen = []

    def render(a, b):
        seen.extend(c.value for c in boxes[-1:])
        return f"{a}-{b}"

    boxes = []
    _, a, _, output = example(render)
    boxes.append(output)
    a.value = 2
    assert len(seen) == 1 and "computing" in seen[0] and "1-x" in seen[0]
    assert output.value == "2-x"


def test_an_error_is_shown_and_the_next_change_draws_again():
    _, a, _, output = example(lambda a, b: str(1 // (3 - a)))
    a.value = 3
    assert "ZeroDivisionError" in output.value
    a.value = 2
    assert output.value == "1"


def test_an_explorer_leaves_a_still_with_its_settings():
    box = example()[0]
    bundle = box._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "1-x" in bundle["text/html"] and "first: <b>1</b>" in bundle["text/html"]
    assert "VBox" not in bundle["text/plain"]


def test_a_slider_over_powers_of_two_gives_the_number_itself():
    s = widgets.steps_slider("context", 1024, [2**i for i in range(9, 18)])
    assert s.value == 1024 and s.label == "1,024"
    s.index = 0
    assert s.value == 512
