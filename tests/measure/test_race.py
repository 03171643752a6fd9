"""Races: fair turns, decoding apart from the prompt's pass, and verdicts of a stated size."""

import random

import pytest
from support.tiny_models import tiny_llama

from specdec_ref import DraftModelDrafter, SpeculativeEngine
from specdec_ref.measure.race import SIZE, Race, race

TARGET = tiny_llama(1)
PLAIN = SpeculativeEngine(TARGET).generate([1], 3)
PERFECT = SpeculativeEngine(TARGET, DraftModelDrafter(TARGET), 4).generate([1], 3)
USELESS = SpeculativeEngine(TARGET, DraftModelDrafter(tiny_llama(2, n_layers=1)), 4).generate([1], 3)
assert PERFECT.stats.tokens_per_round > 1 and USELESS.stats.tokens_per_round == 1 and USELESS.stats.drafted


def with_ratios(*ratios, second=PERFECT, **options):
    return Race(PLAIN, second, list(ratios), [1.0] * len(ratios), **options)


def test_ratios_are_taken_per_token_and_pair_by_pair():
    r = Race(PLAIN, PERFECT, [2.0, 9.0, 4.0], [1.0, 3.0, 1.0])
    assert r.ratios == [2.0, 3.0, 4.0]
    assert (r.ratio, r.interval) == (3.0, (2.0, 4.0))
    assert str(r) == "3.00x (2.00 to 4.00 over 3 pairs of runs)"
    longer = SpeculativeEngine(TARGET).generate([1], 6)
    assert with_ratios(1.0, second=longer).ratios == [2.0], "in the same time it wrote twice as much"


def test_the_prompts_pass_is_counted_apart():
    r = Race(PLAIN, PERFECT, [3.0], [1.0], [1.0], [1.0])
    assert (r.ratio, r.total_ratio) == (3.0, 2.0)
    assert with_ratios(3.0).total_ratio == 3.0


def test_a_race_times_both_parts_and_takes_turns():
    order = []

    def arm(name):
        def run():
            order.append(name)
            return SpeculativeEngine(TARGET).generate([1, 2, 3], 4)

        return run

    r = race(arm("a"), arm("b"), 4)
    assert "".join(order) == "ab" + "abba" * 2
    assert len(r.first_seconds) == len(r.second_prefill) == 4
    assert all(s > 0 for s in [*r.first_seconds, *r.second_seconds, *r.first_prefill, *r.second_prefill])
    with pytest.raises(ValueError, match="at least one pair"):
        race(arm("a"), arm("b"), 0)


def test_progress_is_told_of_every_pair():
    told = []

    def progress(steps, what):
        for step in steps:
            told.append((what, step))
            yield step

    race(lambda: PLAIN, lambda: PERFECT, 2, progress=progress)
    assert told == [("pairs of runs", 0), ("pairs of runs", 1)]


@pytest.mark.parametrize(
    "ratios, words",
    [
        ((1.2,) * 6, "faster: 1.20x"),
        ((0.8,) * 6, "slower: 0.80x"),
        ((1.2,) * 5 + (0.9,), "no clear difference: 1.20x"),
        ((1.2,) * 8 + (0.9,), "faster: 1.20x"),  # 8 of 9: 3.9%
        ((4.0,) * 5, "4.00x (4.00 to 4.00 over 5 pairs of runs); too few pairs for a verdict, which takes 6 or more"),
    ],
)
def test_a_verdict_needs_pairs_that_agree(ratios, words):
    assert with_ratios(*ratios).verdict().startswith(words)


def test_a_verdict_states_how_often_equal_arms_would_give_it():
    assert with_ratios(*[1.2] * 6).p_value == 2 / 64
    assert "in 3.1% of races" in with_ratios(*[1.2] * 6).verdict()
    assert with_ratios(1.2, 0.9).p_value == 1.0
    assert with_ratios(1.0, 1.0).p_value == 1.0


@pytest.mark.parametrize("pairs", [6, 7, 12, 20])
def test_equal_arms_are_called_different_no_more_often_than_stated(pairs):
    rng = random.Random(pairs)
    races = [with_ratios(*(rng.lognormvariate(0, 0.1) for _ in range(pairs))) for _ in range(4000)]
    different = sum(r.verdict().startswith(("faster", "slower")) for r in races)
    assert 0 < different / len(races) <= SIZE + 0.01


def test_where_one_model_made_one_token_per_pass_in_both_arms_none_is_faster():
    assert with_ratios(*[1.2] * 6, second=PLAIN).verdict().startswith("no gain to find, both made one token per pass")
    assert with_ratios(*[0.8] * 6, second=PLAIN).verdict().startswith("no gain to find")
    assert with_ratios(*[1.2] * 6, second=USELESS).verdict().startswith("no gain to find")
    assert with_ratios(*[0.8] * 6, second=USELESS).verdict().startswith("slower"), "useless drafts cost time"
    assert with_ratios(*[1.2] * 6, second=PLAIN, same_target=False).verdict().startswith("faster")
