"""Checks of the bug in given code: an input that shows it, `witness`, and a drafter without it, `repair`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from specdec_course.checks import Check, wrong
from specdec_course.checks import distributions as dist
from specdec_course.checks.distributions import Distribution, Model, Visitor, show
from specdec_course.checks.mistakes import Answer, Case, Judge, mistakes, parts
from specdec_course.checks.ps04_rejection.rounds import engine_round
from specdec_ref.proof import autoregressive_distribution, completed_distribution, difference

Texts = dict[tuple[int, ...], float]
"""Lists of tokens -> probability."""


def _drafter(
    dropped: Callable[[float, float], bool] = lambda q_x, sure: False,
    asked: Callable[[list[int], list[int]], list[int]] = lambda prefix, drafts: prefix + drafts,
) -> Callable[..., Any]:
    """A drafter that stops after a draft that it is not sure of, or drops it; and what it asks the draft model for."""

    def draft_some(draft: Model, prefix: list[int], gamma: int, source: Any, sure: float = 0.5) -> Any:
        drafts: list[int] = []
        distributions: list[Distribution] = []
        while len(drafts) < gamma and not (drafts and distributions[-1][drafts[-1]] < sure):
            q = draft(asked(prefix, drafts))
            x = source.categorical(q)
            if dropped(q[x], sure):
                break
            drafts.append(x)
            distributions.append(q)
        return drafts, distributions

    return draft_some


_careful = _drafter(dropped=lambda q_x, sure: q_x < sure)
"""The given code with its bug, as it stands in the notebook."""


def _texts(
    drafter: Callable[..., Any], target: Model, draft: Model, gamma: int, sure: float, prefix: list[int]
) -> Texts:
    """The distribution of gamma + 1 tokens after `prefix`: a round by the engine's rule, then the target alone."""

    def program(source: Visitor) -> tuple[int, tuple[int, ...]]:
        drafts, rows = dist.as_tuple(drafter(draft, list(prefix), gamma, source, sure), "drafts, distributions")
        x, q = dist.as_tokens(drafts, "the drafts"), [dist.as_numbers(row, "each distribution") for row in rows]
        if len(x) > gamma or len(q) != len(x):
            what = f"at most {gamma} drafts, and one distribution for each, are wanted."
            raise wrong(what, got=f"{len(x)} drafts and {len(q)} distributions")
        for y, row in zip(x, q, strict=True):
            if not 0 <= y < len(row) or row[y] <= 0 or abs(sum(row) - 1) > dist.ROUNDING:
                what = (
                    "a draft needs a probability above 0 in the distribution that is reported for it, which sums to 1."
                )
                raise wrong(what, got=f"draft {y}, distribution {show(row)}")
        return 0, tuple(engine_round(x, q, [target([*prefix, *x[:i]]) for i in range(len(x) + 1)], source))

    return completed_distribution(dist.exact_distribution(program), lambda x: target([*prefix, *x]), gamma + 1)


def _first(texts: Texts, size: int = 3) -> Distribution:
    return [sum(r for tokens, r in texts.items() if tokens[0] == x) for x in range(size)]


def _witness_shows(witness: Callable[..., Any], rng: random.Random) -> None:
    p, q, said = dist.as_tuple(witness(), "p, q, emitted")
    p, q = dist.as_numbers(p, "p"), dist.as_numbers(q, "q")
    if isinstance(said, dict):  # as first_token_distribution gives it
        said = [said.get(x, 0.0) for x in range(len(p))]
    said = dist.as_numbers(said, "emitted")
    if len({len(p), len(q), len(said)}) != 1 or len(p) < 2:
        raise wrong("p, q and emitted need one number for each of the same tokens.", got=f"{p}, {q}, {said}")
    for name, row in (("p", p), ("q", q)):
        if min(row) < 0 or abs(sum(row) - 1) > 1e-6:
            raise wrong(f"{name} is no distribution: no entry below 0, and a sum of 1.", got=show(row))
    came = _first(_texts(_careful, lambda _: p, lambda _: q, 1, 0.5, []), len(p))
    given, off = f"p = {show(p)}, q = {show(q)}", dist.distance(came, p)
    if off < 0.02:
        likely = "what is dropped turns into nearly the same here: try another p, or a draft that is unsure more often."
        if all(x >= 0.5 for x in q if x > 0):
            likely = "the draft is sure of each token that it may draw: none is ever dropped."
        if all(x < 0.5 for x in q):
            likely = "the draft is sure of no token: every one is dropped, and the target goes on alone."
        what = "on this input the given code is right, or nearly so: a total variation of 0.02 or more is wanted."
        raise wrong(what, given=given, got=f"first token {show(came)}, total variation {off:.3f}", mistake=likely)
    if max(abs(a - b) for a, b in zip(said, came, strict=True)) > 0.0051:  # 0.135 is 0.14 in two digits
        likely = "add up: sure drafts that are kept, corrections, and p where one is dropped."
        if dist.same_distribution(said, p):
            likely = "this is p, what should come out; wanted is what does."
        if dist.same_distribution(said, [min(a, b) * (b >= 0.5) for a, b in zip(p, q, strict=True)]):
            likely = "the draws from p, after a draft was dropped, are left out."
        what = "the input shows the bug, but another distribution comes out than you say."
        raise wrong(what, given=given, got=f"emitted = {show(said)}", expected=show(came), mistake=likely)


witness = Check("witness", [_witness_shows])

