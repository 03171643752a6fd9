"""Checks of problem set 04, rejection sampling: one token, and a round of drafts.

What the learner's code does with chance is enumerated, not sampled: `exact_distribution` visits every branch, and the
result has to equal an oracle in fractions. So these checks never blame right code by bad luck. The one exception, the
learner's own statistical test, is in `rejection_power`.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from specdec_course.checks import Check, wrong
from specdec_course.checks.distributions import (
    ROUNDING,
    Distribution,
    argmax,
    as_bool,
    as_list,
    as_numbers,
    as_tokens,
    exact_distribution,
    floats,
    likely_slip,
    one_hot,
    plain,
    prefix_model,
    random_distribution,
    residual_of,
    same_distribution,
    scaled,
    show,
    softmax,
    text_distribution,
    total_variation,
)
from specdec_course.checks.rejection_bug import repair, witness
from specdec_course.checks.rejection_filters import both_sides, top_p
from specdec_course.checks.rejection_power import trusts
from specdec_ref.sampling import RandomSource

__all__ = ["accept", "both_sides", "repair", "residual", "top_p", "trusts", "verify", "witness"]


def _ratios(rng: random.Random, times: int = 4) -> Iterator[tuple[float, float, float]]:
    """p, q and p/q, all exact in binary; p/q from 1/8 to 7/8."""
    for _ in range(times):
        q, ratio = rng.choice([0.25, 0.5, 0.75]), rng.randrange(8, 57) / 64
        yield q * ratio, q, ratio


def _accept_share(accept: Callable[..., Any], rng: random.Random) -> None:
    for p, q, ratio in _ratios(rng):
        between = [(i + 0.5) / 64 for i in range(64)]
        share = sum(as_bool(accept(p, q, u), "accept") for u in between) / 64
        slips = {
            "kept where u > p/q: turn the comparison round.": 1 - ratio,
            "it compares u with p: divide by q first.": sum(u < p for u in between) / 64,
            "it compares u with q; p/q decides.": sum(u < q for u in between) / 64,
            "q/p instead of p/q: a draft that the target likes less than the draft does is kept always.": 1.0,
            "no chance in it: a draft with p < q is kept sometimes, with p/q, and u says when.": 0.0,
            "it compares u with q - p, the difference; the ratio p/q decides.": sum(u < q - p for u in between) / 64,
        }
        if abs(share - ratio) > ROUNDING:
            raise wrong(
                "the share of kept drafts is off",
                given=f"p(x) = {p:.4g}, q(x) = {q:.4g}, u at 64 places evenly spread over [0, 1)",
                got=f"kept for {share:.4g} of them",
                expected=f"kept for p/q = {ratio:.4g} of them",
                mistake=likely_slip([share], {text: [value] for text, value in slips.items()}),
            )


def _accept_always(accept: Callable[..., Any], rng: random.Random) -> None:
    for p, q, _ in _ratios(rng):
        for p_x, q_x in ((q, p), (q, q)):
            for u in (0.0, rng.random(), 1 - 2**-20):
                if not as_bool(accept(p_x, q_x, u), "accept"):
                    raise wrong(
                        "a draft with p(x) >= q(x) is always kept",
                        given=f"p(x) = {p_x:.4g}, q(x) = {q_x:.4g}, u = {u:.7g}",
                        got="dropped",
                        mistake="q/p instead of p/q, or a comparison with p, q or a difference, not with the ratio.",
                    )


def _accept_border(accept: Callable[..., Any], rng: random.Random) -> None:
    cases = [(0.0, q, 0.0) for _, q, _ in _ratios(rng, 2)] + list(_ratios(rng, 2))
    for p, q, border in cases:
        if as_bool(accept(p, q, border), "accept"):
            what = "a token with p(x) = 0 must never come" if p == 0 else "u = p/q exactly is a rejection"
            raise wrong(
                what,
                given=f"p(x) = {p:.4g}, q(x) = {q:.4g}, u = {border:.4g}",
                got="kept",
                mistake="<= in place of <. u is in [0, 1), and may be 0.",
            )


accept = Check("accept", [_accept_share, _accept_always, _accept_border])


def _residual_slips(p: Sequence[Any], q: Sequence[Any]) -> dict[str, Sequence[Any]]:
    over = [max(0, a - b) for a, b in zip(p, q, strict=True)]
    return {
        "this is p. After a rejection only what the kept drafts have not delivered is missing: max(0, p - q).": p,
        "this is q. The correction comes from what p has over q.": q,
        "max(0, p - q) is right, but does not sum to one: divide by the sum.": over,
        "the sign of p - q was dropped (abs); where p < q nothing is missing: cut at 0.": scaled(
            [abs(a - b) for a, b in zip(p, q, strict=True)]
        ),
        "q - p instead of p - q: these are the tokens that the draft likes too much.": residual_of(q, p),
        "a softmax gives mass to every token, also where p < q: divide by the sum.": softmax(over),
        "this is min(p, q), what the kept drafts deliver; the residual is the rest.": scaled(
            [min(a, b) for a, b in zip(p, q, strict=True)]
        ),
        "differences below 0 were not cut.": [a - b for a, b in zip(p, q, strict=True)],
        "the token with the largest p - q is not the only one that is missing.": one_hot(len(p), argmax(over)),
    }


def _look_at_residual(residual: Callable[..., Any], p: Distribution, q: Distribution) -> None:
    given, expected = (floats(p), floats(q)), residual_of(p, q)
    got = as_numbers(residual(*given), "the residual")
    if same_distribution(got, expected):
        return
    likely = likely_slip(got, _residual_slips(p, q))
    if p == q:
        likely = "nothing is missing, there is no sum to divide by: return p then."
    if len(got) != len(p):
        likely = f"one number for each of the {len(p)} tokens is wanted."
    if given != (floats(p), floats(q)):
        likely = "a list that was given was changed on the way (p[i] = ...): fill a new list."
    raise wrong(
        "the residual is off",
        given=f"p = {show(p)}, q = {show(q)}",
        got=show(got),
        expected=show(expected),
        mistake=likely,
    )


def _residual_values(residual: Callable[..., Any], rng: random.Random) -> None:
    for size in (3, rng.randrange(4, 7), rng.randrange(7, 12)):
        p, q = random_distribution(rng, size), random_distribution(rng, size)
        while sum(a > b for a, b in zip(p, q, strict=True)) < 1 + (size > 3):
            p, q = random_distribution(rng, size), random_distribution(rng, size)
        _look_at_residual(residual, p, q)


def _residual_zeros(residual: Callable[..., Any], rng: random.Random) -> None:
    """Distributions with impossible tokens, a draft that is certain, and distributions that share nothing."""
    p, q = random_distribution(rng, 6, zeros=2), random_distribution(rng, 6, zeros=3)
    while p == q:
        q = random_distribution(rng, 6, zeros=3)
    _look_at_residual(residual, p, q)
    p = random_distribution(rng, 5)
    _look_at_residual(residual, p, one_hot(5, rng.randrange(5)))
    _look_at_residual(residual, [*p, *[Fraction(0)] * 5], [*[Fraction(0)] * 5, *random_distribution(rng, 5)])


def _residual_nothing(residual: Callable[..., Any], rng: random.Random) -> None:
    """p = q: nothing is missing."""
    p = random_distribution(rng, rng.randrange(3, 7))
    try:
        _look_at_residual(residual, p, list(p))
    except ZeroDivisionError:
        raise wrong(
            "p = q leaves nothing: return p then", given=f"p = q = {show(p)}", mistake="a division by the sum, 0."
        ) from None


def _residual_rounded(residual: Callable[..., Any], rng: random.Random) -> None:
    """q is above p by the last binary digit of one entry: p and q differ, and nothing is missing."""
    p = floats(random_distribution(rng, rng.randrange(3, 7)))
    i = rng.randrange(len(p))
    q = [*p[:i], math.nextafter(p[i], 1), *p[i + 1 :]]
    given = f"p = {p}, q = {q}"
    mistake = "p == q does not tell whether there is something to divide by: look at the sum of max(0, p - q)."
    try:
        got = [float(x) for x in plain(residual(list(p), list(q)))]
    except ZeroDivisionError:
        raise wrong("nothing is missing, though p and q differ: return p", given=given, mistake=mistake) from None
    if not same_distribution(got, p):
        raise wrong(
            "nothing is missing, though p and q differ: return p", given=given, got=got, expected=p, mistake=mistake
        )


def _residual_close(residual: Callable[..., Any], rng: random.Random) -> None:
    """Little is missing: 3/64 at most, and as little as 3/65536 (exact in single precision, too)."""
    for unit in (Fraction(1, 64), Fraction(1, 2**16)):
        p = random_distribution(rng, 5)
        while sum(a >= 3 * unit for a in p) < 2:
            p = random_distribution(rng, 5)
        more, some = rng.sample([i for i in range(5) if p[i] >= 3 * unit], 2)
        less = rng.choice([i for i in range(5) if i not in (more, some)])
        q = list(p)
        q[more], q[some], q[less] = q[more] - 2 * unit, q[some] - unit, q[less] + 3 * unit
        got = as_numbers(residual(floats(p), floats(q)), "the residual")
        if same_distribution(got, p):
            raise wrong(
                "p and q are close, but not equal: what is missing comes, however little it is",
                given=f"p = {floats(p)}, q = {floats(q)}",
                got=f"p, {show(got)}",
                expected=show(residual_of(p, q)),
                mistake="p is returned where the sum is small; only a sum of 0 cannot be divided by.",
            )
        _look_at_residual(residual, p, q)


def _residual_arguments(residual: Callable[..., Any], rng: random.Random) -> None:
    p, q = floats(random_distribution(rng, 4)), floats(random_distribution(rng, 4))
    before = (list(p), list(q))
    residual(p, q)
    if (p, q) != before:
        raise wrong(
            "residual changes the lists that it is given: the caller still needs them",
            given=f"p = {show(before[0])}, q = {show(before[1])}",
            got=f"afterwards p = {show(p)}, q = {show(q)}",
            mistake="an assignment to p[i] or q[i]: fill a new list.",
        )


residual = Check(
    "residual",
    [
        _residual_values,
        _residual_zeros,
        _residual_nothing,
        _residual_rounded,
        _residual_close,
        _residual_arguments,
    ],
)


def _keep_shares(chances: Sequence[Any]) -> list[Any]:
    """The distribution of the number of kept drafts, where place i keeps with chances[i] and the first rejection ends
    it.
    """
    reached = [math.prod(chances[:i], start=Fraction(1)) for i in range(len(chances) + 1)]
    return [r * (1 - c) for r, c in zip(reached, chances, strict=False)] + reached[-1:]


class _Block:
    """Drafts x `[g]`, their distributions q `[g, vocab]`, the target's p `[g + 1, vocab]`; each draft may be kept or
    dropped.
    """

    def __init__(self, rng: random.Random, gamma: int, size: int) -> None:
        self.q: list[Distribution] = []
        self.p: list[Distribution] = []
        self.x: list[int] = []
        while len(self.x) < gamma:
            p, q = random_distribution(rng, size), random_distribution(rng, size)
            possible = [x for x in range(size) if Fraction(1, 8) <= p[x] / q[x] <= Fraction(7, 8)]
            missing = [a - b for a, b in zip(p, q, strict=True) if a > b]
            # At least two different tokens missing: a residual that is certain hides slips.
            if possible and len(missing) >= 2 and len(set(missing)) >= 2:
                self.p.append(p)
                self.q.append(q)
                self.x.append(rng.choice(possible))
        self.p.append(random_distribution(rng, size))
        while total_variation(self.p[-1], self.p[-2]) < 0.1 or total_variation(self.p[-1], self.q[-1]) < 0.1:
            self.p[-1] = random_distribution(rng, size)

    def chances(self) -> list[Fraction]:
        return [min(Fraction(1), p[x] / q[x]) for p, q, x in zip(self.p, self.q, self.x, strict=False)]

    def distribution(self, verify: Callable[..., Any]) -> dict[tuple[int, ...], float]:
        """What the learner's verify does with this block."""
        return _verified(verify, self.x, self.q, self.p)

    def __str__(self) -> str:
        q, p = ("; ".join(map(show, rows)) for rows in (self.q, self.p))
        return f"drafts = {self.x}, rows of q: {q}, rows of p: {p}"


