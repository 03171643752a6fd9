"""Checks of one token, `accept` and `residual`, and of a round of drafts, `verify`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from specdec_course.checks import Check, wrong
from specdec_course.checks import distributions as dist
from specdec_course.checks.distributions import Distribution, over, random_distribution, residual_of, scaled, show
from specdec_course.checks.mistakes import Case, Judge, Mistake, judged, mistakes, parts
from specdec_course.checks.numbers import typed
from specdec_ref.interfaces import Proposal
from specdec_ref.verify.tokenwise import verify_tokenwise

Rows = Sequence[Sequence[float]]


def _share(accept: Callable[..., Any], p: float, q: float, first: float) -> float:
    """The share of 64 evenly spread u at which the draft is kept."""
    return sum(dist.as_bool(accept(p, q, first + i / 64), "accept") for i in range(64)) / 64


ACCEPTS: dict[str, Callable[[float, float, float], bool]] = {
    "<= in place of <: u may be 0, and a draft with p(x) = 0 is never kept.": lambda p, q, u: u <= p / q,
    "kept where u > p/q: turn the comparison round.": lambda p, q, u: u > p / q,
    "it compares u with p: divide by q first.": lambda p, q, u: u < p,
    "it compares u with q; p/q decides.": lambda p, q, u: u < q,
    "q/p instead of p/q.": lambda p, q, u: u < q / (p or 1e-9),
    "no chance in it: a draft with p < q is kept sometimes, with p/q, and u says when.": lambda p, q, u: p >= q,
    "every draft is kept.": lambda p, q, u: True,
    "it compares u with q - p, the difference; the ratio p/q decides.": lambda p, q, u: u < q - p,
    "it compares u with p - q, the difference; the ratio p/q decides.": lambda p, q, u: u < p - q,
}
_accept = Judge(
    "The share of drafts that are kept",
    partial(_share, lambda p, q, u: u < p / q),
    mistakes(lambda accept: partial(_share, accept), ACCEPTS),
    given=lambda p, q, first: f"p(x) = {p:.4g}, q(x) = {q:.4g}, and u = {first:.4g}, {first + 1 / 64:.4g}, ... below 1",
    call=_share,
)


def _ratios(rng: random.Random) -> list[tuple[float, float]]:
    """p and q; p/q from 1/8 to 7/8, all exact in binary."""
    return [(q * rng.randrange(low, low + 24) / 64, q) for q in (0.25, 0.5, 0.75, 1.0) for low in (8, 32)]


accept = judged(
    "accept",
    _accept,
    share=lambda rng: [(p, q, 1 / 128) for p, q in _ratios(rng)],
    always=lambda rng: [case for p, q in _ratios(rng) for case in ((q, p, 1 / 64 - 2**-20), (q, q, 0.0))],
    # u = p/q is among these u; u = 0 comes with p(x) = 0.
    border=lambda rng: [case for p, q in _ratios(rng) for case in ((p, q, 0.0), (0.0, q, 0.0))],
)


def _of_copies(residual: Callable[..., Any], p: Distribution, q: Distribution) -> Any:
    """That it leaves its arguments alone is a part of its own."""
    try:
        return residual(list(p), list(q))
    except ZeroDivisionError:
        likely = "ask whether the sum of max(0, p - q) is above 0; p == q does not tell, the last digit may differ."
        raise wrong(
            "a division by the sum, 0: return a copy of p then.", given=typed(p=p, q=q), mistake=likely
        ) from None


RESIDUALS: dict[str, Callable[[float, float], float]] = {
    "this is p. Only what the kept drafts have not delivered is missing: max(0, p - q).": lambda a, b: a,
    "this is q. The correction comes from what p has over q.": lambda a, b: b,
    "the sign of p - q was dropped (abs); where p < q nothing is missing: cut at 0.": lambda a, b: abs(a - b),
    "q - p instead of p - q: these are the tokens that the draft likes too much.": lambda a, b: max(0.0, b - a),
    "a softmax gives mass to every token: divide by the sum.": lambda a, b: math.exp(max(0.0, a - b)),
    "this is min(p, q), what the kept drafts deliver; the residual is the rest.": min,
    "where p > q this is p, not p - q.": lambda a, b: a if a > b else 0.0,
    "all that is missing gets the same share: the shares go by p - q.": lambda a, b: float(a > b),
}
LITTLE = "p is returned where the sum is small. What is missing comes, however little it is: is the sum above 0?"


def _p_below(border: float, p: Distribution, q: Distribution) -> Distribution:
    return p if sum(over(p, q)) < border else residual_of(p, q)


_residual = Judge(
    "The residual",
    lambda p, q: residual_of(p, q),
    [
        *(Mistake(LITTLE, partial(_p_below, border)) for border in (0.06, 0.01, 1e-8)),
        Mistake("max(0, p - q) is right, but does not sum to one: divide by the sum.", over),
        Mistake("differences below 0 were not cut.", lambda p, q: [a - b for a, b in zip(p, q, strict=True)]),
        Mistake(
            "the token with the largest p - q is not the only one missing.", lambda p, q: dist.likeliest(over(p, q))
        ),
        *mistakes(lambda each: lambda p, q: scaled([*map(each, p, q)]), RESIDUALS),
    ],
    dist.DISTRIBUTION,
    call=_of_copies,
)


def _residual_arguments(residual: Callable[..., Any], rng: random.Random) -> None:
    p, q = random_distribution(rng, 4), random_distribution(rng, 4)
    for other in (q, p):
        dist.leaves_alone("residual", {"p": p, "q": list(other)}, lambda p, q, source: residual(p, q))


def _any(rng: random.Random) -> Iterator[Case]:
    """Any distributions; impossible tokens; a draft that is certain; distributions that share nothing."""
    for size, zeros in ((3, 0), (rng.randrange(4, 7), 0), (rng.randrange(7, 12), 0), (6, 2)):
        p = q = [1.0]
        while sum(map(bool, over(p, q))) < 1 + (size > 3):
            p, q = random_distribution(rng, size, zeros), random_distribution(rng, size, zeros)
        yield p, q
    yield random_distribution(rng, 4), rng.sample([1.0, 0.0, 0.0, 0.0], 4)
    yield [*random_distribution(rng, 5), *[0.0] * 5], [*[0.0] * 5, *random_distribution(rng, 5)]


def _equal(rng: random.Random) -> Iterator[Case]:
    """p = q; then q is above p by the last binary digit of one entry, so p and q differ, and nothing is missing."""
    p = random_distribution(rng, rng.randrange(3, 7))
    yield p, list(p)
    yield p, [math.nextafter(p[0], 1), *p[1:]]


def _close(rng: random.Random) -> Iterator[Case]:
    """Little is missing: 3/64, then 3/65536, then 3/2^36 of rare tokens, all exact in single precision, too."""
    for unit in (2**-6, 2**-16, 2**-36):
        p = [0.0] * 5
        while p[2] < 3 * unit:
            p = sorted(random_distribution(rng, 5), reverse=True)
        if unit < 2**-20:
            p = [p[0] + p[1] + p[2] - 5 * unit, 3 * unit, 2 * unit, *p[3:]]
        q = [p[0] + 3 * unit, p[1] - 2 * unit, p[2] - unit, *p[3:]]
        order = rng.sample(range(5), 5)
        yield [p[x] for x in order], [q[x] for x in order]


residual = Check("residual", [_residual_arguments, *parts(_residual, values=_any, nothing=_equal, close=_close)])


def engine_round(drafts: Sequence[int], q: Rows, p: Rows, source: Any) -> list[int]:
    """What the engine's own rule emits for these drafts."""
    proposal = Proposal(list(drafts), torch.tensor(q, dtype=torch.float64) if drafts else None)
    return verify_tokenwise(proposal, torch.tensor(p, dtype=torch.float64), source).emitted(drafts)


