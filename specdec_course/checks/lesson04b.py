"""The blanks of lesson 04b: the distribution of a program that goes wrong now and then, and the G statistic."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from specdec_course.checks import Blank
from specdec_course.checks import distributions as dist
from specdec_course.checks.distributions import random_distribution
from specdec_course.checks.mistakes import NUMBER, Case, Judge, Mistake, judged, mistakes


def mixture(right: Sequence[float], wrong: Sequence[float], share: float) -> list[float]:
    """The distribution of a program that draws from `wrong` in a `share` of its calls, and from `right` else."""
    return [(1 - share) * a + share * b for a, b in zip(right, wrong)]


_MIXTURE = Judge(
    "The distribution",
    mixture,
    mistakes(
        lambda each: lambda right, wrong, share: [each(a, b, share) for a, b in zip(right, wrong)],
        {
            "right and wrong are swapped: `share` is that of the wrong one.": lambda a, b, s: s * a + (1 - s) * b,
            "the right part keeps all its mass: it comes in 1 - share of the calls.": lambda a, b, s: a + s * b,
            "that is the mean of both, whatever the share.": lambda a, b, s: (a + b) / 2,
            "only the wrong part is there.": lambda a, b, s: s * b,
            "only the right part is there.": lambda a, b, s: (1 - s) * a,
        },
    ),
    dist.DISTRIBUTION,
)


def _mixtures(rng: random.Random) -> Iterator[Case]:
    for share in (0.25, 0.02, 0.0, 1.0):
        yield random_distribution(rng, 4), random_distribution(rng, 4), share


def g_statistic(counts: Sequence[int], distribution: Sequence[float]) -> float:
    """G = 2 sum of count * ln(count / expected), expected = number of draws * probability; a count of 0 adds 0."""
    draws = sum(counts)
    return 2 * sum(c * math.log(c / (draws * p)) for c, p in zip(counts, distribution) if c > 0)


def _g(
    term: Callable[[float, float], float], factor: float, counts: Sequence[int], distribution: Sequence[float]
) -> float:
    draws = sum(counts)
    return factor * sum(term(c, draws * p) for c, p in zip(counts, distribution) if c > 0)


_G = Judge(
    "G",
    g_statistic,
    [
        *mistakes(
            lambda term: partial(_g, term, 2),
            {
                "a logarithm to base 10: the natural one is meant, math.log.": lambda c, e: c * math.log10(c / e),
                "a logarithm to base 2: the natural one is meant, math.log.": lambda c, e: c * math.log2(c / e),
                "expected / count in the logarithm: it is count / expected.": lambda c, e: c * math.log(e / c),
                "the logarithm is weighted with the expected count: weight it with the count.": (
                    lambda c, e: e * math.log(c / e)
                ),
                "the logarithms are not weighted: each is multiplied by its count.": lambda c, e: math.log(c / e),
            },
        ),
        Mistake("half of it: a factor of 2 stands in front.", partial(_g, lambda c, e: c * math.log(c / e), 1)),
        Mistake(
            "that is Pearson's sum of (count - expected)^2 / expected, a close relative: G is 2 sum count ln(...).",
            lambda counts, distribution: sum(
                (c - sum(counts) * p) ** 2 / (sum(counts) * p) for c, p in zip(counts, distribution)
            ),
        ),
    ],
    NUMBER,
)


def _counts(rng: random.Random) -> Iterator[Case]:
    """Counts around what is expected; then some with a 0."""
    for zeros in (0, 0, 1):
        p = random_distribution(rng, 4)
        counts = [round(1000 * x * rng.uniform(0.6, 1.5)) + 1 for x in p]
        counts[: 2 * zeros : 2] = [0] * zeros
        yield counts, p


BLANKS = {
    "mixture": Blank(judged("mixture", _MIXTURE, mixtures=_mixtures), mixture),
    "g": Blank(judged("g_statistic", _G, counts=_counts), g_statistic),
}