def _verified(
    verify: Callable[..., Any], x: Sequence[int], q: Sequence[Distribution], p: Sequence[Distribution]
) -> dict[tuple[int, ...], float]:
    """The distribution of what verify emits for these drafts. Each emitted list is kept drafts and one more token."""

    def program(source: RandomSource) -> tuple[int, ...]:
        return _emitted(verify, list(x), [floats(row) for row in q], [floats(row) for row in p], source)

    return exact_distribution(program)


def _emitted(
    verify: Callable[..., Any], x: list[int], q: list[list[float]], p: list[list[float]], source: RandomSource
) -> tuple[int, ...]:
    given = list(x)
    emitted = as_tokens(verify(x, q, p, source), "what verify returns")
    if not emitted:
        raise wrong(
            "verify returned no token at all",
            given=f"drafts = {given}",
            got="[]",
            expected="the kept drafts and one token more",
            mistake="no correction after a rejection, or no bonus: each round ends with a token of the target's own.",
        )
    if len(emitted) > len(given) + 1:
        raise wrong(
            f"{len(given)} drafts give at most {len(given) + 1} tokens",
            given=f"drafts = {given}",
            got=list(emitted),
            mistake="stop after the correction or the bonus: return at once.",
        )
    if list(emitted[:-1]) != given[: len(emitted) - 1]:
        behind = iter(given)
        passed = all(token in behind for token in emitted[:-1])  # some of the drafts, in their order
        raise wrong(
            "all tokens but the last have to be the first drafts, in their order",
            given=f"drafts = {given}",
            got=list(emitted),
            mistake="a draft behind the first rejection was kept (the rejection ends the round), or a bonus stands "
            "behind a correction (the correction ends the round, too)."
            if passed
            else "something comes behind a correction, such as a bonus: the correction ends the round, return there.",
        )
    return emitted


