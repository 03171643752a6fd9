"""Pictures of lesson 04b: distances that converge or do not, the power of a test."""

import math

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
