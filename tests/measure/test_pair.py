"""Predictions of `specdec try` against cases that can be worked out by hand."""

import pytest
from support.tiny_models import tiny_llama

from specdec_ref import DraftModelDrafter, NGramDrafter, SpeculativeEngine
from specdec_ref.measure.pair import Tryout, try_pair
from specdec_ref.measure.race import Race

TARGET, DRAFT = tiny_llama(1), tiny_llama(2, n_layers=1)
GENERATION = SpeculativeEngine(TARGET).generate([1], 3)


def test_a_draft_that_is_always_right():
    t = Tryout(
        3, rounds=10, emitted=40, tested=[10, 10, 10], accepted=[10, 10, 10], verify_cost={1: 1, 2: 1, 3: 1, 4: 1}
    )
    t.draft_cost = 0.1
    assert t.predicted(3) == pytest.approx(4 / 1.3)
    assert t.predicted(1) == pytest.approx(2 / 1.1)
    assert t.best == (3, pytest.approx(4 / 1.3))
    assert t.alpha == 1.0


def test_a_draft_that_is_never_right_has_no_best_gamma():
    t = Tryout(2, rounds=10, emitted=10, tested=[10, 0], accepted=[0, 0], verify_cost={1: 1, 2: 1.1, 3: 1.2})
    assert t.predicted(2) == pytest.approx(1 / 1.2)
    assert t.best == (0, 1.0)


def test_rounds_without_a_draft_cost_a_plain_pass():
    """Half of the rounds draft one token, which is always accepted: 1.5 tokens for (1.5 + 1) / 2 passes."""
    t = Tryout(1, rounds=10, emitted=15, tested=[5], accepted=[5], verify_cost={1: 1, 2: 1.5})
    assert t.predicted(1) == pytest.approx(1.5 / 1.25)


def test_nothing_drafted_divides_nothing_by_zero():
    t = Tryout(2, rounds=4, emitted=4, verify_cost={1: 1, 2: 1, 3: 1})
    assert (t.alpha, t.alpha_interval(), t.predicted(2)) == (0.0, (0.0, 1.0), 1.0)
    assert Tryout(2, verify_cost={1: 1, 2: 1, 3: 1}).tokens_per_round == 0.0


def test_a_gamma_that_was_not_measured_is_not_predicted():
    with pytest.raises(ValueError, match="only 1 to 2"):
        Tryout(2, rounds=1, verify_cost={1: 1, 2: 1, 3: 1}).predicted(3)


@pytest.mark.parametrize("drafter", [NGramDrafter(), DraftModelDrafter(DRAFT), DraftModelDrafter(TARGET)])
def test_a_measured_pair_is_counted_as_the_engine_counts(drafter):
    result = try_pair(TARGET, drafter, [[1, 2, 3], [4, 5, 4, 5]], gamma=3, max_new_tokens=12, repeats=1)
    assert result.emitted == sum(len(r.second.tokens) for r in result.races) == 24
    assert result.rounds == sum(r.second.stats.rounds for r in result.races)
    assert sum(result.accepted) == sum(r.second.stats.accepted for r in result.races)
    assert set(result.verify_cost) == {1, 2, 3, 4}
    assert (result.draft_cost > 0) == isinstance(drafter, DraftModelDrafter)
    assert all(r.first.tokens == r.second.tokens for r in result.races)
    if isinstance(drafter, DraftModelDrafter) and drafter.model is TARGET:
        assert result.alpha == 1.0


def test_prompts_and_gamma_are_checked():
    with pytest.raises(ValueError, match="no prompts"):
        try_pair(TARGET, NGramDrafter(), [])
    with pytest.raises(ValueError, match="gamma is 0"):
        try_pair(TARGET, NGramDrafter(), [[1]], gamma=0)


@pytest.mark.parametrize(("prompt", "gamma"), [(90, 8), (95, 8), (3, 200), (50, 60)])
@pytest.mark.parametrize("drafter", [NGramDrafter(), DraftModelDrafter(tiny_llama(2, n_layers=1, max_context=20))])
def test_measuring_is_cut_to_the_context_where_the_engine_is(prompt, gamma, drafter):
    """A context of 96: the passes that are timed fit beside the prompt, as the rounds that are run do."""
    target = tiny_llama(1, max_context=96)
    result = try_pair(target, drafter, [[1] * prompt], gamma=gamma, max_new_tokens=8, repeats=1)
    assert result.gamma == min(gamma, 95) and set(result.verify_cost) == set(range(1, result.gamma + 2))
    assert result.emitted == min(8, 96 - prompt)
    assert result.verdict()


def test_the_interval_is_that_of_accepted_over_tested():
    """Wilson's, worked out: (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n), p = 15/20."""
    t = Tryout(1, rounds=40, emitted=60, tested=[20], accepted=[15])
    assert t.alpha == 0.75 and t.alpha_interval() == pytest.approx((0.5313, 0.8881), abs=1e-4)


def test_the_measured_speedup_is_a_geometric_mean():
    """Twice as fast on one prompt and half as fast on another is no gain."""
    assert tryout_with(2.0, 0.5).measured == pytest.approx(1.0)


def tryout_with(*ratios):
    t = Tryout(1, rounds=2, emitted=3, tested=[2], accepted=[1], verify_cost={1: 1, 2: 1})
    for ratio in ratios:
        t.races.append(Race(GENERATION, GENERATION, [ratio], [1.0]))
    return t


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ((1.2, 1.5), "pays on every prompt"),
        ((0.8, 0.9), "loses on every prompt"),
        ((0.9, 1.2), "depends on the prompt"),
    ],
)
def test_the_verdict_says_what_was_measured(ratios, words):
    assert words in tryout_with(*ratios).verdict()