def _verify_none(verify: Callable[..., Any], rng: random.Random) -> None:
    """No draft at all."""
    p = random_distribution(rng, 4)
    try:
        got = [_verified(verify, [], [], [p]).get((x,), 0.0) for x in range(4)]
    except (IndexError, TypeError) as error:
        raise wrong(
            "no draft at all (gamma = 0): one token from p[0] is wanted",
            given=f"drafts = [], q = [], p = [{show(p)}]",
            got=f"{type(error).__name__}: {error}",
            expected="one token, drawn from p[0]",
        ) from None
    if not same_distribution(got, p):
        raise wrong(
            "no draft at all (gamma = 0): one token from p[0] is wanted",
            given=f"drafts = [], q = [], p = [{show(p)}]",
            got=f"distribution of the token {show(got)}",
            expected=show(p),
        )


def _all_kept(verify: Callable[..., Any], rng: random.Random, clear: bool) -> None:
    """p = q: all drafts are kept. `clear`: look at what has one cause only."""
    gamma = rng.randrange(2, 5)
    q = [random_distribution(rng, 4) for _ in range(gamma)]
    x = [rng.randrange(4) for _ in range(gamma)]
    lengths = {len(e) for e in _verified(verify, x, q, [*q, random_distribution(rng, 4)])}
    if lengths != {gamma + 1} and (not clear or lengths in ({gamma}, {1})):
        raise wrong(
            f"p = q at each of {gamma} places: all drafts are kept, and the bonus is added",
            given=f"drafts = {x}",
            got=f"{' or '.join(map(str, sorted(lengths)))} tokens",
            expected=f"{gamma + 1} tokens",
            mistake="no bonus: after the last kept draft the target gives one token more."
            if lengths == {gamma}
            else "the kept drafts are missing in what is returned, [*drafts, bonus]; or none is kept where p = q."
            if lengths == {1}
            else "a draft with p >= q is always kept: is the ratio p[i][x] / q[i][x], all of its own place?",
        )