def _round(
    keep: Callable[..., float] = lambda i, x, q, p: p[i][x] / q[i][x],
    correction: Callable[..., Distribution] = lambda i, x, q, p: residual_of(p[i], q[i]),
    bonus: Callable[..., Distribution] = lambda q, p: p[-1],
    rejected: Callable[..., list[int]] = lambda drafts, i, token: [*drafts[:i], token],
    whole: Callable[..., list[int]] = lambda drafts, token: [*drafts, token],
) -> Callable[..., list[int]]:
    """A round with a wrong step: draft x of place i is kept with `keep`; what is drawn; and what is returned."""

    def verify(drafts: list[int], q: Rows, p: Rows, source: Any) -> list[int]:
        for i, x in enumerate(drafts):
            if not source.bernoulli(keep(i, x, q, p)):
                return rejected(drafts, i, source.categorical(correction(i, x, q, p)))
        return whole(drafts, source.categorical(bonus(q, p)))

    return verify


def _counted(drafts: list[int], q: Rows, p: Rows, source: Any) -> list[int]:
    n = sum(source.bernoulli(p[i][x] / q[i][x]) for i, x in enumerate(drafts))
    return [*drafts[:n], source.categorical(p[n] if n == len(drafts) else residual_of(p[n], q[n]))]


