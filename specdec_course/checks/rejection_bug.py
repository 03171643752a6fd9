"""Checks of problem set 04: the bug in given code, an input that shows it, and its repair."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from specdec_course.checks import Check, wrong
from specdec_course.checks.distributions import (
    Distribution,
    Model,
    Visitor,
    as_list,
    as_numbers,
    as_pair,
    as_tokens,
    exact_distribution,
    floats,
    likely_slip,
    one_hot,
    prefix_model,
    same_distribution,
    show,
    text_distribution,
    total_variation,
)


def _careful_draft(draft: Model, prefix: list[int], gamma: int, source: Visitor, sure: float = 0.5) -> Any:
    """The given code with its bug, as it stands in the notebook: an unsure draft is dropped after it was drawn."""
    drafts: list[int] = []
    distributions: list[Any] = []
    while len(drafts) < gamma:
        q = draft(prefix + drafts)
        x = source.categorical(q)
        if q[x] < sure:
            break
        drafts.append(x)
        distributions.append(q)
    return drafts, distributions


def _behind(model: Model, prefix: Sequence[int]) -> Model:
    """The model, asked for what follows `prefix`."""
    return lambda tokens: model([*prefix, *tokens])


def _round(
    drafter: Callable[..., Any], target: Model, draft: Model, gamma: int, sure: float, prefix: Sequence[int] = ()
) -> dict[Any, float]:
    """The distribution of a round behind `prefix` with these drafts, verified as it should be."""
    target = _behind(target, prefix)

    def program(source: Visitor) -> tuple[int, ...]:
        drafts, distributions = as_pair(drafter(draft, list(prefix), gamma, source, sure), "repaired_draft")
        x = list(as_tokens(drafts, "the drafts"))
        q = [as_numbers(distribution, "each reported distribution") for distribution in distributions]
        if len(x) > gamma or len(q) != len(x):
            raise wrong(
                f"at most {gamma} drafts, and one distribution for each",
                got=f"{len(x)} drafts and {len(q)} distributions",
            )
        for i, (token, distribution) in enumerate(zip(x, q, strict=True)):
            p = target(x[:i])
            if not 0 <= token < len(distribution) or distribution[token] <= 0:
                raise wrong(
                    "a draft has probability 0 in the distribution that was reported for it",
                    got=f"draft {token}, distribution {show(distribution)}",
                )
            if not source.bernoulli(min(1.0, p[token] / distribution[token])):
                missing = [max(0.0, a - b) for a, b in zip(p, distribution, strict=True)]
                return (*x[:i], source.categorical(missing if sum(missing) > 1e-12 else p))
        return (*x, source.categorical(target(x)))

    return exact_distribution(program)


def _witness_shows(witness: Callable[..., Any], rng: random.Random) -> None:
    returned = witness()
    if not isinstance(returned, (tuple, list)) or len(returned) != 3:
        raise wrong("witness has to return three lists: p, q, emitted", got=repr(returned))
    p, q = as_numbers(returned[0], "p"), as_numbers(returned[1], "q")
    distribution = returned[2]
    if isinstance(distribution, dict):  # as first_token_distribution gives it
        distribution = [distribution.get(x, 0.0) for x in range(len(p))]
    claimed = as_numbers(distribution, "emitted")
    if len({len(p), len(q), len(claimed)}) != 1 or len(p) < 2:
        raise wrong("p, q and emitted need one number for each of the same tokens", got=f"{p}, {q}, {claimed}")
    for name, distribution in (("p", p), ("q", q)):
        if min(distribution) < 0 or abs(sum(distribution) - 1) > 1e-6:
            raise wrong(f"{name} is no distribution: no entry below 0, and a sum of 1", got=show(distribution))
    rounds = _round(_careful_draft, lambda _: p, lambda _: q, gamma=1, sure=0.5)
    first: dict[int, float] = {}
    for emitted, share in rounds.items():
        first[emitted[0]] = first.get(emitted[0], 0.0) + share
    came = as_list(first, len(p))
    given = f"p = {show(p)}, q = {show(q)}"
    if total_variation(came, p) < 0.02:
        sure, unsure = ([x for x in q if x > 0 and (x >= 0.5) == s] for s in (True, False))
        likely = (
            "the draft is sure of each token that it may draw: none is ever dropped."
            if not unsure
            else "the draft is sure of no token: every one is dropped, and the target goes on alone."
            if not sure
            else "what is dropped turns into nearly the same here: try another p, or a draft that is unsure more often."
        )
        raise wrong(
            "on this input the given code is right, or nearly so: a total variation of 0.02 or more is wanted",
            given=given,
            got=f"distribution of the first token {show(came)}, total variation {total_variation(came, p):.3f}",
            mistake=likely,
        )
    if max(abs(a - b) for a, b in zip(claimed, came, strict=True)) > 0.0051:  # 0.135 is 0.14 in two digits
        sure_part = [min(a, b) if b >= 0.5 else 0.0 for a, b in zip(p, q, strict=True)]
        slips = {
            "this is p, what should come out; wanted is what does.": p,
            "this is q.": q,
            "the draws from p, after a draft was dropped, are left out.": sure_part,
        }
        raise wrong(
            "the input shows the bug, but the distribution that comes out is another one than you say",
            given=given,
            got=f"emitted = {show(claimed)}",
            expected=show(came),
            mistake=likely_slip(
                claimed, slips, "add up: sure drafts that are kept, corrections, and p where one is dropped."
            ),
        )


witness = Check("witness", [_witness_shows])


def _repair_exact(repaired_draft: Callable[..., Any], rng: random.Random) -> None:
    expected: list[float]
    for sure in (0.5, rng.choice([0.25, 0.375]), 0.625):
        target, draft = prefix_model(rng, 3), prefix_model(rng, 3)
        prefix = [rng.randrange(3) for _ in range(rng.randrange(1, 4))]
        while not sure <= max(draft(prefix)) < 1 or min(draft(prefix)) >= sure:
            draft = prefix_model(rng, 3)
        behind = _behind(target, prefix)
        got = text_distribution(_round(repaired_draft, target, draft, 2, sure, prefix), behind, 3, 3)
        expected = text_distribution({(): 1.0}, behind, 3, 3)
        if same_distribution(got, expected):
            continue
        given_code = text_distribution(_round(_careful_draft, target, draft, 2, sure, prefix), behind, 3, 3)
        first = [sum(got[9 * x : 9 * x + 9]) for x in range(3)]
        slips = {
            "this is still what the given code does: a draft that was drawn is dropped because of what it is. Decide "
            "before the draw, or propose it and stop behind it.": given_code
        }
        raise wrong(
            "with the repaired drafts the text does not follow the target's distribution",
            given=f"prefix = {prefix}, gamma = 2, sure = {sure}, first token: p = {show(behind([]))}, "
            f"q = {show(draft(prefix))}",
            got=f"distribution of the first token {show(first)} (and of the text behind it)",
            expected=show(behind([])),
            mistake=likely_slip(
                got,
                slips,
                "the distribution that is reported has to be the one that the draft was drawn from, for each draft.",
            ),
        )


def _proposals(repaired_draft: Callable[..., Any], q: Distribution, gamma: int, sure: float) -> set[int]:
    """How many drafts may come."""

    def program(source: Visitor) -> int:
        drafts, _ = as_pair(repaired_draft(lambda _: floats(q), [], gamma, source, sure), "repaired_draft")
        return len(as_tokens(drafts, "the drafts"))

    return set(exact_distribution(program, certain=True))


def _repair_drafts(repaired_draft: Callable[..., Any], rng: random.Random) -> None:
    half, quarter = Fraction(1, 2), Fraction(1, 4)
    certain = one_hot(4, rng.randrange(4))
    # In this order: what goes wrong in a later case only has a cause that the earlier ones rule out.
    cases = [
        ([half, half], 0.375, "a sure draft is followed by the next: each is judged by itself, no product, no coin."),
        ([half, half], 0.5, "sure is q >= sure, the border included."),
        ([half, half, Fraction(0)], 0.5, "a token that q cannot give, q(x) = 0, counts as an unsure one: min(q) is 0."),
        (certain, 0.5, "a token that q cannot give, q(x) = 0, counts as an unsure one."),
        ([quarter] * 4, 0.25, "is the argument `sure` used? It is 0.25 here."),
    ]
    for q, sure, likely in cases:
        for gamma in (1, 3):
            came = _proposals(repaired_draft, q, gamma, sure)
            if came != {gamma}:
                if came == {0} and (q, sure) == cases[0][:2]:
                    likely = "nothing is drafted at all: exact, and of no use."
                raise wrong(
                    "the draft is sure of every token that it may draw: all drafts are wanted",
                    given=f"q = {show(q)} after every prefix, gamma = {gamma}, sure = {sure}",
                    got=f"{' or '.join(map(str, sorted(came)))} drafts",
                    expected=f"{gamma} drafts",
                    mistake=likely,
                )


def _repair_stops(repaired_draft: Callable[..., Any], rng: random.Random) -> None:
    gone = "the early stop is gone. Keep it: only *when* it is decided, or which token it drops, was wrong."
    for parts, sure, likely in (
        ([14, 15, 17, 18], 0.5, gone),
        ([40, 24], 0.75, "is the argument `sure` used? It is 0.75 here."),
        ([15, 15, 14, 11, 9], 0.25, gone),
    ):
        q = [Fraction(n, 64) for n in parts]
        rng.shuffle(q)
        came = _proposals(repaired_draft, q, 3, sure)
        if max(came) > 1:
            raise wrong(
                "the draft is sure of no token, and is still asked for more: at most one draft is wanted",
                given=f"q = {show(q)} after every prefix, gamma = 3, sure = {sure}",
                got=f"up to {max(came)} drafts",
                mistake=likely,
            )


def _repair_prefix(repaired_draft: Callable[..., Any], rng: random.Random) -> None:
    """The prefix stays as it is: the caller asks the target with it."""
    draft, prefix = prefix_model(rng, 3), [rng.randrange(3) for _ in range(2)]

    def program(source: Visitor) -> int:
        given = list(prefix)
        repaired_draft(draft, given, 2, source, 0.25)
        if given != prefix:
            raise wrong(
                "the prefix was changed: one_round goes on with it, and would ask the target for wrong places",
                given=f"prefix = {prefix}",
                got=f"afterwards prefix = {given}",
                mistake="prefix.append or prefix += ...: prefix + drafts is a new list.",
            )
        return 0

    exact_distribution(program, certain=True)


repair = Check("repair", [_repair_exact, _repair_drafts, _repair_stops, _repair_prefix])
