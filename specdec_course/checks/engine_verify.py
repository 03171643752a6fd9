"""Problem set 05, part B: the greedy rule, and one pass of the target."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specdec_course.checks import Check, guard, wrong
from specdec_course.checks.engine_models import (
    VOCAB,
    WatchedModel,
    floats,
    ids,
    pair,
    random_distribution,
    same,
    shown,
    some_text,
    tempered,
)


def _block(rng: random.Random, agrees: Sequence[bool]) -> tuple[list[int], list[Tensor], Tensor]:
    """Drafts, their distributions and the target's, so that draft i is the best token of row i where `agrees[i]`."""
    p = torch.tensor([random_distribution(rng)((i,)) for i in range(len(agrees) + 1)], dtype=torch.float64)
    choices = p.argmax(-1).tolist()
    # A rejected draft is no row's best token, and rows that follow each other have different best ones.
    for i in range(1, len(choices)):
        while choices[i] == choices[i - 1]:
            p[i] = p[i][torch.tensor(rng.sample(range(VOCAB), VOCAB))]
            choices[i] = int(p[i].argmax())
    free = [x for x in range(VOCAB) if x not in choices] or [x for x in range(VOCAB)]
    drafted = []
    for a, c in zip(agrees, choices):
        drafted.append(c if a else rng.choice([x for x in free if x != c]))
    q = [torch.tensor(random_distribution(rng)((i,)), dtype=torch.float64) for i in range(len(agrees))]
    return drafted, q, p


def _look_at_rule(rule: Any, rng: random.Random, agrees: Sequence[bool]) -> None:
    drafted, q, p = _block(rng, agrees)
    choices = p.argmax(-1).tolist()
    accepted = next((i for i, a in enumerate(agrees) if not a), len(agrees))
    expected = (accepted, choices[accepted])
    given = (list(drafted), p.clone())
    with guard(f"drafted {drafted}, best token of each row {choices}"):
        first, second = pair(rule(drafted, q, p), "greedy_rule")
    if drafted != given[0] or not torch.equal(p, given[1]):
        raise wrong(
            "greedy_rule changed what it was given.",
            given=f"drafted {given[0]}, best token of each row {choices}",
            got=f"drafted {drafted}",
            mistake="whoever called it still needs the drafts: count them, and leave them as they are",
        )
    try:
        got = (int(first), int(second))
    except (TypeError, ValueError):
        raise wrong("greedy_rule should return two whole numbers.", got=(first, second)) from None
    if got == expected:
        return
    mistake = ""
    if got[0] == sum(agrees) != accepted:
        mistake = "all drafts that agree were counted: behind a rejected one nothing counts"
    elif got[0] == accepted - 1:
        mistake = "one kept draft too few"
    elif got[0] == accepted:
        if accepted and got[1] == choices[accepted - 1]:
            mistake = "the token comes from one row too early: row i speaks about the place behind i drafts"
        elif accepted < len(drafted) and got[1] == drafted[accepted]:
            mistake = "the rejected draft itself came out: the target's choice belongs there"
        elif got[1] == choices[-1]:
            mistake = "the last row was taken, as if all drafts had been kept"
        else:
            mistake = f"the token belongs to row {accepted} of p, which has seen the kept drafts and no others"
    raise wrong(
        "The greedy rule keeps the agreeing prefix and gives the target's choice behind it.",
        given=f"drafted {drafted}, best token of each row {choices}",
        got=got,
        expected=expected,
        mistake=mistake,
    )


def rule_keeps_the_prefix(rule: Any, rng: random.Random) -> None:
    """Some drafts agree; also behind one that does not."""
    for agrees in ([True, False, True, True], [False, True, True], [False], [True, True, False, True]):
        _look_at_rule(rule, rng, agrees)
    for _ in range(20):
        agrees = [rng.random() < 0.7 for _ in range(rng.randint(1, 7))]
        agrees[rng.randrange(len(agrees))] = False
        _look_at_rule(rule, rng, agrees)


def rule_gives_the_bonus(rule: Any, rng: random.Random) -> None:
    """All drafts agree, or there are none: the last row's choice follows."""
    for g in range(9):
        _look_at_rule(rule, rng, [True] * g)


greedy = Check("greedy rule", [rule_keeps_the_prefix, rule_gives_the_bonus])


def _verified(
    verify: Any, rng: random.Random, gamma: int, T: float, answer: Callable[[list[int]], tuple[int, int]] | None = None
) -> SimpleNamespace:
    """One call of the learner's `verify` and everything around it."""
    distribution, tokens = random_distribution(rng), some_text(rng)
    model = WatchedModel(distribution)
    cache, calls = model.holding(tokens[:-1]), []
    drafted = [rng.randrange(VOCAB) for _ in range(gamma)]
    q = [torch.tensor(random_distribution(rng)((i,)), dtype=torch.float64) for i in range(gamma)]
    answered = answer(drafted) if answer else (0, rng.randrange(VOCAB))

    def rule(drafted: Any, q: Any, p: Any) -> tuple[int, int]:
        calls.append((drafted, q, p))
        return answered

    given = (list(tokens), list(drafted))
    with guard(f"tokens {tokens}, drafted {drafted}, temperature {T:g}"):
        emitted = verify(model, cache, tokens, drafted, q, rule, T)
    if (tokens, drafted) != given:
        raise wrong(
            "verify changed a list that it was given.",
            given=f"tokens {given[0]}, drafted {given[1]}",
            got=f"tokens {tokens}, drafted {drafted}",
            mistake="return the emitted tokens in a new list; the loop commits them",
        )
    return SimpleNamespace(
        distribution=distribution, tokens=tokens, drafted=drafted, q=q,
        model=model, cache=cache, calls=calls, emitted=emitted,
        answered=answered,
    )  # fmt: skip