def _verify_returned(verify: Callable[..., Any], rng: random.Random) -> None:
    """Is all there where all is kept?"""
    _all_kept(verify, rng, clear=True)


def _verify_certain(verify: Callable[..., Any], rng: random.Random) -> None:
    """Drafts that must be kept, and a draft that is impossible."""
    _all_kept(verify, rng, clear=False)
    gamma = rng.randrange(2, 5)
    q = [random_distribution(rng, 4) for _ in range(gamma)]
    x = [rng.randrange(4) for _ in range(gamma)]
    never = random_distribution(rng, 4)
    never[x[0]] = Fraction(0)
    rows = [scaled(never), *q[1:], random_distribution(rng, 4)]
    came = _verified(verify, x, q, rows)
    bad = next((emitted for emitted in came if emitted[0] == x[0]), None)
    if bad is None:
        return
    # All other drafts are kept (p = q), so a round of one or two tokens shows that the draft was rejected.
    if {len(emitted) for emitted in came} == {1}:
        distribution = [came.get((y,), 0.0) for y in range(4)]
        slips = {
            "it was rejected, but the correction may be it again: p and q of the residual are swapped.": residual_of(
                q[0], rows[0]
            ),
            "it was rejected, but the correction may be it again: that comes from q.": q[0],
            "it was rejected, but the correction may be it again: that comes from the next row, p[i + 1].": rows[1],
            "it was rejected, but the correction may be it again: that uses row p[i + 1].": residual_of(rows[1], q[0]),
        }
        likely = likely_slip(
            distribution, slips, "it was rejected, but the correction may be it again: the residual of which p?"
        )
    elif {len(emitted) for emitted in came} == {2}:
        likely = "the rejected draft stands before the correction: only the drafts before it stay, drafts[:i]."
    else:
        likely = "is each draft tested, the first as well, with p[i] and q[i] of its own place?"
    raise wrong(
        "a first draft with p(x) = 0 came out",
        given=f"drafts = {x}, p[0] = {show(rows[0])}, q[0] = {show(q[0])}",
        got=list(bad),
        mistake=likely,
    )


