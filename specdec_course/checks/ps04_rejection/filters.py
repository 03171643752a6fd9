"""Checks of top-p: on one distribution, `top_p`, and on both sides of a draft, `propose` and `judge`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from specdec_course.checks import Check
from specdec_course.checks import distributions as dist
from specdec_course.checks.distributions import Distribution, Visitor, random_distribution, residual_of, scaled, show
from specdec_course.checks.mistakes import Case, Judge, mistakes, parts
from specdec_ref.proof.reference import filtered


def _cut(d: Distribution, mass: float) -> Distribution:
    return filtered(d, top_p=mass)


def _size(d: Distribution, mass: float) -> int:
    return sum(a > 0 for a in _cut(d, mass))


def _raw(d: Distribution, mass: float, more: int = 0) -> Distribution:
    """What top-p leaves, and `more` tokens, not scaled."""
    left = sorted(range(len(d)), key=lambda x: -d[x])[: _size(d, mass) + more]
    return [a if x in left else 0.0 for x, a in enumerate(d)]


FILTERS: dict[str, Callable[[Distribution, float], Distribution]] = {
    "sorted; each token keeps its place, so p[x] is still token x.": lambda d, m: sorted(_raw(d, m), reverse=True),
    "of equally likely tokens the lowest ids stay.": lambda d, m: _raw(d[::-1], m)[::-1],
    "the token that crosses the threshold was dropped: it stays.": lambda d, m: _raw(d, m, -1),
    "the token that crosses the threshold was dropped: it stays; only the first does here.": lambda d, m: _raw(
        d, m, -(_size(d, m) > 1 and sum(_raw(d, m)) > m)
    ),
    "one token too many: the one that reaches the mass is the last.": lambda d, m: _raw(d, m, 1),
    "one token too many where the sum is the mass exactly.": lambda d, m: _raw(d, m, sum(_raw(d, m)) == m),
    "of equally likely tokens only as many stay as are needed.": lambda d, m: [
        a * (a >= min(filter(None, _raw(d, m)))) for a in d
    ],
    "a threshold for single tokens; top-p asks for a sum.": lambda d, m: [a * (a >= 1 - m) for a in d],
    "this is min-p; top-p asks for a sum.": lambda d, m: [a * (a >= (1 - m) * max(d)) for a in d],
    "taken as they stand, not from the likeliest down.": lambda d, m: [a * (sum(d[:x]) < m) for x, a in enumerate(d)],
    "what stays gets equal shares; the shares go by the probabilities.": lambda d, m: [a and 1.0 for a in _raw(d, m)],
    "nothing was cut.": lambda d, m: d,
}
_top_p = Judge(
    "The distribution after top-p",
    lambda distribution, mass: _cut(distribution, mass),
    [
        *mistakes(lambda left: lambda d, m: scaled(left(d, m)), FILTERS),
        *mistakes(
            lambda left: left, {"divided by the mass, not by the sum.": lambda d, m: [a / m for a in _raw(d, m)]}
        ),
        *mistakes(lambda left: left, {"the right tokens, but their sum is not one: divide by it.": _raw}),
        *mistakes(lambda left: left, FILTERS),
    ],
    dist.DISTRIBUTION,
    call=lambda top_p, d, mass: top_p(list(d), mass),  # that it leaves its argument alone is a part of its own
)


def _untied(rng: random.Random, size: int) -> Distribution:
    """A distribution without equal tokens: these are the matter of the part on ties."""
    d = random_distribution(rng, size)
    return d if len(set(d)) == size else _untied(rng, size)


def _sums(rng: random.Random, share: float) -> Iterator[Case]:
    """The mass is the sum of the likeliest tokens and a share of the next."""
    for size in (3, 5, 6, 7, 8):
        d, n = _untied(rng, size), rng.randrange(1, size - 1)
        ordered = sorted(d, reverse=True)
        yield d, sum(ordered[:n]) + ordered[n] * share


def _ties(rng: random.Random) -> Iterator[Case]:
    d = rng.sample([n / 64 for n in (8, 8, 8, 8, 20, 12)], 6)
    yield from ((d, (28 + 8 * n) / 64) for n in (1, 2, 3))


def _top_p_argument(top_p: Callable[..., Any], rng: random.Random) -> None:
    for mass in (0.5, 1.0):
        given = {"distribution": random_distribution(rng, 5, zeros=2)}
        dist.leaves_alone("top_p", given, lambda d, source, mass=mass: top_p(d, mass))


top_p = Check(
    "top_p",
    [
        *parts(
            _top_p,
            crossing=lambda rng: _sums(rng, 1 / 2),
            exact=lambda rng: _sums(rng, 0.0),
            ends=lambda rng: [(random_distribution(rng, 5, zeros=1), 1.0), (random_distribution(rng, 4), 1 / 128)],
            ties=_ties,
        ),
        _top_p_argument,
    ],
)


def _proposed(propose: Callable[..., Any], q: Distribution, mass: float) -> dict[str, Distribution]:
    """What the draft is drawn from, and each distribution that is reported."""

    def program(source: Visitor) -> tuple[int, tuple[float, ...]]:
        x, reported = dist.as_tuple(propose(list(q), mass, source), "x, reported")
        return dist.as_token(x, "the draft"), tuple(dist.as_numbers(reported, "the reported distribution"))

    branches = dist.exact_distribution(program, certain=True)
    drawn = {x: sum(r for (y, _), r in branches.items() if y == x) for x, _ in branches}
    reports = sorted({tuple(round(a, 6) for a in row) for _, row in branches})
    return {"drawn from": dist.as_list(drawn, len(q))} | {f"reported {i}": list(r) for i, r in enumerate(reports, 1)}


def _side(drawn: Callable[..., Distribution], reported: Callable[..., Distribution] = _cut) -> Callable[..., Any]:
    return lambda q, mass, source: (source.categorical(drawn(q, mass)), reported(q, mass))


def _twice(q: Distribution, mass: float) -> Distribution:
    return _cut(_cut(q, mass), mass)


PROPOSALS: dict[str, Callable[..., Any]] = {
    "reported is q before the filter: report what the draft was drawn from.": _side(_cut, lambda q, mass: q),
    "the draft is drawn from q before the filter.": _side(lambda q, mass: q),
    "the draft is drawn from q before the filter, and that is reported.": _side(*[lambda q, mass: q] * 2),
    "what is reported is not scaled to one.": _side(_cut, _raw),
    "the distribution was filtered twice.": _side(_twice, _twice),
    "what is reported was filtered twice.": _side(_cut, _twice),
    "the likeliest token is taken: draw.": _side(lambda q, mass: dist.likeliest(q)),
}
_draft = Judge(
    "The draft, or the distribution that is reported for it",
    partial(_proposed, _side(_cut)),
    mistakes(lambda propose: partial(_proposed, propose), PROPOSALS),
    dist.ROWS,
    lambda q, mass: f"q = {show(q)}, mass = {mass:.4g}",
    call=_proposed,
)


def _decided(judge: Callable[..., Any], p: Distribution, x: int, reported: Distribution, mass: float) -> Distribution:
    """The exact distribution of the token that comes out."""

    def program(source: Visitor) -> int:
        return dist.as_token(judge(list(p), x, list(reported), mass, source), "what judge returns")

    return dist.as_list(dist.exact_distribution(program, certain=True), len(p))


def _rule(rows: Callable[..., tuple[Distribution, ...]]) -> Callable[..., int]:
    """A verdict where `rows` gives the test's p, the residual's p, and the draft's q."""

    def judge(p: Distribution, x: int, reported: Distribution, mass: float, source: Any) -> int:
        test, rest, q = rows(p, _cut(p, mass), reported, mass)
        return x if source.bernoulli(test[x] / (q[x] or 1)) else source.categorical(residual_of(rest, q))

    return judge


