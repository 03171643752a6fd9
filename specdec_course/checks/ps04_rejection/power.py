"""Check of a statistical test that the learner designed: it is run many times.

It is run on programs that are right and on programs that are not. Each count of its errors is compared with a limit
that a test with the stated size and power passes with a probability of 1e-7 (`most_errors`). There are seven such
counts, so a right test fails in fewer than one of a million gradings. The price is leniency: a size up to 0.6% or a
power down to 95% in the hardest case may pass; what is worse than that is found in 99 of 100 gradings.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from specdec_course.checks import Check, wrong
from specdec_course.checks.distributions import Distribution, as_bool, distance, random_distribution, show
from specdec_ref.proof import draws_needed, mixture

SIZE, POWER, DISTANCE, MOST_DRAWS = 0.001, 0.99, 0.02, 40_000
"""What the learner's test has to reach: its size, its power against this total variation, and its budget."""

RIGHT_RUNS, HARDEST_RUNS, RUNS = 2000, 1000, 200
"""Runs on each of three right programs, on the hardest fault, and on each other program."""

SECONDS = 60
"""What marking gives a cell by default."""


def most_errors(runs: int, rate: float) -> int:
    """A test with this error rate makes more errors than this with a probability below 1e-7."""
    return int(stats.binom.isf(1e-7, runs, rate))