def _verify_kept(verify: Callable[..., Any], rng: random.Random) -> None:
    """How many drafts are kept, for given drafts."""
    for gamma, size in ((3, 5), (2, 4), (4, 4), (1, 3)):
        block = _Block(rng, gamma, size)
        distribution = block.distribution(verify)
        got = [sum(share for emitted, share in distribution.items() if len(emitted) == n + 1) for n in range(gamma + 1)]
        right = block.chances()
        x, p, q = block.x, block.p, block.q
        one = Fraction(1)
        places = range(gamma)
        slips = {
            "the first draft is never tested.": [one, *right[1:]],
            "all are kept: q/p instead of p/q, or a test without effect.": [
                min(one, q[i][x[i]] / p[i][x[i]]) for i in places
            ],
            "no chance in the test: it keeps where p >= q and drops all else.": [
                Fraction(p[i][x[i]] >= q[i][x[i]]) for i in places
            ],
            "kept with p(x), as in sample and match or for a draft that is certain: exact, but it keeps fewer. "
            "The rule of this part keeps with min(1, p/q).": [p[i][x[i]] for i in places],
            "the row of p is one too far: draft i was proposed after i drafts, its distribution is p[i].": [
                min(one, p[i + 1][x[i]] / q[i][x[i]]) for i in places
            ],
            "q[0] is used at every place: draft i was drawn from q[i].": [
                min(one, p[i][x[i]] / q[0][x[i]]) for i in places
            ],
            "p[0] is used at every place: the target's distribution for draft i is p[i].": [
                min(one, p[0][x[i]] / q[i][x[i]]) for i in places
            ],
            "kept with 1 - p/q: that is the chance of a rejection.": [1 - r for r in right],
        }
        if not same_distribution(got, _keep_shares(right)):
            shares = {text: _keep_shares(chances) for text, chances in slips.items()}
            shares["the last draft is not tested."] = _keep_shares([*right[:-1], one])
            counted = _keep_shares([])
            for c in right:  # the number of drafts that pass, whatever stands before them
                counted = [a * (1 - c) + b * c for a, b in zip([*counted, 0], [0, *counted], strict=True)]
            shares["after a rejection the kept drafts are missing in what is returned: [*drafts[:i], correction]."] = [
                1 - math.prod(right),
                *[0] * (gamma - 1),
                math.prod(right),
            ]
            shares["the rejected draft stands before the correction: only the drafts before it stay, drafts[:i]."] = [
                0,
                *(a + (i == gamma - 1) * math.prod(right) for i, a in enumerate(_keep_shares(right)[:-1])),
            ]
            shares["drafts behind the first rejection are counted: [yes, no, yes, yes] keeps one."] = counted
            raise wrong(
                "the number of kept drafts follows another distribution than it should",
                given=str(block),
                got=f"chance to keep 0, 1, ... {gamma}: {show(got)}",
                expected=show(_keep_shares(right)),
                mistake=likely_slip(got, shares),
            )


