"""Pictures of lesson 04b: distances that converge or do not, the power of a test."""

import math

import numpy as np

from specdec_course.pictures import exactness as plots


def test_the_convergence_figure_draws_a_limit_where_there_is_one():
    (ax,) = plots.convergence_figure([10, 100], {"right": [0.1, 0.0], "wrong": [0.3, 0.2]}, {"wrong": 0.2}).axes
    assert ax.get_xscale() == ax.get_yscale() == "log"
    right, wrong, limit = ax.get_lines()
    assert right.get_ydata()[0] == 0.1
    assert math.isnan(right.get_ydata()[1]), "0 has no place on a log axis"
    assert list(wrong.get_ydata()) == [0.3, 0.2]
    assert set(limit.get_ydata()) == {0.2}
    assert limit.get_color() == wrong.get_color()


def test_the_power_figure_has_experiment_and_computation():
    (ax,) = plots.power_figure([10, 100], {"size 1%": [0.1, 0.9]}, {"size 1%": [0.2, 0.8]}, [10, 100]).axes
    assert [list(line.get_ydata()) for line in ax.get_lines()[:2]] == [[0.1, 0.9], [0.2, 0.8]]


def test_g_of_correct_code_lies_under_its_curve():
    values = {"right": np.random.default_rng(0).chisquare(2, 4000), "wrong": np.full(4000, 9.0)}
    (ax,) = plots.g_figure(values, freedom=2).axes
    (curve,) = ax.lines
    bars = [patch for patch in ax.patches if patch.get_facecolor() == ax.patches[0].get_facecolor()]
    middle = [bar.get_x() + bar.get_width() / 2 for bar in bars]
    expected = np.interp(middle, curve.get_xdata(), curve.get_ydata())
    assert np.abs([bar.get_height() for bar in bars] - expected).max() < 0.06
    assert [text.get_text() for text in ax.get_legend().get_texts()][-1].startswith("chi-square, 2")
