"""The checks of the smallest problem set: a model for new ones, and what the tests of the grading are run on.

It is here, and not among the tests, because submissions are marked in a sandbox that holds nothing but the packages.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from specdec_course.checks import Check, wrong

Function = Callable[[Sequence[float], Sequence[float]], float]


def _draw(rng: random.Random, n: int) -> list[float]:
    weights = [rng.random() + 0.01 for _ in range(n)]
    return [w / sum(weights) for w in weights]


def _different_distributions(acceptance: Function, rng: random.Random) -> None:
    p, q = _draw(rng, 5), _draw(rng, 5)
    got, expected = acceptance(p, q), 1 - sum(abs(a - b) for a, b in zip(p, q)) / 2
    if got is None or not abs(got - expected) <= 1e-9:  # so that NaN is wrong
        largest = sum(map(max, p, q))
        mistake = "the larger of p and q was taken, not the smaller" if got and abs(got - largest) < 1e-9 else ""
        raise wrong("the acceptance of two distributions", given=(p, q), got=got, expected=expected, mistake=mistake)


def _equal_distributions(acceptance: Function, rng: random.Random) -> None:
    p = _draw(rng, 3)
    if not abs(acceptance(p, p) - 1) <= 1e-9:
        raise wrong("a draft equal to the target is always accepted", given=p, got=acceptance(p, p), expected=1)


def _any_numbers(mean: Callable[[Sequence[float]], float], rng: random.Random) -> None:
    values = [rng.randrange(10) for _ in range(rng.randrange(2, 9))]
    if not abs(mean(values) - sum(values) / len(values)) <= 1e-9:
        raise wrong("the mean", given=values, got=mean(values), expected=sum(values) / len(values))


acceptance = Check("acceptance", [_different_distributions, _equal_distributions])
mean = Check("mean", [_any_numbers])