def _last_token(distribution: Mapping[tuple[int, ...], float], length: int, size: int) -> list[float] | None:
    """The distribution of the last token among outcomes of this length; None where there are none."""
    share = sum(chance for emitted, chance in distribution.items() if len(emitted) == length)
    if share < ROUNDING:
        return None
    last: dict[int, float] = {}
    for emitted, chance in distribution.items():
        if len(emitted) == length:
            last[emitted[-1]] = last.get(emitted[-1], 0.0) + chance / share
    return as_list(last, size)


def _verify_corrections(verify: Callable[..., Any], rng: random.Random) -> None:
    """The distribution of the token that ends a round with a rejection, at each place."""
    for gamma, size in ((3, 5), (1, 4)):
        block = _Block(rng, gamma, size)
        distribution = block.distribution(verify)
        for i in range(gamma):
            got, p, q, x = _last_token(distribution, i + 1, size), block.p[i], block.q[i], block.x[i]
            expected = residual_of(p, q)
            if got is None:
                raise wrong(f"a round of {i + 1} tokens never came: the draft at place {i} is never rejected")
            if same_distribution(got, expected):
                continue
            slips: dict[str, Sequence[Any]] = {
                "tokens with p < q turn up after rejections: did you sample from p instead of the residual?": p,
                "the correction comes from q, the draft's distribution.": q,
                "q is subtracted at the rejected token alone.": scaled(
                    [max(0, a - b) if y == x else a for y, (a, b) in enumerate(zip(p, q, strict=True))]
                ),
                "p without the rejected token: that is right only for a draft that is certain.": scaled(
                    [0 if y == x else a for y, a in enumerate(p)]
                ),
                "the correction comes from p[i + 1], the distribution behind the rejected draft.": block.p[i + 1],
                "the correction is the rejected draft; or p and q of the residual are swapped.": one_hot(size, x),
                "q - p instead of p - q, the tokens that the draft likes too much: p and q of the residual are "
                "swapped.": residual_of(q, p),
            }
            rows = {
                f"the residual is p[{j}] less q[{k}], not that of place {i}.": residual_of(block.p[j], block.q[k])
                for j in range(gamma + 1)
                for k in range(gamma)
                if (j, k) != (i, i)
            }
            # One that is certain says little: the target's best token may be the same.
            slips |= {text: value for text, value in rows.items() if max(value) < 1}
            slips["the target's best token is taken: the correction is drawn."] = one_hot(size, argmax(p))
            slips |= _residual_slips(p, q)
            raise wrong(
                f"the correction at place {i} follows another distribution than it should",
                given=f"p[{i}] = {show(p)}, q[{i}] = {show(q)}, rejected draft {x}",
                got=f"distribution of the correction {show(got)}",
                expected=f"the residual {show(expected)}",
                mistake=likely_slip(got, slips),
            )