KEEPS: dict[str, Callable[..., float]] = {
    "the first draft is never tested.": lambda i, x, q, p: p[i][x] / q[i][x] if i else 1,
    "the last draft is not tested.": lambda i, x, q, p: p[i][x] / q[i][x] if i < len(q) - 1 else 1,
    "q/p instead of p/q.": lambda i, x, q, p: q[i][x] / p[i][x],
    "all are kept: nothing is tested.": lambda i, x, q, p: 1,
    "no chance in the test: it keeps where p >= q and drops all else.": lambda i, x, q, p: p[i][x] >= q[i][x],
    "kept with p(x), as in sample and match: that keeps fewer than p/q.": lambda i, x, q, p: p[i][x],
    "kept with 1 - p/q: that is the probability of a rejection.": lambda i, x, q, p: 1 - p[i][x] / q[i][x],
    "the row of p is one too far: draft i belongs to p[i].": lambda i, x, q, p: p[i + 1][x] / q[i][x],
    "q[0] is used at every place: draft i was drawn from q[i].": lambda i, x, q, p: p[i][x] / q[0][x],
    "p[0] is used at every place: draft i belongs to p[i].": lambda i, x, q, p: p[0][x] / q[i][x],
}
CORRECTIONS: dict[str, Callable[..., Distribution]] = {
    "tokens with p < q come: did you sample from p instead of the residual?": lambda i, x, q, p: p[i],
    "the correction comes from q, the draft's distribution.": lambda i, x, q, p: q[i],
    "q is subtracted at the rejected token alone.": lambda i, x, q, p: [
        max(0.0, a - q[i][x]) if y == x else a for y, a in enumerate(p[i])
    ],
    "p without the rejected token, as for a certain draft.": lambda i, x, q, p: [*p[i][:x], 0.0, *p[i][x + 1 :]],
    "it comes from p[i + 1], the distribution after the rejected draft.": lambda i, x, q, p: p[i + 1],
    "the residual is p[i + 1] less q[i], not that of place i.": lambda i, x, q, p: residual_of(p[i + 1], q[i]),
    "the residual of place 0 is used at every place.": lambda i, x, q, p: residual_of(p[0], q[0]),
    "p and q of the residual are swapped.": lambda i, x, q, p: residual_of(q[i], p[i]),
    "the target's best token is taken: the correction is drawn.": lambda i, x, q, p: dist.likeliest(p[i]),
    "the residual's best token is taken: the correction is drawn.": lambda i, x, q, p: dist.likeliest(over(p[i], q[i])),
}
BONUSES: dict[str, Callable[..., Distribution]] = {
    "the last draft's row: the bonus comes from the one after it, p[len(drafts)].": lambda q, p: p[max(len(q) - 1, 0)],
    "this is p[0]: the bonus comes after all drafts, from the last row of p.": lambda q, p: p[0],
    "this is the draft's distribution: the bonus is the target's own.": lambda q, p: q[-1],
    "this is a residual: where nothing was rejected nothing is missing.": lambda q, p: residual_of(p[-2], q[-1]),
    "this is a residual: the bonus comes from p alone.": lambda q, p: residual_of(p[-1], q[-1]),
    "the likeliest token is taken: the bonus is drawn.": lambda q, p: dist.likeliest(p[-1]),
}
RETURNS: dict[str, Callable[..., list[int]]] = {
    "no bonus: after the last kept draft the target gives one token more.": _round(whole=lambda d, y: d or [y]),
    "the kept drafts are missing in what is returned.": _round(rejected=lambda d, i, y: [y], whole=lambda d, y: [y]),
    "the kept drafts are missing before a correction.": _round(rejected=lambda d, i, y: [y]),
    "the rejected draft is returned: only the drafts before it stay.": _round(
        rejected=lambda d, i, y: [*d[: i + 1], y]
    ),
    "drafts after the first rejection are counted: [yes, no, yes, yes] keeps one.": _counted,
}


