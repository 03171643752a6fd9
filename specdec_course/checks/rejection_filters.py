"""Checks of problem set 04: top-p, on one side and on both."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from specdec_course.checks import Check, wrong
from specdec_course.checks.distributions import (
    ROUNDING,
    Distribution,
    argmax,
    as_list,
    as_numbers,
    as_pair,
    as_token,
    exact_distribution,
    floats,
    likely_slip,
    one_hot,
    random_distribution,
    residual_of,
    same_distribution,
    scaled,
    show,
)
from specdec_ref.sampling import RandomSource


def _nucleus(distribution: Distribution, mass: Fraction) -> tuple[int, ...]:
    """The smallest set with this mass, of the most likely tokens, lowest ids first: found among all sets."""
    sets = (s for n in range(1, len(distribution) + 1) for s in itertools.combinations(range(len(distribution)), n))
    enough = [s for s in sets if sum(distribution[i] for i in s) >= mass]
    return min(enough, key=lambda s: (len(s), -sum(distribution[i] for i in s), s))


def _kept(distribution: Sequence[Any], tokens: Sequence[int]) -> list[Any]:
    return [x if i in tokens else 0 * x for i, x in enumerate(distribution)]


def _cut(distribution: Distribution, mass: Fraction) -> Distribution:
    return scaled(_kept(distribution, _nucleus(distribution, mass)))


def _look_at_top_p(top_p: Callable[..., Any], distribution: Distribution, mass: Fraction) -> None:
    given = floats(distribution)
    got = as_numbers(top_p(given, float(mass)), "what top_p returns")
    kept = _nucleus(distribution, mass)
    expected = scaled(_kept(distribution, kept))
    if same_distribution(got, expected):
        return
    order = sorted(range(len(distribution)), key=lambda i: -distribution[i])
    reverse = sorted(range(len(distribution)), key=lambda i: (-distribution[i], -i))
    slips: dict[str, Sequence[Any]] = {
        "the right tokens are left, but their sum is not one: divide by it.": _kept(distribution, kept),
        "the likeliest tokens in sorted order: each token keeps its place, so p[x] is still token x.": sorted(
            expected, reverse=True
        ),
        "of equally likely tokens at the border the lowest ids stay.": scaled(
            _kept(distribution, reverse[: len(kept)])
        ),
    }
    if len(kept) > 1:
        fewer = scaled(_kept(distribution, order[: len(kept) - 1]))
        slips["the token that crosses the threshold was dropped: it stays."] = fewer
        slips["the token that crosses the threshold was dropped: it stays (and divide by the sum)."] = _kept(
            distribution, order[: len(kept) - 1]
        )
    if sum(distribution[i] for i in kept) == mass:
        more = scaled(_kept(distribution, order[: len(kept) + 1]))
        slips["one token too many: where the sum reaches the mass exactly, that token is the last."] = more
    slips["divided by the mass: what is left holds a little more, divide by its own sum."] = [
        a / mass for a in _kept(distribution, kept)
    ]
    tied = scaled([a if a >= distribution[order[len(kept) - 1]] else 0 for a in distribution])
    slips["of equally likely tokens at the border only as many stay as are needed, the lowest ids."] = tied
    slips["a threshold for single tokens; top-p asks for a sum."] = scaled(
        [a if a >= 1 - mass else 0 for a in distribution]
    )
    slips["a border relative to the likeliest token (min-p); top-p asks for a sum."] = scaled(
        [a if a >= (1 - mass) * max(distribution) else 0 for a in distribution]
    )
    unsorted = next(n for n in range(1, len(distribution) + 1) if sum(distribution[:n]) >= mass)
    if unsorted < len(distribution):
        slips["the tokens were taken as they stand, not from the likeliest down."] = scaled(
            _kept(distribution, range(unsorted))
        )
    slips["nothing was cut."] = distribution
    slips["one token too many: the one that reaches the mass is the last."] = scaled(
        _kept(distribution, order[: len(kept) + 1])
    )
    raise wrong(
        "top_p is off",
        given=f"distribution = {show(distribution)}, mass = {float(mass):.4g}",
        got=show(got),
        expected=f"{show(expected)}: tokens {list(kept)} with a sum of {float(sum(distribution[i] for i in kept)):.4g}",
        mistake=likely_slip(got, slips)
        if len(got) == len(distribution)
        else f"one number for each of the {len(distribution)} tokens is wanted, 0 for those that are left out.",
    )


def _untied_distribution(rng: random.Random, size: int) -> Distribution:
    """A distribution without equal tokens: these are the matter of `_top_p_ties`."""
    distribution = random_distribution(rng, size)
    while len(set(distribution)) < size:
        distribution = random_distribution(rng, size)
    return distribution


def _top_p_crossing(top_p: Callable[..., Any], rng: random.Random) -> None:
    """The sum passes the mass inside a token."""
    for size in (8, 3, 5, rng.randrange(6, 9)):
        while True:
            distribution = _untied_distribution(rng, size)
            ordered, n = sorted(distribution, reverse=True), rng.randrange(1, size - 1)
            mass = sum(ordered[:n]) + ordered[n] / 2
            single, relative = (sum(a >= (1 - mass) * top for a in distribution) for top in (1, ordered[0]))
            # In the first distribution the borders of other filters leave a number of tokens that no other slip does.
            others = {single, relative, n, n + 1, n + 2}
            if size < 8 or (len(others) == 5 and min(single, relative) > 0 and max(single, relative) < 8):
                break
        _look_at_top_p(top_p, distribution, mass)


def _top_p_exact(top_p: Callable[..., Any], rng: random.Random) -> None:
    """The sum reaches the mass with a token."""
    for size in (3, 5, rng.randrange(6, 9)):
        distribution = _untied_distribution(rng, size)
        n = rng.randrange(1, size)
        _look_at_top_p(top_p, distribution, sum(sorted(distribution, reverse=True)[:n], Fraction(0)))


def _top_p_ends(top_p: Callable[..., Any], rng: random.Random) -> None:
    """A mass of one keeps all that is possible, a tiny mass keeps one token."""
    _look_at_top_p(top_p, random_distribution(rng, 5, zeros=1), Fraction(1))
    _look_at_top_p(top_p, random_distribution(rng, 4), Fraction(1, 128))
    distribution = random_distribution(rng, 5, zeros=2)
    before = floats(distribution)
    given = list(before)
    top_p(given, 0.5)
    if given != before:
        raise wrong("top_p changes the list that it is given", got=show(given), expected=show(before))


def _top_p_ties(top_p: Callable[..., Any], rng: random.Random) -> None:
    parts = [Fraction(n, 64) for n in (8, 8, 8, 8, 20, 12)]
    rng.shuffle(parts)
    for n in (1, 2, 3):
        _look_at_top_p(top_p, parts, Fraction(32 + 8 * n - 4, 64))


top_p = Check("top_p", [_top_p_crossing, _top_p_exact, _top_p_ends, _top_p_ties])


def _two_nuclei(rng: random.Random) -> tuple[Distribution, Distribution, Fraction]:
    """p, q and a mass at which both lose something, not the same, and one token can be kept or dropped."""
    while True:
        p, q, mass = (
            random_distribution(rng, 5),
            random_distribution(rng, 5),
            Fraction(2 * rng.randrange(40, 58) + 1, 128),
        )
        a, b = set(_nucleus(p, mass)), set(_nucleus(q, mass))
        shared = [x for x in a & b if _cut(p, mass)[x] < _cut(q, mass)[x]]
        untied = len(set(p)) == len(set(q)) == 5
        if not (untied and shared and a - b and b - a and 2 <= len(a) < 5 and 2 <= len(b) < 5):
            continue
        if len(_nucleus(_cut(q, mass), mass)) < len(b):  # a second filter takes more
            return p, q, mass


def _both_draft(propose: Callable[..., Any], judge: Callable[..., Any], rng: random.Random) -> None:
    """What the draft's side draws, and what it says that it drew from."""
    for _ in range(3):
        _, q, mass = _two_nuclei(rng)
        expected = _cut(q, mass)

        def program(source: RandomSource, q: Distribution = q, mass: Fraction = mass) -> tuple[int, tuple[float, ...]]:
            x, reported = as_pair(propose(floats(q), float(mass), source), "propose")
            return as_token(x, "the draft"), tuple(as_numbers(reported, "the reported distribution"))

        distribution = exact_distribution(program, certain=True)
        drawn: dict[int, float] = {}
        for (x, _), share in distribution.items():
            drawn[x] = drawn.get(x, 0.0) + share
        given = f"q = {show(q)}, mass = {float(mass):.4g}"
        got = as_list(drawn, len(q))
        if not same_distribution(got, expected):
            slips: dict[str, Sequence[Any]] = {
                "the draft is drawn from q before the filter.": q,
                "the likeliest token is taken: it has to be drawn.": one_hot(len(q), argmax(q)),
            }
            raise wrong(
                "drafts do not follow the filtered distribution",
                given=given,
                got=f"distribution of the draft {show(got)}",
                expected=show(expected),
                mistake=likely_slip(got, slips),
            )
        for _, reported in distribution:
            if not same_distribution(reported, expected):
                slips = {
                    "this is q before the filter: report the distribution that the draft was drawn from.": q,
                    "filtered, but not scaled to one: the draft was drawn from the scaled distribution.": _kept(
                        q, _nucleus(q, mass)
                    ),
                    "this distribution was filtered twice.": _cut(expected, mass),
                }
                raise wrong(
                    "the reported distribution is not the one that the draft was drawn from",
                    given=given,
                    got=f"reported {show(reported)}",
                    expected=show(expected),
                    mistake=likely_slip(reported, slips),
                )


