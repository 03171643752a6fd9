"""Problem set 04 judges a statistical test by running it: a right one fails in fewer than one of a million gradings."""

import random

from scipy import stats

from specdec_course.checks import rejection_power
from specdec_ref.proof import draws_needed, g_test


def trusts(sample, distribution):
    return g_test(sample(36_000), distribution).p_value >= rejection_power.SIZE


def test_bad_luck_alone_does_not_fail_a_test_that_keeps_the_contract(monkeypatch):
    """The chance of each count of errors to pass its limit, for a test that is just as good as it has to be, summed."""
    asked = []
    limit = rejection_power._most_errors
    monkeypatch.setattr(
        rejection_power, "_most_errors", lambda runs, rate: asked.append((runs, rate)) or limit(runs, rate)
    )
    for part in rejection_power.trusts.parts:
        part(trusts, random.Random(0))
    assert len(asked) == 7
    assert sum(stats.binom.sf(limit(runs, rate), runs, rate) for runs, rate in asked) < 1e-6


def test_a_power_of_four_fifths_is_seen_in_all_cases():
    limit = rejection_power._most_errors
    assert stats.binom.sf(limit(200, 1 - rejection_power.POWER), 200, 0.2) > 0.999


def test_the_strength_that_the_notebook_names():
    limit = rejection_power._most_errors
    seen = [stats.binom.sf(limit(6_000, rejection_power.SIZE), 6_000, size) for size in (0.003, 0.005, 0.006, 0.01)]
    assert [round(s, 2) for s in seen] == [0.14, 0.92, 0.99, 1.0]
    seen = [stats.binom.sf(limit(1_000, 1 - rejection_power.POWER), 1_000, 1 - p) for p in (0.97, 0.96, 0.95, 0.9)]
    assert [round(s, 3) for s in seen] == [0.452, 0.942, 0.999, 1.0]


def test_the_budget_is_enough_for_the_hardest_fault_and_not_for_much_more():
    hardest = [0.125 + 0.005 * sign for sign in (1, -1) * 4]
    needed = draws_needed(hardest, [0.125] * 8, rejection_power.SIZE, rejection_power.POWER)
    assert needed == 28_357
    assert needed < 36_000 < rejection_power.MOST_DRAWS < 2 * needed