def _emitted(value: Any, drafts: Sequence[int]) -> tuple[int, ...]:
    """What verify returned for these drafts. Raises CheckFailed unless it is the first of them and one token more."""
    tokens = dist.as_tokens(value, "what verify returns")
    if tokens and list(tokens[:-1]) == list(drafts[: len(tokens) - 1]):
        return tokens
    rest = iter(drafts)
    likely = "something follows a correction, such as a bonus: the correction ends the round, return there."
    if all(token in rest for token in tokens[:-1]):  # some of the drafts, in their order
        likely = "a draft after the first rejection was kept: the rejection ends the round."
    if not tokens:
        likely = "no correction after a rejection, or no bonus: each round ends with a token of the target's own."
    what = "a round emits the first drafts, in their order, and one token more."
    raise wrong(what, given=f"drafts = {list(drafts)}", got=list(tokens), mistake=likely)


def _look(what: str, verify: Callable[..., Any], drafts: list[int], q: Rows, p: Rows) -> dict[str, Distribution]:
    """How many drafts of a round are kept, or its corrections, or its bonus."""

    def program(source: dist.Visitor) -> tuple[int, ...]:
        return _emitted(verify(list(drafts), [*map(list, q)], [*map(list, p)], source), drafts)

    ends = [[0.0] * len(p[0]) for _ in range(len(drafts) + 1)]
    for tokens, probability in dist.exact_distribution(program).items():
        ends[len(tokens) - 1][tokens[-1]] += probability
    if what == "number of kept drafts":
        return {"0, 1, ...": [sum(row) for row in ends]}
    places = [len(drafts)] if what == "bonus" else range(len(drafts))
    return {f"after {i} kept": scaled(ends[i]) if sum(ends[i]) > dist.ROUNDING else [] for i in places}


def _judge(what: str) -> Judge:
    look = partial(_look, what)
    formulas = (
        RETURNS
        | {says: _round(keep=keep) for says, keep in KEEPS.items()}
        | {says: _round(correction=correction) for says, correction in CORRECTIONS.items()}
        | {says: _round(bonus=bonus) for says, bonus in BONUSES.items()}
    )
    return Judge(
        f"The distribution of the {what}",
        partial(look, engine_round),
        mistakes(lambda verify: partial(look, verify), formulas),
        dist.ROWS,
        lambda drafts, q, p: f"drafts = {drafts}, q = [{', '.join(map(show, q))}], p = [{', '.join(map(show, p))}]",
        call=look,
    )


def _block(rng: random.Random, gamma: int, size: int) -> Case:
    """Drafts `[gamma]`, q `[gamma, size]`, p `[gamma + 1, size]`. Each draft may be kept or dropped."""
    x: list[int] = []
    q: list[Distribution] = []
    p: list[Distribution] = []
    while len(x) < gamma:
        p_i, q_i = random_distribution(rng, size), random_distribution(rng, size)
        possible = [y for y in range(size) if 1 / 8 <= p_i[y] / q_i[y] <= 7 / 8]
        # At least two different amounts missing: a residual that is certain hides mistakes.
        if possible and len({*over(p_i, q_i)} - {0}) >= 2:
            p, q, x = [*p, p_i], [*q, q_i], [*x, rng.choice(possible)]
    last = p[-1]
    while min(dist.distance(last, p[-1]), dist.distance(last, q[-1])) < 0.1:
        last = random_distribution(rng, size)
    return x, q, [*p, last]


def _kept(rng: random.Random) -> Iterator[Case]:
    """Drafts that may be kept or dropped; p = q at each place; and then a first draft that is impossible."""
    yield from (_block(rng, gamma, size) for gamma, size in ((2, 4), (3, 5), (4, 4), (1, 3)))
    q = [random_distribution(rng, 4) for _ in range(rng.randrange(3, 6))]
    x = [rng.randrange(4) for _ in q[1:]]
    yield x, q[:-1], q
    yield x, q[:-1], [scaled([*q[0][: x[0]], 0.0, *q[0][x[0] + 1 :]]), *q[1:]]


def _verify_arguments(verify: Callable[..., Any], rng: random.Random) -> None:
    dist.leaves_alone("verify", dict(zip(("drafts", "q", "p"), _block(rng, 3, 4), strict=True)), verify)


verify = Check(
    "verify",
    [
        *parts(_judge("number of kept drafts"), kept=_kept),
        *parts(_judge("correction"), correction=lambda rng: [_block(rng, 2, 4), _block(rng, 3, 5), _block(rng, 1, 4)]),
        *parts(_judge("bonus"), bonus=lambda rng: [_block(rng, 2, 4), ([], [], [random_distribution(rng, 4)])]),
        _verify_arguments,
    ],
)