def verify_is_one_pass(verify: Any, rng: random.Random) -> None:
    """The pending token and the drafts go in, in one pass, and stay in the cache."""
    for gamma in reversed(range(9)):
        v = _verified(verify, rng, gamma, 0.0)
        fed, expected = [f for _, f in v.model.passes], [v.tokens[-1], *v.drafted]
        if fed == [expected] and v.cache.held != [*v.tokens, *v.drafted]:
            raise wrong(
                "After verify the cache holds `tokens` and `drafted`.",
                given=f"tokens {v.tokens}, drafted {v.drafted}; the rule kept none",
                got=v.cache.held,
                expected=[*v.tokens, *v.drafted],
                mistake="verify takes nothing out of the cache: the loop rolls it back when the tokens are committed",
            )
        if fed == [expected]:
            continue
        mistake = ""
        if fed == [v.drafted]:
            mistake = (
                "the pending token is not in the cache yet: without it there is no distribution for the first draft"
            )
        elif len(fed) > 1 and [t for one in fed for t in one] == expected:
            mistake = "one token a pass is plain decoding: all go in together"
        elif fed and fed[0][: len(v.tokens)] == v.tokens and len(v.tokens) > 1:
            mistake = "the cache holds the text already, all but the pending token"
        raise wrong(
            "verify makes one pass over the pending token and the drafts.",
            given=f"tokens {v.tokens}, drafted {v.drafted}",
            got=f"passes over {fed}",
            expected=f"one pass over {expected}",
            mistake=mistake,
        )


def verify_asks_the_rule(verify: Any, rng: random.Random) -> None:
    """The rule is asked once, with the drafts, their distributions and the target's, at the temperature asked for."""
    for gamma, T in ((3, 0.0), (1, 0.7), (4, 0.3), (5, 1.5), (0, 0.7)):
        v = _verified(verify, rng, gamma, T)
        given = f"tokens {v.tokens}, drafted {v.drafted}, temperature {T:g}"
        if len(v.calls) != 1:
            raise wrong("verify asks the rule that it is given, once.", given=given, got=f"{len(v.calls)} calls")
        drafted, q, p = v.calls[0]
        if ids(drafted, "The rule's first argument") != v.drafted:
            raise wrong("The rule's first argument is the drafts.", given=given, got=drafted, expected=v.drafted)
        rows = [floats(row, "A row of p") for row in p]
        if q is None or len(q) != gamma or any(not same(floats(a, "q"), b.tolist()) for a, b in zip(q, v.q)):
            raise wrong(
                "The rule's second argument is q, the distributions of the drafts, as verify was given them.",
                given=given,
                got="None" if q is None else None,
                mistake="p and q are exchanged" if gamma and same(rows[0], v.q[0].tolist()) else "",
            )
        expected = [tempered(v.distribution, [*v.tokens, *v.drafted[:i]], T) for i in range(gamma + 1)]
        if len(rows) != gamma + 1:
            raise wrong(
                f"The rule needs {gamma + 1} distributions of the target, one a draft and one behind them.",
                given=given,
                got=f"{len(rows)} rows",
                mistake="every row of the pass counts: the first judges the first draft, the last is for the bonus",
            )
        for i, (got, right) in enumerate(zip(rows, expected)):
            if same(got, right):
                continue
            before = [*v.tokens, *v.drafted[:i]]
            mistake = f"row {i} is the distribution behind the committed tokens and {i} drafts"
            if same(got, tempered(v.distribution, before, 1.0)):
                mistake = (
                    "this is the distribution at temperature 1: p needs the temperature that was asked for, as q does"
                )
            elif T > 0 and same(got, tempered(v.distribution, before, 0.0)):
                mistake = (
                    "this is the distribution at temperature 0, one-hot: p needs the temperature that was asked for"
                )
            elif same(got, [math.log(x) for x in v.distribution(tuple(before))]):
                mistake = "these are logits: the rule wants distributions"
            elif i + 1 < len(expected) and same(got, expected[i + 1]):
                mistake = "the rows are shifted by one: row 0 has seen no draft"
            raise wrong(
                f"Row {i} of p is not the target's distribution there.",
                given=given,
                got=shown(got),
                expected=shown(right),
                mistake=mistake,
            )


def verify_emits(verify: Any, rng: random.Random) -> None:
    """What the rule keeps, and its token; a stranger's rule decides, so any answer may come."""
    for gamma in (0, 1, 2, 3, 5, 8):
        for accepted in range(gamma + 1):
            token = rng.randrange(VOCAB)
            v = _verified(verify, rng, gamma, rng.choice([0.0, 0.8]), lambda drafted, a=accepted, t=token: (a, t))  # type: ignore[misc]
            got, expected = ids(v.emitted, "What verify returns"), [*v.drafted[:accepted], token]
            if got == expected:
                continue
            mistake = ""
            if got == [*v.drafted, token]:
                mistake = "rejected drafts stay in the output"
            elif got == v.drafted[:accepted]:
                mistake = "a round gives one token of the target behind the kept drafts: it is missing"
            elif got == [token]:
                mistake = "the kept drafts are missing"
            elif got == [*v.tokens, *expected]:
                mistake = "return the new tokens only"
            elif not v.calls:
                mistake = "the rule that verify is given decides, not a rule of its own"
            raise wrong(
                f"The rule kept {accepted} of {gamma} drafts and gave token {token}.",
                given=f"drafted {v.drafted}",
                got=got,
                expected=expected,
                mistake=mistake,
            )


verify = Check("verify", [verify_is_one_pass, verify_asks_the_rule, verify_emits])
