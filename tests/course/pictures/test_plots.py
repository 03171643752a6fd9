"""Figures and tables: every picture has a description, and shows the numbers that it was given."""

import re

import pytest

from specdec_course.pictures import plots


def lines(figure):
    return {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}


def test_a_picture_carries_its_words():
    figure = plots.pass_cost_figure({1: 1.0, 2: 1.1})
    page = plots.show(figure, 'two "bars"').data
    assert re.search(r'<img [^>]*alt="two &quot;bars&quot;"', page)
    with pytest.raises(ValueError, match="describe the figure"):
        plots.show(figure, " ")


def test_the_cost_of_a_pass_is_drawn_as_measured_and_as_predicted():
    measured = {1: 1.0, 2: 1.1, 4: 1.5}
    alone = plots.pass_cost_figure(measured)
    assert lines(alone) == {"n passes over one token each": [1, 2, 4], "one pass, measured": [1.0, 1.1, 1.5]}
    both = plots.pass_cost_figure(measured, {1: 1.0, 2: 1.0, 4: 1.1})
    assert lines(both)["one pass, predicted"] == [1.0, 1.0, 1.1]
    assert both.axes[0].get_ylim() == (0, pytest.approx(1.3 * 2.5)), "neither curve is pressed flat by the line of n"


def test_a_table_escapes_its_cells():
    page = plots.table_html(("name", "n"), [("<b>", "1")])
    assert page.count("<tr>") == 2 and "&lt;b&gt;" in page and page.count("text-align: right") == 2
