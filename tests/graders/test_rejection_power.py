"""Problem set 04 judges a statistical test by running it: a right one fails in fewer than one of a million gradings."""

import random

from scipy import stats

from specdec_ref.lab.checks import rejection_power
from specdec_ref.proof import g_test


def trusts(sample, law):
    return g_test(sample(100_000), law).p_value >= rejection_power.SIZE


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


def test_a_size_of_one_percent_and_a_power_of_four_fifths_are_seen():
    limit = rejection_power._most_errors
    assert stats.binom.sf(limit(3_000, rejection_power.SIZE), 3_000, 0.01) > 0.99
    assert stats.binom.sf(limit(200, 1 - rejection_power.POWER), 200, 0.2) > 0.999
