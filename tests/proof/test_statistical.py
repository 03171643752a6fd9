"""Tests of tests: their size, their power, and what the suite says about the code as it is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from specdec_ref.proof import (
    Scenario,
    draws_needed,
    emitted_distribution,
    fractions,
    g_test,
    holm,
    mixture,
    planted,
    power,
)
from specdec_ref.proof.goodness import MIN_EXPECTED
from specdec_ref.proof.mutants import MUTANTS
from specdec_ref.proof.statistical import (
    ARTICLE,
    MILLION,
    P1,
    Q1,
    SIZE,
    StatisticalCheck,
    generator_checks,
    plain_checks,
    run_suite,
    suite,
    verify_article,
)
from specdec_ref.sampling import RandomSource

P, Q = [0.6, 0.3, 0.1], [0.1, 0.3, 0.6]


# The G test


@pytest.mark.parametrize("counts", [[612, 285, 103], [680, 320, 0], [600, 300, 100]])
def test_g_test_agrees_with_scipy(counts):
    theirs = stats.power_divergence(counts, np.array(P) * 1000, lambda_="log-likelihood")
    ours = g_test(counts, P)
    assert (ours.statistic, ours.p_value) == pytest.approx((theirs.statistic, theirs.pvalue))
    assert ours.dof == 2


def test_g_test_of_an_impossible_outcome():
    assert g_test([500, 499, 1], [0.5, 0.5, 0.0]).p_value == 0
    assert g_test([500, 500, 0], [0.5, 0.5, 0.0]).dof == 1


def test_g_test_of_a_certain_distribution():
    assert g_test([50], [1.0]).p_value == 1


@pytest.mark.parametrize(
    ("counts", "distribution", "match"),
    [([100, 3], [0.99, 0.01], "draw more"), ([50, 50], [0.5, 0.6], "sum"), ([50, 50], [1.0], "2 counts")],
)
def test_g_test_refuses(counts, distribution, match):
    with pytest.raises(ValueError, match=match):
        g_test(counts, distribution)


def test_size_is_what_it_says():
    """20,000 runs of correct code: as many p-values below each size as there should be, up to 5 sigma."""
    runs, draws = 20_000, 4_000
    rng = np.random.default_rng(3)
    p_values = np.array([g_test(counts, P).p_value for counts in rng.multinomial(draws, P, size=runs)])
    for size in (0.1, 0.01, 0.001):
        assert abs((p_values < size).sum() - size * runs) < 5 * np.sqrt(size * runs)


def test_size_with_cells_as_small_as_allowed():
    distribution = [1 - 0.02, 0.01, 0.01]
    draws = int(MIN_EXPECTED / 0.01) + 1
    rng = np.random.default_rng(4)
    p_values = np.array(
        [g_test(counts, distribution).p_value for counts in rng.multinomial(draws, distribution, size=20_000)]
    )
    assert (p_values < 1e-3).mean() < 2e-3


def test_power_is_what_it_says():
    """The noncentral chi-square against simulation, at sizes where a simulation can tell."""
    rng = np.random.default_rng(5)
    fault = mixture(P, ARTICLE, 0.10)
    for draws, size in ((5_000, 0.01), (12_000, 0.01), (12_000, 1e-4)):
        stated = power(fault, P, draws, size)
        seen = np.mean([g_test(c, P).p_value < size for c in rng.multinomial(draws, fault, size=4_000)])
        assert seen == pytest.approx(stated, abs=0.03)


def test_draws_needed_for_the_article():
    """2% of the article's distribution, 99% power at size 1e-6: about 0.84 million draws, and no fewer."""
    fault = mixture(P, ARTICLE, 0.02)
    draws = draws_needed(fault, P, 1e-6)
    assert 840_000 < draws < 850_000
    assert power(fault, P, draws, 1e-6) >= 0.99 > power(fault, P, draws - 1, 1e-6)
    with pytest.raises(ValueError, match="equal"):
        draws_needed(P, P, 1e-6)


def test_power_against_an_outcome_that_cannot_be():
    assert power([0.9, 0.0, 0.1], [0.9, 0.1, 0.0], 50, 1e-6) == pytest.approx(1 - 0.9**50)


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.005], 0.05) == [True, False, False, True]
    assert holm([0.2, 0.6], 0.05) == [False, False]
    assert holm([0.01, 0.02, 0.024], 0.05) == [True, True, True]
    assert holm([], 0.05) == []


def test_holm_keeps_the_familywise_size():
    """Ten true hypotheses, 20,000 times: at least one falls in no more than 5% of the runs (5 sigma of slack)."""
    rng = np.random.default_rng(6)
    blamed = sum(any(holm(list(row), 0.05)) for row in rng.random((20_000, 10)))
    assert blamed < 0.05 * 20_000 + 5 * np.sqrt(0.05 * 20_000)


# The article


def test_the_articles_distribution_is_the_one_that_it_is_said_to_be():
    distribution = emitted_distribution(verify_article, fractions([".6", ".3", ".1"]), fractions([".1", ".3", ".6"]))
    assert distribution == fractions([".4", ".45", ".15"]) and [float(x) for x in distribution] == pytest.approx(
        ARTICLE
    )
    assert (P1.tolist(), Q1.tolist()) == (P, Q)
    with planted(next(m for m in MUTANTS if m.name == "residual with q = 0")):
        assert emitted_distribution("token", P, Q) == pytest.approx(ARTICLE)


# The suite


@pytest.fixture(scope="module")
def checks():
    return suite()


def test_suite_finds_nothing(checks):
    findings = run_suite(seed=0, checks=checks)
    assert [f for f in findings if f.failed] == []
    assert len(findings) == len(checks) == len({f.name for f in findings})


def test_every_check_has_power(checks):
    """At the strictest size that Holm can ask for, each names a fault that it finds with 99% probability."""
    for check in checks:
        powers = check.power(SIZE / len(checks))
        assert powers and all(p >= 0.99 for p in powers.values()), check.name


def test_rule_tests_are_large_enough(checks):
    first = [c for c in checks if c.name in ("batched token: first token", "batched block: first token")]
    assert len(first) == 2 and all(c.draws == MILLION >= 1_100_000 for c in first)
    assert all("the article's distribution, 2%" in c.faults for c in first)


def test_suite_is_seeded():
    check = generator_checks()[0]
    assert check.test(3) == check.test(3) != check.test(4)


def test_an_unknown_outcome_settles_it():
    check = StatisticalCheck("x", {0: 0.5, 1: 0.5}, lambda draws, seed: [2, *[0, 1] * draws], 100)
    assert check.test().p_value == 0


@pytest.mark.parametrize("name", ["p after a rejection", "residual softmaxed", "ratio upside down"])
def test_plain_checks_find_large_faults_of_the_rule(name):
    """The counts alone would have found them, without any enumeration."""
    check = next(c for c in plain_checks() if c.name == "rule token: first two tokens")
    with planted(next(m for m in MUTANTS if m.name == name)):
        assert check.test().p_value < SIZE / 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_suite_finds_nothing_with_other_seeds(checks, seed):
    assert [f for f in run_suite(seed, checks) if f.failed] == []


@pytest.mark.slow
def test_many_generations_of_the_loop():
    """Outputs of three tokens, their joint distribution, from 30,000 generations."""
    scenario = Scenario(prompt=(0,), budget=3)
    engine, distribution = scenario.engine(), scenario.expected()

    counts = dict.fromkeys(distribution, 0)
    for seed in range(30_000):
        counts[tuple(scenario.generate(engine, RandomSource(seed)).tokens)] += 1
    assert g_test(list(counts.values()), list(distribution.values())).p_value > 1e-6
