"""Lesson 04's pictures: their numbers are those of the production rule, and the sliders move them."""

import math
import re

import ipywidgets
import pytest

from specdec_course.pictures import exactness as plots
from specdec_ref.proof import MUTANTS, planted
from specdec_ref.verify import residual_distribution

P, Q = [0.6, 0.3, 0.1], [0.1, 0.3, 0.6]


def heights(container):
    return pytest.approx([bar.get_height() for bar in container], abs=1e-12)


def test_a_step_has_the_known_parts():
    step = plots.one_step(P, Q)
    assert step.accepted == pytest.approx([0.1, 0.3, 0.1])
    assert step.corrected == pytest.approx([0.5, 0, 0])
    assert step.residual == pytest.approx([1, 0, 0])
    assert step.emitted == pytest.approx(P)
    assert plots.one_step(P, P).residual == [0, 0, 0]
    with pytest.raises(ValueError, match="a sum of 1 each"):
        plots.one_step(P, [0.5, 0.5, 0.5])


def test_a_step_shows_what_the_production_code_does_not_what_it_should():
    bug = next(m for m in MUTANTS if m.name == "residual with q = 0")
    with planted(bug):
        assert plots.one_step(P, Q).emitted == pytest.approx([0.40, 0.45, 0.15])


def test_the_panels_hold_shared_mass_residual_and_emitted_distribution():
    both, after, out = plots.rejection_figure(P, Q).axes
    target, draft, shared = both.containers
    assert heights(target) == P
    assert heights(draft) == Q
    assert heights(shared) == [0.1, 0.3, 0.1]
    assert both.get_title() == "accepted: 50% of drafts"
    assert heights(after.containers[0]) == [1, 0, 0]
    kept, corrected = out.containers
    tops = [bar.get_y() + bar.get_height() for bar in corrected]
    assert tops == pytest.approx(P)
    assert heights(kept) == [0.1, 0.3, 0.1]


def test_the_words_carry_the_numbers():
    words = plots.step_in_words(P, Q)
    assert words == (
        "Target p = 60%, 30%, 10%; draft q = 10%, 30%, 60%. 50% of drafts accepted; "
        "corrections follow 100%, 0%, 0%; emitted 60%, 30%, 10%."
    )
    assert "no corrections" in plots.step_in_words(P, P)
    assert f'alt="{words}"' in plots.rejection_html(P, Q)


def test_a_slider_moves_accepted_mass_residual_and_emitted_distribution_together():
    box = plots.exactness_explorer()
    *sliders, output = box.children
    assert [s.value for s in sliders] == [6, 3, 1, 1, 3, 6]
    assert isinstance(output, ipywidgets.HTML)
    before = re.search('base64,([^"]+)', output.value)[1]
    assert "50% of drafts accepted" in output.value
    sliders[0].value = 0
    assert plots.step_in_words([0, 0.75, 0.25], Q) in output.value
    assert "55% of drafts accepted; corrections follow 0%, 100%, 0%; emitted 0%, 75%, 25%" in output.value
    assert re.search('base64,([^"]+)', output.value)[1] != before
    sliders[5].value, sliders[4].value, sliders[3].value = 0, 0, 0
    assert "All three weights of q are 0" in output.value
    sliders[3].value = 10
    assert "0% of drafts accepted" in output.value


def test_the_histograms_show_shares():
    panels = plots.histogram_figure(P, {10: [5, 4, 1], 100: [61, 29, 10]}).axes
    assert [ax.get_title() for ax in panels] == ["10 draws", "100 draws"]
    assert heights(panels[1].containers[0]) == [0.61, 0.29, 0.10]
    assert list(panels[0].get_lines()[0].get_ydata()) == P


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


def test_the_residual_of_the_picture_is_the_rules():
    import torch

    p, q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
    expected = residual_distribution(*(torch.tensor(x, dtype=torch.float64) for x in (p, q)))
    assert plots.one_step(p, q).residual == pytest.approx(expected.tolist())