def _verify_bonus(verify: Callable[..., Any], rng: random.Random) -> None:
    """The distribution of the token after all drafts were kept."""
    for gamma, size in ((3, 4), (1, 4)):
        block = _Block(rng, gamma, size)
        got = _last_token(block.distribution(verify), gamma + 1, size)
        p = block.p
        if got is None:
            raise wrong(
                f"{gamma + 1} tokens never came, though all {gamma} drafts may be kept",
                given=str(block),
                mistake="no bonus: after the last kept draft the target gives one token more.",
            )
        if not same_distribution(got, p[-1]):
            slips: dict[str, Sequence[Any]] = {
                f"this is the last draft's row: after {gamma} kept drafts the bonus comes from p[{gamma}].": p[-2],
                "this is p[0]: the bonus comes after all drafts, from the last row of p.": p[0],
                "this is the draft's distribution: the bonus is the target's own.": block.q[-1],
                "this is a residual: where nothing was rejected nothing has to be made up for.": residual_of(
                    p[-2], block.q[-1]
                ),
                "the residual is for rejections: the bonus comes from p alone.": residual_of(p[-1], block.q[-1]),
                "the likeliest token is taken: the bonus is drawn.": one_hot(size, argmax(p[-1])),
            }
            raise wrong(
                "the bonus follows another distribution than it should",
                given=f"{gamma} draft{'s' * (gamma > 1)}, all kept, rows of p: {'; '.join(map(show, p))}",
                got=f"distribution of the bonus {show(got)}",
                expected=f"p[{gamma}] = {show(p[-1])}",
                mistake=likely_slip(got, slips),
            )


def _verify_text(verify: Callable[..., Any], rng: random.Random) -> None:
    """A whole round with models whose distributions depend on the prefix, and then the target alone."""
    target, draft = prefix_model(rng, 3), prefix_model(rng, 3)

    def program(source: RandomSource) -> tuple[int, ...]:
        x: list[int] = []
        q: list[list[float]] = []
        for _ in range(2):
            q.append(draft(x))
            x.append(source.categorical(q[-1]))  # type: ignore[arg-type]
        p = [target(x[:i]) for i in range(3)]
        return _emitted(verify, x, q, p, source)

    rounds = exact_distribution(program)
    got, expected = text_distribution(rounds, target, 3, 3), text_distribution({(): 1.0}, target, 3, 3)
    if not same_distribution(got, expected):
        texts = list(itertools.product(range(3), repeat=3))
        worst = max(range(len(got)), key=lambda i: abs(got[i] - expected[i]))
        first = [sum(share for text, share in zip(texts, got, strict=True) if text[0] == x) for x in range(3)]
        p, q = target([]), draft([])
        beta = sum(map(min, p, q))
        slips = {
            "tokens with p < q come too often: the first token follows min(p, q) + (1 - beta) p, which a "
            "correction from p gives.": [min(a, b) + (1 - beta) * a for a, b in zip(p, q, strict=True)],
            "the first token is the draft's, untested.": q,
        }
        raise wrong(
            "two drafts, drawn and verified, and the target alone after them: the text does not "
            "follow the target's distribution",
            given=f"a first token with p = {show(p)}, q = {show(q)}, and distributions that depend on the prefix",
            got=f"text {list(texts[worst])} with probability {got[worst]:.5f}; the first token follows {show(first)}",
            expected=f"{expected[worst]:.5f}; distribution of the first token {show(p)}",
            mistake=likely_slip(first, slips),
        )


def _verify_arguments(verify: Callable[..., Any], rng: random.Random) -> None:
    """What verify is given stays as it is, on every branch."""
    block = _Block(rng, 3, 4)

    def program(source: RandomSource) -> int:
        given = list(block.x), [floats(row) for row in block.q], [floats(row) for row in block.p]
        verify(*given, source)
        befores: tuple[Any, ...] = (block.x, block.q, block.p)
        for name, after, before in zip(("drafts", "q", "p"), given, befores, strict=True):
            if after != before:
                raise wrong(
                    f"verify changes what it is given, {name}: the caller still needs it",
                    given=f"{name} = {before if name == 'drafts' else [*map(show, before)]}",
                    got=f"afterwards {name} = {after}",
                    mistake="append, pop, del or an assignment to an entry, here or in residual: build a new list.",
                )
        return 0

    exact_distribution(program)


verify = Check(
    "verify",
    # In this order: the first that fails is what a learner sees, and the first ones name the cause best.
    [
        _verify_returned,
        _verify_none,
        _verify_kept,
        _verify_corrections,
        _verify_certain,
        _verify_bonus,
        _verify_text,
        _verify_arguments,
    ],
)
