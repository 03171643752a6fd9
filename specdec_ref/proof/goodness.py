"""Tests of counts against a distribution, with a stated size and a stated power.

*Size* is the probability of blaming correct code, *power* that of catching a named fault. A test without the second
number says nothing when it passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special, stats

MIN_EXPECTED = 25.0
"""Smallest expected count of a cell: below it the chi-square tail is not to be trusted at sizes of 1e-6."""


class GTest(NamedTuple):
    """G = 2 sum observed ln(observed / expected), its degrees of freedom, and the p-value."""

    statistic: float
    dof: int
    p_value: float


def g_test(counts: Sequence[float], distribution: Sequence[float]) -> GTest:
    """Test that `counts` were drawn independently from `distribution` (same length, sums to one).

    Under the distribution G follows a chi-square distribution with (cells of positive probability - 1) degrees of
    freedom, for large counts. A count in a cell of probability 0 settles it: p-value 0.
    Raises ValueError where a cell expects fewer than MIN_EXPECTED counts.
    """
    observed, probability = np.asarray(counts, float), np.asarray(distribution, float)
    if observed.shape != probability.shape or abs(probability.sum() - 1) > 1e-9:
        raise ValueError(
            f"need one probability per cell and a sum of 1: {len(observed)} counts, {len(probability)} probabilities "
            f"with sum {probability.sum():.6f}"
        )
    possible = probability > 0
    dof = int(possible.sum()) - 1
    if observed[~possible].any():
        return GTest(float("inf"), dof, 0.0)
    observed, expected = observed[possible], observed.sum() * probability[possible]
    if expected.min() < MIN_EXPECTED:
        raise ValueError(
            f"a cell expects {expected.min():.1f} counts, at least {MIN_EXPECTED:.0f} are needed: draw more, or put "
            "rare outcomes together"
        )
    if not dof:
        return GTest(0.0, 0, 1.0)
    # As scipy.stats.power_divergence, which takes ten times as long to call: a test may be run thousands of times.
    statistic = 2 * float(special.xlogy(observed, observed / expected).sum())
    return GTest(statistic, dof, float(special.chdtrc(dof, statistic)))


def power(alternative: Sequence[float], distribution: Sequence[float], draws: int, size: float) -> float:
    """Probability that `g_test` of `draws` draws from `alternative` gives a p-value below `size`.

    Noncentral chi-square with noncentrality 2 n KL(alternative || distribution); 1 where the alternative can leave
    the distribution's cells and so give itself away (then the power is 1 minus the probability that it never does).
    """
    a, p = np.asarray(alternative, float), np.asarray(distribution, float)
    if (a[p == 0] > 0).any():
        return float(1 - (1 - a[p == 0].sum()) ** draws)
    dof = int((p > 0).sum()) - 1
    inside = a > 0
    noncentrality = 2 * draws * float((a[inside] * np.log(a[inside] / p[inside])).sum())
    return float(stats.ncx2.sf(stats.chi2.isf(size, dof), dof, noncentrality))


def draws_needed(
    alternative: Sequence[float], distribution: Sequence[float], size: float, wanted_power: float = 0.99
) -> int:
    """The fewest draws with which `power` reaches `wanted_power`. Raises ValueError where the distributions are
    equal.
    """
    if np.abs(np.asarray(alternative, float) - np.asarray(distribution, float)).max() < 1e-12:
        raise ValueError("alternative and distribution are equal: no number of draws can separate them")
    low, high = 0, 1
    while power(alternative, distribution, high, size) < wanted_power:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(alternative, distribution, middle, size) >= wanted_power else (middle, high)
    return high


def mixture(distribution: Sequence[float], fault: Sequence[float], share: float) -> list[float]:
    """The distribution of a program that goes wrong in a `share` of its draws."""
    return [(1 - share) * p + share * f for p, f in zip(distribution, fault, strict=True)]


def holm(p_values: Sequence[float], size: float) -> list[bool]:
    """Which hypotheses to reject so that the probability of rejecting any true one stays below `size` (Holm 1979).

    The smallest p-value is compared with size / m, the next with size / (m - 1), and so on up to the first that stands.
    """
    rejected = [False] * len(p_values)
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[i] >= size / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected
