"""Check of problem set 04: a statistical test that the learner designed, run many times.

It is run on distributions that are right and on distributions that are not. Each count of its errors is compared with
a limit that a test with the stated size and power stays within but for a chance of 1e-7 (`_most_errors`). There are
seven such counts, so a right test is blamed in fewer than one of a million gradings. The price is leniency: a size up
to 0.6% or a power down to 95% in the hardest case may pass; what is worse than that is found in 99 of 100 gradings.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import stats

from specdec_course.checks import Check, CheckFailed, wrong
from specdec_course.checks.distributions import (
    Distribution,
    as_bool,
    floats,
    random_distribution,
    show,
    total_variation,
)
from specdec_ref.proof import draws_needed

SIZE, POWER, DISTANCE, MOST_DRAWS = 0.001, 0.99, 0.02, 40_000
"""What the learner's test is asked for: its size, its power against distributions at this total variation, and its
budget.
"""


def _most_errors(runs: int, rate: float) -> int:
    """More errors than this a test with this error rate makes with a probability below 1e-7."""
    return int(stats.binom.isf(1e-7, runs, rate))


class _Sampler:
    """sample(n): counts of n tokens from a program with this distribution; refuses to go beyond the budget."""

    def __init__(self, distribution: Sequence[float], generator: np.random.Generator) -> None:
        self._distribution, self._generator, self.used = np.asarray(distribution) / sum(distribution), generator, 0

    def __call__(self, n: int) -> list[int]:
        self.used += int(n)
        if self.used > MOST_DRAWS:
            raise wrong(f"the test asks for {self.used:,} draws; {MOST_DRAWS:,} is all there is in one run")
        return [int(c) for c in self._generator.multinomial(int(n), self._distribution)]


def _trusted(
    trusts: Callable[..., Any], distribution: Sequence[Any], actual: Sequence[Any], runs: int, rng: random.Random
) -> tuple[int, int]:
    """In how many of `runs` runs the test trusts a program with the distribution `actual`; and the draws that one run
    took.
    """
    generator, trusted, used = np.random.default_rng(rng.getrandbits(64)), 0, 0
    for _ in range(runs):
        sample = _Sampler(floats(actual), generator)
        trusted += as_bool(trusts(sample, floats(distribution)), "the test")
        used = max(used, sample.used)
    if not used:
        raise wrong("the test drew nothing: sample(n) gives the counts of n draws")
    return trusted, used


def _blame(alarms: int, runs: int, used: int, distribution: Sequence[Any]) -> CheckFailed:
    if alarms > 0.97 * runs:
        likely = "it blames every program: True has to mean that there is no objection."
    elif alarms / runs < 0.15:
        likely = (
            f"a size of about {alarms / runs:.1%} where {SIZE:.1%} is wanted: is the border a p-value of {SIZE}? Does "
            "it look several times, at several tokens or batches, and raise the alarm if one of them is off?"
        )
    else:
        likely = f"the border is too narrow for {used:,} draws: chance alone moves a share p by sqrt(p (1 - p) / n)."
    return wrong(
        "programs that are right are blamed",
        given=f"{runs} runs, each of a program whose distribution is right, such as {show(distribution)}",
        got=f"an alarm in {alarms} of them",
        expected=f"a chance of at most {SIZE} in each, so at most {_most_errors(runs, SIZE)} even with bad luck",
        mistake=likely,
    )


def _tell_duration(trusts: Callable[..., Any], rng: random.Random) -> None:
    """Say how long it will take, where that is long: an answer that does not come looks like an error."""
    distribution, runs = random_distribution(rng, 8), 10
    start = time.perf_counter()
    _trusted(trusts, distribution, distribution, runs, rng)
    one = (time.perf_counter() - start) / runs
    if one > 0.002:
        print(
            f"One run of your test takes {1000 * one:.0f} ms, and there are about 8,000: {8000 * one:.0f} s. Numbers "
            "that are always the same, such as draws_needed(...), are better worked out once, outside of the function."
        )


def _trusts_size(trusts: Callable[..., Any], rng: random.Random) -> None:
    # So many that a size of 0.6% shows: it would give about 36 alarms, and the limit is 22.
    alarms, most_used, runs = 0, 0, 2000
    _tell_duration(trusts, rng)
    for size in (3, 5, 8):
        distribution = random_distribution(rng, size)
        trusted, used = _trusted(trusts, distribution, distribution, runs, rng)
        alarms, most_used = alarms + runs - trusted, max(most_used, used)
    if alarms > _most_errors(3 * runs, SIZE):
        raise _blame(alarms, 3 * runs, most_used, distribution)


def _finds(
    trusts: Callable[..., Any],
    distribution: Distribution,
    actual: Sequence[Any],
    fault: str,
    hint: str,
    rng: random.Random,
    runs: int = 200,
) -> None:
    missed, used = _trusted(trusts, distribution, actual, runs, rng)
    allowed = _most_errors(runs, 1 - POWER)
    if missed <= allowed:
        return
    needed = draws_needed(floats(actual), floats(distribution), SIZE, POWER)
    if used < needed:
        likely = f"{used:,} draws are too few: a G test of size {SIZE} needs {needed:,} for this fault (draws_needed)."
    elif missed == runs:
        likely = hint
    else:
        likely = f"the border is too wide for {used:,} draws. {hint[0].upper()}{hint[1:]}"
    raise wrong(
        f"a fault is not found: {fault}",
        given=f"distribution = {show(distribution)}, what the program really draws from = {show(actual)}, {runs} runs",
        got=f"no objection in {missed} of {runs} runs, with {used:,} draws in each",
        expected=f"found in {POWER:.0%} of the runs, so at most {allowed} of {runs} misses even with bad luck",
        mistake=likely,
    )


def _trusts_share(trusts: Callable[..., Any], rng: random.Random) -> None:
    """The article's rule in a share of the calls."""
    while True:
        size = rng.randrange(3, 6)
        p, q = random_distribution(rng, size), random_distribution(rng, size)
        beta = sum(map(min, p, q))
        article = [min(a, b) + (1 - beta) * a for a, b in zip(p, q, strict=True)]
        off = total_variation(article, p)
        if off > 2 * DISTANCE:
            break
    share = Fraction(DISTANCE / off)
    actual = [(1 - share) * a + share * b for a, b in zip(p, article, strict=True)]
    hint = "does it ever return False? Does it look at all tokens, and at the distribution that it is given?"
    _finds(trusts, p, actual, f"in {float(share):.0%} of the calls the correction is drawn from p", hint, rng)