STILL = (
    "this is still what the given code does: a draft that was drawn is dropped because of what it is. Decide before "
    "the draw, or propose it and stop after it."
)
_text = Judge(
    "The distribution of the text after repaired drafts",
    lambda target, draft, gamma, sure, prefix: autoregressive_distribution(target, prefix, gamma + 1),
    mistakes(lambda drafter: partial(_texts, drafter), {STILL: _careful}),
    Answer(
        lambda value, what, given: value,
        lambda a, b: difference(a, b) <= dist.ROUNDING,
        lambda texts: f"first token {show(_first(texts))}",
        lambda got, right: "each reported distribution has to be the one that the draft was drawn from.",
    ),
    lambda target, draft, gamma, sure, prefix: (
        f"prefix = {prefix}, gamma = {gamma}, sure = {sure}, p = {show(target(prefix))}, q = {show(draft(prefix))}"
    ),
    call=_texts,
)


def _half_sure(rng: random.Random) -> Iterator[Case]:
    """A first draft that may be sure or not."""
    for sure in (0.5, rng.choice([0.25, 0.375]), 0.625):
        draft, prefix = dist.prefix_model(rng, 3), [rng.randrange(3) for _ in range(rng.randrange(1, 4))]
        while not min(draft(prefix)) < sure <= max(draft(prefix)):
            draft = dist.prefix_model(rng, 3)
        yield dist.prefix_model(rng, 3), draft, 2, sure, prefix


def _drafts(
    drafter: Callable[..., Any], draft: Model, prefix: list[int], gamma: int, sure: float
) -> list[tuple[int, ...]]:
    """All drafts that may come."""

    def program(source: Visitor) -> tuple[int, ...]:
        drafts, _ = dist.as_tuple(drafter(draft, list(prefix), gamma, source, sure), "drafts, distributions")
        return dist.as_tokens(drafts, "the drafts")

    return sorted(dist.exact_distribution(program, certain=True))


def _count(repaired_draft: Callable[..., Any], q: Distribution, sure: float, want: set[int], likely: str) -> None:
    """Raise CheckFailed where a number of drafts may come that is not among those wanted; with gamma = 3 where 0 is."""
    gamma = 3 if 0 in want else max(want)
    came = {len(drafts) for drafts in _drafts(repaired_draft, lambda _: q, [], gamma, sure)}
    if not came <= want:
        got, expected = (" or ".join(map(str, sorted(numbers))) for numbers in (came, want))
        given = f"q = {show(q)} after every prefix, sure = {sure}"
        raise wrong("the number of drafts is off.", given=given, got=got, expected=expected, mistake=likely)


def _repair_drafts(repaired_draft: Callable[..., Any], rng: random.Random) -> None:
    """A draft model that is sure of every token that it may draw."""
    # In this order: what goes wrong in a later case only has a cause that the earlier ones rule out.
    for q, sure, likely in (
        ([0.5, 0.5], 0.375, "a sure draft is followed by the next: each is judged by itself, no product, no coin."),
        ([0.5, 0.5], 0.5, "sure is q >= sure, the border included."),
        ([0.5, 0.5, 0.0], 0.5, "a token that q cannot give, q(x) = 0, counts as an unsure one: min(q) is 0."),
        ([0.0, 1.0, 0.0, 0.0], 0.5, "a token that q cannot give, q(x) = 0, counts as an unsure one."),
        ([0.25] * 4, 0.25, "is the argument `sure` used? It is 0.25 here."),
    ):
        _count(repaired_draft, q, sure, {1}, likely)
        _count(repaired_draft, q, sure, {3}, likely)


def _repair_stops(repaired_draft: Callable[..., Any], rng: random.Random) -> None:
    """A draft model that is sure of no token."""
    gone = "the early stop is gone. Keep it: only *when* it is decided, or which token it drops, was wrong."
    for q64, sure, likely in (
        ([14, 15, 17, 18], 0.5, gone),
        ([40, 24], 0.75, "is the argument `sure` used? It is 0.75 here."),
        ([15, 15, 14, 11, 9], 0.25, gone),
    ):
        _count(repaired_draft, [n / 64 for n in rng.sample(q64, len(q64))], sure, {0, 1}, likely)


CHAINS: dict[str, Callable[..., Any]] = {
    "nothing is drafted at all: exact, and of no use.": lambda *_: ([], []),
    "the draft model is asked without the prefix: draft(prefix + drafts).": _drafter(asked=lambda prefix, x: x),
    "the draft model is asked without the drafts before: draft(prefix + drafts).": _drafter(
        asked=lambda prefix, x: prefix
    ),
}
_chain = Judge(
    "The drafts of a draft model that is certain of each token",
    partial(_drafts, _drafter()),
    mistakes(lambda drafter: partial(_drafts, drafter), CHAINS),
    Answer(lambda value, what, given: value, lambda a, b: a == b),
    lambda draft, prefix, gamma, sure: f"prefix = {prefix}, gamma = {gamma}; each token depends on all before it",
    call=_drafts,
)


def _certain(rng: random.Random) -> Iterator[Case]:
    for weights in ([rng.randrange(1, 5) for _ in range(7)] for _ in range(3)):

        def draft(tokens: Sequence[int], weights: list[int] = weights) -> Distribution:
            token = sum(w * (int(t) + 1) for w, t in zip(weights, tokens, strict=False)) % 5
            return [float(x == token) for x in range(5)]

        yield draft, [rng.randrange(4) for _ in range(3)], 4, 0.5


def _repair_prefix(repaired_draft: Callable[..., Any], rng: random.Random) -> None:
    """The prefix stays as it is."""
    draft, given = dist.prefix_model(rng, 3), {"prefix": [rng.randrange(3) for _ in range(2)]}
    dist.leaves_alone("repaired_draft", given, lambda prefix, source: repaired_draft(draft, prefix, 2, source, 0.25))


repair = Check(
    "repair",
    [*parts(_text, exact=_half_sure), _repair_drafts, *parts(_chain, asks=_certain), _repair_stops, _repair_prefix],
)