VERDICTS: dict[str, Callable[..., tuple[Distribution, ...]]] = {
    "the target's distribution was not filtered.": lambda p, cut, q, m: (p, p, q),
    "the test uses p before the filter, the residual p after it.": lambda p, cut, q, m: (p, cut, q),
    "the test uses p after the filter, the residual p before it.": lambda p, cut, q, m: (cut, p, q),
    "p was filtered, but not scaled to one.": lambda p, cut, q, m: (_raw(p, m), _raw(p, m), q),
    "the reported distribution was filtered a second time.": lambda p, cut, q, m: (cut, cut, _cut(q, m)),
}
JUDGES: dict[str, Callable[..., int]] = {
    "drawn from the filtered p, whatever the draft is: keep the draft by the rule of part 1.": (
        lambda p, x, q, m, source: source.categorical(_cut(p, m))
    ),
    "after a rejection the token comes from the filtered p, not from the residual.": (
        lambda p, x, q, m, source: x if source.bernoulli(_cut(p, m)[x] / q[x]) else source.categorical(_cut(p, m))
    ),
    "the draft itself comes out, untested.": lambda p, x, q, m, source: x,
    **{says: _rule(rows) for says, rows in VERDICTS.items()},
}
_judge = Judge(
    "The distribution of what comes out for a given draft",
    partial(_decided, _rule(lambda p, cut, q, m: (cut, cut, q))),
    mistakes(lambda judge: partial(_decided, judge), JUDGES),
    dist.DISTRIBUTION,
    lambda p, x, q, mass: f"p = {show(p)}, draft x = {x} drawn from {show(q)}, mass = {mass:.4g}",
    call=_decided,
)


def _two_filtered(rng: random.Random) -> tuple[Distribution, Distribution, float]:
    """p, q and a mass at which both lose something, not the same, and one token can be kept or dropped."""
    while True:
        p, q, mass = _untied(rng, 5), _untied(rng, 5), (2 * rng.randrange(40, 58) + 1) / 128
        pairs = [*zip(_cut(p, mass), _cut(q, mass), strict=True)]
        one_side = any(a > 0 == b for a, b in pairs) and any(a == 0 < b for a, b in pairs)
        smaller = 2 <= _size(p, mass) < 5 and _size(_cut(q, mass), mass) < _size(q, mass) < 5
        if one_side and smaller and any(0 < a < b for a, b in pairs):
            return p, q, mass


def _given_drafts(rng: random.Random) -> Iterator[Case]:
    for p, q, mass in (_two_filtered(rng) for _ in range(3)):
        yield from ((p, x, _cut(q, mass), mass) for x in range(5) if _cut(q, mass)[x] > 0)


def _both_together(propose: Callable[..., Any], judge: Callable[..., Any], rng: random.Random) -> None:
    """From the learner's draft to the learner's verdict: the filtered target's distribution."""

    def tokens(p: Distribution, q: Distribution, mass: float) -> Distribution:
        def program(source: Visitor) -> int:
            x, reported = dist.as_tuple(propose(list(q), mass, source), "x, reported")
            return dist.as_token(judge(list(p), x, reported, mass, source), "what judge returns")

        return dist.as_list(dist.exact_distribution(program), len(p))

    together = Judge("What comes out of both sides", lambda p, q, mass: _cut(p, mass), answer=dist.DISTRIBUTION)
    together(tokens, [_two_filtered(rng) for _ in range(4)])


both_sides = Check(
    "both_sides",
    [
        *parts(_draft, which=0, draft=lambda rng: [_two_filtered(rng)[1:] for _ in range(3)]),
        *parts(_judge, which=1, target=_given_drafts),
        _both_together,
    ],
)
