"""Checks of problem set 04: a right test fails in fewer than one of a million gradings, and loops come to an end."""

import random

import pytest
from scipy import stats

from specdec_course.checks import CheckFailed
from specdec_course.checks.distributions import exact_distribution
from specdec_course.checks.ps04_rejection import power
from specdec_ref.proof import draws_needed, g_test


def trusts(sample, distribution):
    return g_test(sample(36_000), distribution).p_value >= power.SIZE


def test_bad_luck_alone_does_not_fail_a_test_that_keeps_the_contract(monkeypatch):
    """The chance of each count of errors to pass its limit, for a test that is just as good as it has to be, summed."""
    asked = []
    limit = power.most_errors
    monkeypatch.setattr(power, "most_errors", lambda runs, rate: asked.append((runs, rate)) or limit(runs, rate))
    for part in power.trusts.parts:
        part(trusts, random.Random(0))
    assert len(asked) == 7
    assert sum(stats.binom.sf(limit(runs, rate), runs, rate) for runs, rate in asked) < 1e-6


def test_a_power_of_four_fifths_is_seen_in_all_cases():
    limit = power.most_errors
    assert stats.binom.sf(limit(200, 1 - power.POWER), 200, 0.2) > 0.999


def test_the_strength_that_the_notebook_names():
    limit = power.most_errors
    seen = [stats.binom.sf(limit(6_000, power.SIZE), 6_000, size) for size in (0.003, 0.005, 0.006, 0.01)]
    assert [round(s, 2) for s in seen] == [0.14, 0.92, 0.99, 1.0]
    seen = [stats.binom.sf(limit(1_000, 1 - power.POWER), 1_000, 1 - p) for p in (0.97, 0.96, 0.95, 0.9)]
    assert [round(s, 3) for s in seen] == [0.452, 0.942, 0.999, 1.0]


def test_the_budget_is_enough_for_the_hardest_fault_and_not_for_much_more():
    hardest = [0.125 + 0.005 * sign for sign in (1, -1) * 4]
    needed = draws_needed(hardest, [0.125] * 8, power.SIZE, power.POWER)
    assert needed == 28_357
    assert needed < 36_000 < power.MOST_DRAWS < 2 * needed


def test_a_test_in_pieces_gets_counts_that_are_drawn_many_at_a_time():
    """36,000 draws in 360 pieces: as many calls of the generator as there are runs, not 360 times as many."""
    program = power._Program([0.25, 0.75], random.Random(0))
    counted = [program(100) for _ in range(360)]
    assert {sum(counts) for counts in counted} == {100} and len({tuple(counts) for counts in counted}) > 10
    assert program.used == 36_000 and program.calls == 360
    assert len(program._drawn[100]) == power.MOST_DRAWS // 100 - 360


def redraws(source):
    while True:
        token = source.categorical([0.5, 0.25, 0.25])
        if token == 0:
            return token


def test_redraws_without_an_end_are_refused_and_the_message_says_what_to_do():
    with pytest.raises(CheckFailed, match="Draw once, from the filtered distribution"):
        exact_distribution(redraws)


def test_more_branches_than_any_exercise_needs_are_refused():
    with pytest.raises(CheckFailed, match="more than 20,000 ways"):
        exact_distribution(lambda source: sum(source.bernoulli(0.5) for _ in range(15)))


def test_a_second_source_of_randomness_that_agrees_with_itself_four_times_shows():
    runs = []

    def lucky(source):
        runs.append(1)
        return source.bernoulli(0.5) or len(runs) > 8  # of two branches each time: the same until the fifth

    with pytest.raises(CheckFailed, match="come from `source`"):
        exact_distribution(lucky)


def test_a_second_source_of_randomness_shows():
    with pytest.raises(CheckFailed, match="come from `source`"):
        exact_distribution(lambda source: source.bernoulli(0.5) and random.random() < 0.5)