def _trusts_anywhere(trusts: Callable[..., Any], rng: random.Random) -> None:
    """Faults that a test of the mean, or of single tokens, does not see."""
    off = Fraction(2, 100)
    # The hardest case: most tokens, and a fault in proportion to the distribution. Looked at closely, with 1,000 runs.
    distribution = [Fraction(1, 8)] * 8
    signs = [1] * 4 + [-1] * 4
    rng.shuffle(signs)
    hint = "a border for each token does not see a fault that is spread over all of them: add the deviations up."
    spread = [a + s * off / 4 for a, s in zip(distribution, signs, strict=True)]
    _finds(
        trusts,
        distribution,
        spread,
        "half of the tokens come a little too often, half too seldom",
        hint,
        rng,
        runs=1000,
    )

    distribution = random_distribution(rng, 6)
    i = rng.randrange(1, 5)
    mean = list(distribution)
    mean[i - 1], mean[i], mean[i + 1] = (
        distribution[i - 1] - off / 2,
        distribution[i] + off,
        distribution[i + 1] - off / 2,
    )
    hint = "the mean of the token numbers is right here, and says nothing: compare the whole distribution."
    _finds(trusts, distribution, mean, f"token {i} comes too often, its two neighbours too seldom", hint, rng)

    distribution = random_distribution(rng, 7)
    while sorted(distribution)[1] < Fraction(2, 64):
        distribution = random_distribution(rng, 7)
    low, more = sorted(range(7), key=lambda j: distribution[j])[:2]
    moved = list(distribution)
    moved[more], moved[low] = distribution[more] - off, distribution[low] + off
    hint = "rare tokens count too: look at all of them."
    _finds(trusts, distribution, moved, f"token {low} comes in place of token {more}, both rare", hint, rng)


def _trusts_forbidden(trusts: Callable[..., Any], rng: random.Random) -> None:
    """A token of probability 0: no trouble where it never comes, an alarm where it does."""
    distribution = random_distribution(rng, 5, zeros=1)
    runs = 200
    trusted, used = _trusted(trusts, distribution, distribution, runs, rng)
    if runs - trusted > _most_errors(runs, SIZE):
        raise _blame(runs - trusted, runs, used, distribution)
    never = distribution.index(Fraction(0))
    actual = [a * Fraction(999, 1000) for a in distribution]
    actual[never] = Fraction(1, 1000)
    missed, used = _trusted(trusts, distribution, actual, runs, rng)
    if missed > _most_errors(runs, 1 - POWER):
        raise wrong(
            f"a token of probability 0 came out in 1 of 1,000 draws, and was not noticed: token {never}",
            given=f"distribution = {show(distribution)}",
            got=f"no objection in {missed} of {runs} runs, with {used:,} draws in each",
            mistake="tokens of probability 0 are left out. One such token settles it."
            if used >= 5_000
            else f"{used:,} draws are too few to see it at all: the chance not to is 0.999^n.",
        )


trusts = Check("trusts", [_trusts_size, _trusts_share, _trusts_anywhere, _trusts_forbidden])