def _judged(x: int, p: Sequence[Any], reported: Sequence[Any], rest: Sequence[Any] | None = None) -> list[Any]:
    """The distribution of what comes out of a draft x from `reported`, tested against p, else drawn from `rest`."""
    keep = min(Fraction(1), p[x] / reported[x])
    rest = residual_of(p, reported) if rest is None else rest
    return [(y == x) * keep + (1 - keep) * r for y, r in enumerate(rest)]


def _both_target(propose: Callable[..., Any], judge: Callable[..., Any], rng: random.Random) -> None:
    """The target's side alone, with a draft and a distribution that are right."""
    for _ in range(3):
        p, q, mass = _two_nuclei(rng)
        reported, cut = _cut(q, mass), _cut(p, mass)
        for x in sorted(_nucleus(q, mass), key=lambda x: -q[x]):

            def program(
                source: RandomSource, x: int = x, p: Distribution = p, r: Distribution = reported, m: Fraction = mass
            ) -> int:
                return as_token(judge(floats(p), x, floats(r), float(m), source), "what judge returns")

            got, expected = as_list(exact_distribution(program, certain=True), 5), _judged(x, cut, reported)
            if same_distribution(got, expected):
                continue
            unscaled, again = _kept(p, _nucleus(p, mass)), _cut(reported, mass)
            slips: dict[str, Sequence[Any]] = {
                "the token is drawn from the filtered p, whatever the draft is: keep the draft, or make up for it, by "
                "the rule of part 1.": cut,
                "the target's distribution was not filtered.": _judged(x, p, reported),
                "the test uses p before the filter, the residual p after it.": _judged(
                    x, p, reported, rest=residual_of(cut, reported)
                ),
                "the test uses p after the filter, the residual p before it.": _judged(
                    x, cut, reported, rest=residual_of(p, reported)
                ),
                "after a rejection the token comes from the filtered p, not from the residual.": _judged(
                    x, cut, reported, rest=cut
                ),
                "p was cut to the tokens that the draft kept: the filter looks at p alone.": _judged(
                    x, scaled(_kept(p, _nucleus(q, mass))), reported
                ),
                "p was filtered, but not scaled to one.": _judged(x, unscaled, reported),
                "the draft itself comes out, untested.": one_hot(5, x),
            }
            if again[x] > 0:
                slips["the reported distribution was filtered a second time: the draft was drawn from it as it is."] = (
                    _judged(x, cut, again)
                )
            raise wrong(
                "what comes out for a given draft is off",
                given=f"p = {show(p)}, draft x = {x} drawn from {show(reported)}, mass = {float(mass):.4g}",
                got=f"distribution of the token {show(got)}",
                expected=f"{show(expected)}; filtered p = {show(cut)}",
                mistake=likely_slip(got, slips),
            )


def _both_together(propose: Callable[..., Any], judge: Callable[..., Any], rng: random.Random) -> None:
    """From the learner's draft to the learner's verdict: the filtered target's distribution."""
    for _ in range(4):
        p, q, mass = _two_nuclei(rng)

        def program(source: RandomSource, p: Distribution = p, q: Distribution = q, mass: Fraction = mass) -> int:
            x, reported = as_pair(propose(floats(q), float(mass), source), "propose")
            return as_token(judge(floats(p), x, reported, float(mass), source), "what judge returns")

        got, expected = as_list(exact_distribution(program), 5), _cut(p, mass)
        if not same_distribution(got, expected):
            outside = [y for y in range(5) if got[y] > ROUNDING and expected[y] == 0]
            raise wrong(
                "draft and verdict together: what comes out does not follow the filtered target",
                given=f"p = {show(p)}, q = {show(q)}, mass = {float(mass):.4g}",
                got=f"distribution of the token {show(got)}",
                expected=show(expected),
                mistake=f"token {outside[0]} is not among those that top-p leaves of p: p was not filtered."
                if outside
                else "the draft was not drawn from the distribution that the test divides by.",
            )


both_sides = Check("both_sides", [_both_draft, _both_target, _both_together])
