"""Lesson 04's picture of mass that moves: its numbers are those of the production rule, and the sliders move them."""

import re

import ipywidgets
import pytest
import torch

from specdec_course.pictures import mass as plots
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


def test_surplus_and_deficit_are_equal_areas_on_one_scale_and_one_fills_the_other():
    before, after = plots.mass_figure(P, Q).axes
    kept, dropped, missing = before.containers
    assert heights(kept) == [0.1, 0.3, 0.1]
    assert heights(dropped) == [0.5] and heights(missing) == [0.5]
    assert all(bar.get_width() == pytest.approx(plots.WIDTH) for each in before.containers for bar in each)
    assert before.get_ylim() == after.get_ylim()
    assert len(before.patches) - sum(map(len, before.containers)) == 1, "an arrow from the surplus to the deficit"
    labels = [text.get_text() for text in before.get_legend().get_texts()]
    assert {"dropped: 0.50", "missing: 0.50"} <= set(labels)
    kept, corrections = after.containers
    assert [bar.get_y() + bar.get_height() for bar in corrections] == pytest.approx([P[0]])
    assert [bar.get_height() for bar in kept][1:] == pytest.approx(P[1:])


def test_nothing_moves_between_equal_distributions():
    before, after = plots.mass_figure(P, P).axes
    assert len(before.containers) == len(after.containers) == 1
    assert len(before.patches) == 3


def test_every_surplus_is_shared_out_over_every_deficit():
    before, _ = plots.mass_figure([0.1, 0.1, 0.4, 0.4], [0.4, 0.4, 0.1, 0.1]).axes
    assert len(before.patches) - sum(map(len, before.containers)) == 4


def test_bars_of_a_vocabulary_keep_what_the_whole_vocabulary_keeps():
    class Tokenizer:
        def decode(self, ids):
            return f"t{ids[0]}"

    p, q = torch.rand(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p, q = p / p.sum(), q / q.sum()
    bars = plots.likeliest_bars(p, q, Tokenizer(), n=5)
    assert len(bars.p) == len(bars.q) == len(bars.names) == 7
    assert sum(bars.p) == pytest.approx(1) and sum(bars.q) == pytest.approx(1)
    assert sum(map(min, bars.p, bars.q)) == pytest.approx(torch.minimum(p, q).sum().item())
    assert bars.names[0] == f"'t{torch.maximum(p, q).argmax()}'"


def test_the_words_carry_the_numbers():
    words = plots.mass_words(P, Q)
    assert words == (
        "Target p = 60%, 30%, 10%; draft q = 10%, 30%, 60%. 50% of drafts kept, 50% dropped; "
        "corrections follow 100%, 0%, 0%; emitted 60%, 30%, 10%."
    )
    assert "nothing to correct" in plots.mass_words(P, P)
    assert f'alt="{words}"' in plots.mass_html(P, Q)


def test_a_slider_moves_accepted_mass_residual_and_emitted_distribution_together():
    box = plots.mass_explorer()
    *sliders, output = box.children
    assert [s.value for s in sliders] == [3, 6, 1, 1, 3, 6]
    assert isinstance(output, ipywidgets.HTML)
    before = re.search('base64,([^"]+)', output.value)[1]
    assert "50% of drafts kept" in output.value
    sliders[0].value = 0
    assert plots.mass_words([0, 6 / 7, 1 / 7], Q) in output.value
    assert "44% of drafts kept, 56% dropped; corrections follow 0%, 100%, 0%; emitted 0%, 86%, 14%" in output.value
    assert re.search('base64,([^"]+)', output.value)[1] != before
    sliders[5].value, sliders[4].value, sliders[3].value = 0, 0, 0
    assert "All three weights of q are 0" in output.value
    sliders[3].value = 10
    assert "0% of drafts kept" in output.value


def test_the_residual_of_the_picture_is_the_rules():
    p, q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
    expected = residual_distribution(*(torch.tensor(x, dtype=torch.float64) for x in (p, q)))
    assert plots.one_step(p, q).residual == pytest.approx(expected.tolist())


def test_the_tree_has_every_way_through_a_round_of_one_draft():
    leaves = plots.round_leaves(P, Q)
    assert [(leaf.draft, leaf.kept, leaf.token) for leaf in leaves] == [
        (0, True, 0),
        (1, True, 1),
        (2, True, 2),
        (2, False, 0),
    ]
    assert [leaf.chance for leaf in leaves] == pytest.approx([0.1, 0.3, 0.1, 0.5])
    texts = [t.get_text() for t in plots.tree_figure(P, Q).axes[0].texts]
    assert {"2: 0.6", "yes: 0.17", "no: 0.83", "token 0, in 50% of rounds"} <= set(texts)
    assert "draft 2 dropped, correction 0: 0.5" in plots.tree_words(P, Q)


def test_the_tree_is_that_of_the_production_code():
    bug = next(m for m in MUTANTS if m.name == "residual with q = 0")
    with planted(bug):
        assert len(plots.round_leaves(P, Q)) == 6


def test_the_pushes_stand_on_one_scale_with_their_means():
    noise, bias = plots.pushes_figure({"noise": [0.1, -0.1], "bias": [0.3, 0.1]}).axes
    assert noise.get_ylim() == bias.get_ylim()
    assert heights(bias.containers[0]) == [0.3, 0.1]
    assert [ax.get_legend().get_texts()[0].get_text() for ax in (noise, bias)] == ["mean +0.000", "mean +0.200"]