class _Program:
    """A program that draws from one distribution, as sample(n) -> counts; refuses to go beyond the budget of a run.

    As many counts are drawn at a time as a run has room for: in a test that draws in small pieces, drawing is cheap.
    """

    def __init__(self, actual: Sequence[float], rng: random.Random) -> None:
        self._actual, self._generator = np.asarray(actual) / sum(actual), np.random.default_rng(rng.getrandbits(64))
        self._drawn: dict[int, list[list[int]]] = {}
        self.used = self.calls = 0

    def __call__(self, n: int) -> list[int]:
        n = int(n)
        self.used, self.calls = self.used + n, self.calls + 1
        if self.used > MOST_DRAWS:
            raise wrong(f"the test asks for {self.used:,} draws; {MOST_DRAWS:,} is all there is in one run")
        drawn = self._drawn.setdefault(n, [])
        if not drawn:
            drawn += self._generator.multinomial(n, self._actual, size=MOST_DRAWS // max(n, 1)).tolist()
        return drawn.pop()


class _Tally(NamedTuple):
    """Of some runs of a test: in how many it had no objection, and how much one asked for at most."""

    trusted: int
    draws: int
    calls: int


def _run(
    trusts: Callable[..., Any], distribution: Distribution, actual: Sequence[float], runs: int, rng: random.Random
) -> _Tally:
    """Run the test on a program that should have `distribution` and draws from `actual`."""
    program, trusted, draws, calls = _Program(actual, rng), 0, 0, 0
    for _ in range(runs):
        program.used = program.calls = 0
        trusted += as_bool(trusts(program, list(distribution)), "the test")
        draws, calls = max(draws, program.used), max(calls, program.calls)
    if not draws:
        raise wrong("the test drew nothing: sample(n) gives the counts of n draws.")
    return _Tally(trusted, draws, calls)


def _trusts_right(
    trusts: Callable[..., Any], distributions: Sequence[Distribution], runs: int, rng: random.Random
) -> None:
    """Raise CheckFailed where right programs with these distributions are blamed too often."""
    tallies = [_run(trusts, distribution, distribution, runs, rng) for distribution in distributions]
    runs, draws = runs * len(tallies), tallies[-1].draws
    alarms = runs - sum(tally.trusted for tally in tallies)
    if alarms <= most_errors(runs, SIZE):
        return
    likely = f"the border is too narrow for {draws:,} draws: by luck alone a share p moves by sqrt(p (1 - p) / n)."
    if alarms / runs < 0.15:
        likely = (
            f"a size of about {alarms / runs:.1%} where {SIZE:.1%} is wanted: is the border a p-value of {SIZE}? Does "
            "it look several times, at several tokens or batches, and raise the alarm if one of them is off?"
        )
    if alarms > 0.97 * runs:
        likely = "it blames every program: True has to mean that there is no objection."
    raise wrong(
        "programs that are right are blamed.",
        given=f"{runs} runs, each of a program whose distribution is right, such as {show(distributions[-1])}",
        got=f"an alarm in {alarms} of them",
        expected=f"a probability of at most {SIZE} in each, so at most {most_errors(runs, SIZE)} even with bad luck",
        mistake=likely,
    )


def _print_duration(trusts: Callable[..., Any], rng: random.Random) -> None:
    """Say how long it will take, where that is long: an answer that does not come looks like an error."""
    distribution, few = random_distribution(rng, 8), 10
    start = time.perf_counter()
    _run(trusts, distribution, distribution, few, rng)
    one = (time.perf_counter() - start) / few
    if one > 0.002:
        print(
            f"One run of your test takes {1000 * one:.0f} ms, and there are 8,000: {8000 * one:.0f} s. At marking, a "
            f"cell is stopped after {SECONDS} s. Work out what is always the same, such as draws_needed(...), once, "
            "outside of the function. One large sample(n) is faster than many small ones."
        )


def _trusts_size(trusts: Callable[..., Any], rng: random.Random) -> None:
    _print_duration(trusts, rng)
    # So many runs that a size of 0.6% shows: it would give about 36 alarms, and the limit is 22.
    _trusts_right(trusts, [random_distribution(rng, size) for size in (3, 5, 8)], RIGHT_RUNS, rng)


def _finds(
    trusts: Callable[..., Any],
    p: Distribution,
    actual: Distribution,
    fault: str,
    hint: str,
    rng: random.Random,
    runs: int,
) -> None:
    """Raise CheckFailed unless the test finds that a program that should have `p` draws from `actual`."""
    tally, allowed = _run(trusts, p, actual, runs, rng), most_errors(runs, 1 - POWER)
    if tally.trusted <= allowed:
        return
    draws, needed = tally.draws, draws_needed(actual, p, SIZE, POWER)
    likely = f"the border is too wide for {draws:,} draws; or: {hint}"
    if tally.calls > 1:
        likely = (
            f"the draws came in {tally.calls} pieces. Is each tested by itself? Such a test has the power of "
            f"{draws // tally.calls:,} draws only: add the counts up, and test the sum. Or: {hint}"
        )
    if tally.trusted == runs:
        likely = hint
    if draws < needed:
        likely = f"{draws:,} draws are too few: a G test of size {SIZE} needs {needed:,} for this fault (draws_needed)."
    raise wrong(
        f"a fault is not found: {fault}.",
        given=f"distribution = {show(p)}, what the program really draws from = {show(actual)}, {runs} runs",
        got=f"no objection in {tally.trusted} of {runs} runs, with {draws:,} draws in each",
        expected=f"found in {POWER:.0%} of the runs, so at most {allowed} of {runs} misses even with bad luck",
        mistake=likely,
    )


def _trusts_share(trusts: Callable[..., Any], rng: random.Random) -> None:
    """The article's rule in a share of the calls."""
    off = 0.0
    while off <= 2 * DISTANCE:
        p, q = (random_distribution(rng, size) for size in [rng.randrange(3, 6)] * 2)
        rejected = 1 - sum(map(min, p, q))
        article = [min(a, b) + rejected * a for a, b in zip(p, q, strict=True)]
        off = distance(article, p)
    fault = f"in {DISTANCE / off:.0%} of the calls the correction is drawn from p"
    hint = "does it ever return False? Does it look at all tokens, and at the distribution that it is given?"
    _finds(trusts, p, mixture(p, article, DISTANCE / off), fault, hint, rng, RUNS)


def _trusts_anywhere(trusts: Callable[..., Any], rng: random.Random) -> None:
    """Faults that a test of the mean, or of single tokens, does not see."""
    # The hardest case: most tokens, and a fault in proportion to the distribution. It gets the most runs.
    moves = rng.sample([DISTANCE / 4, -DISTANCE / 4] * 4, 8)
    fault = "half of the tokens come a little too often, half too seldom"
    hint = "a border for each token does not see a fault that is spread over all of them: add the deviations up."
    _finds(trusts, [1 / 8] * 8, [1 / 8 + move for move in moves], fault, hint, rng, HARDEST_RUNS)

    p, i = random_distribution(rng, 6), rng.randrange(1, 5)
    actual = [a + DISTANCE * {i - 1: -0.5, i: 1, i + 1: -0.5}.get(x, 0) for x, a in enumerate(p)]
    fault = f"token {i} comes too often, its two neighbours too seldom"
    hint = "the mean of the token numbers is right here, and says nothing: compare the whole distribution."
    _finds(trusts, p, actual, fault, hint, rng, RUNS)

    p = [0.0, 0.0]
    while sorted(p)[1] < 2 / 64:
        p = random_distribution(rng, 7)
    low, more = sorted(range(7), key=lambda x: p[x])[:2]
    actual = [a + DISTANCE * {more: -1, low: 1}.get(x, 0) for x, a in enumerate(p)]
    fault = f"token {low} comes in place of token {more}, both rare"
    _finds(trusts, p, actual, fault, "rare tokens count too: look at all of them.", rng, RUNS)


def _trusts_forbidden(trusts: Callable[..., Any], rng: random.Random) -> None:
    """A token of probability 0: no trouble where it never comes, an alarm where it does."""
    p = random_distribution(rng, 5, zeros=1)
    _trusts_right(trusts, [p], RUNS, rng)
    fault = f"a token of probability 0 comes in 1 of 1,000 draws, token {p.index(0)}"
    hint = "tokens of probability 0 are left out. One such token settles it."
    _finds(trusts, p, mixture(p, [float(a == 0) for a in p], 1 / 1000), fault, hint, rng, RUNS)


trusts = Check("trusts", [_trusts_size, _trusts_share, _trusts_anywhere, _trusts_forbidden])
