"""The blanks of lesson 05: acceptance, the roll-back, the budget, the end of a text, and what a draft's cache lacks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from specdec_course import plain_engine
from specdec_course.checks import Blank
from specdec_course.checks.check import Check
from specdec_course.checks.mistakes import Case, Judge, Mistake, judged, mistakes
from specdec_course.checks.models import WatchedModel
from specdec_course.checks.ps05_engine.answers import IDS, SEEN, WHOLE, Ids
from specdec_course.checks.ps05_engine.rounds import cut

_ACCEPTED = Judge(
    "The number of accepted drafts",
    plain_engine.accept_prefix,
    mistakes(
        lambda function: function,
        {
            "all drafts that agree were counted. Those after a rejected one answer a text that is never written.": (
                lambda drafted, best: sum(d == b for d, b in zip(drafted, best))
            ),
            "one too many: neither a rejected draft nor the target's own token is an accepted draft.": (
                lambda drafted, best: plain_engine.accept_prefix(drafted, best) + 1
            ),
            "one too many: the rejected draft was counted.": (
                lambda drafted, best: min(len(drafted), plain_engine.accept_prefix(drafted, best) + 1)
            ),
            "each draft was compared with the row after it. Row i judges draft i.": (
                lambda drafted, best: plain_engine.accept_prefix(drafted, best[1:])
            ),
        },
    ),
    replace(WHOLE, hint=lambda got, right: "count the drafts before the first that differs from `best`."),
)


def _rounds(rng: random.Random, *kept: int) -> list[Case]:
    """Rounds of six drafts of which the first `kept` agree; of the later ones all but the next do, too."""
    cases: list[Case] = []
    for n in kept:
        best = rng.sample(range(100, 200), 7)
        cases.append(([b if i != n else rng.randrange(50) for i, b in enumerate(best[:6])], best))
    return cases


def _fewer_drafts(rng: random.Random) -> list[Case]:
    best = rng.sample(range(100, 200), 3)
    return [([], best[:1]), (best[:1], best[:2]), ([7, 7], [7, best[0], 7])]


_ROLLED = Judge(
    "What the cache holds after the roll-back",
    lambda held, tokens: held[: len(tokens) - 1],
    [
        Mistake("nothing was taken back: rejected drafts stay in the cache.", lambda held, tokens: held),
        Mistake(
            "one token too many stays: the newest committed token is pending.", lambda held, tokens: held[: len(tokens)]
        ),
        Mistake("one committed token too many is gone.", lambda held, tokens: held[: len(tokens) - 2]),
        Mistake("the cache was emptied: keep what is right.", lambda held, tokens: []),
    ],
    SEEN,
    lambda held, tokens: f"the cache holds {held}, committed are {tokens}",
)  #


def _rolls_back(*right: int) -> Callable[..., None]:
    def part(roll_back: Callable[..., None], rng: random.Random) -> None:
        def learner(held: Ids, tokens: Ids) -> Ids:
            cache = WatchedModel(lambda tokens: ()).holding(held)
            roll_back(cache, tokens)
            return cache.held

        cases = []
        for n in right:
            text, drafted = rng.sample(range(100, 200), rng.randint(4, 7)), rng.sample(range(10, 99), 5)
            cases.append(([*text, *drafted], [*text, *drafted[:n], rng.randrange(9)]))
        _ROLLED(learner, cases)

    part.__name__ = f"roll_back after {right}"
    return part


_LIMIT = Judge(
    "The number of drafts",
    plain_engine.limit,
    mistakes(
        lambda function: function,
        {
            "a round adds one token more than it drafts: with all accepted the text would be one token too long.": (
                lambda gamma, room: min(gamma, room)
            ),
            "never more than gamma drafts.": lambda gamma, room: room - 1,
            "the room is not looked at: the last round may add more than the budget allows.": lambda gamma, room: gamma,
            "one draft more would fit.": lambda gamma, room: max(0, min(gamma, room - 2)),
        },
    ),
    replace(WHOLE, hint=lambda got, right: "more would fit." if got < right else "so many do not fit."),
)


def _budgets(least: int, most: int) -> Callable[[random.Random], list[Case]]:
    return lambda rng: [
        (gamma, room) for gamma in (4, 7, 1, 0) for room in rng.sample(range(least, most), most - least)
    ]


_MISSING = Judge(
    "What the draft's cache lacks",
    plain_engine.missing,
    mistakes(
        lambda function: function,
        {
            "only the pending token. After a fully accepted round the last draft is missing as well.": (
                lambda tokens, held: tokens[-1:]
            ),
            "that leaves out the pending token: no pass has taken it in yet.": lambda tokens, held: tokens[held:-1],
            "always two tokens: it can be one, or the whole prompt. `held` says how many are there.": (
                lambda tokens, held: tokens[-2:]
            ),
            "that begins one token too late.": lambda tokens, held: tokens[held + 1 :],
            "those are the tokens that the cache holds.": lambda tokens, held: tokens[:held],
            "everything is fed again: the cache holds the first `held` tokens already.": lambda tokens, held: tokens,
        },
    ),
    IDS,
)


def _lacking(*lacks: int) -> Callable[[random.Random], list[Case]]:
    def cases(rng: random.Random) -> list[Case]:
        texts = [rng.sample(range(10, 100), rng.randint(5, 9)) for _ in lacks]
        return [(text, max(0, len(text) - n)) for text, n in zip(texts, lacks)]

    return cases


def roll_back(cache: Any, tokens: Ids) -> None:
    """After this the cache holds every committed token but the pending one."""
    cache.truncate(len(tokens) - 1)


BLANKS = {
    "accept_prefix": Blank(
        judged(
            "accept_prefix",
            _ACCEPTED,
            some_agree=lambda rng: _rounds(rng, 2, 4, 1),
            none_agrees=lambda rng: _rounds(rng, 0),
            all_agree=lambda rng: _rounds(rng, 6),
            fewer_drafts=_fewer_drafts,
        ),
        plain_engine.accept_prefix,
    ),
    "roll_back": Blank(Check("roll_back", [_rolls_back(2, 0), _rolls_back(4), _rolls_back(5)]), roll_back),
    "limit": Blank(
        judged("limit", _LIMIT, near_the_end=_budgets(1, 9), far_from_it=_budgets(20, 25)), plain_engine.limit
    ),
    "cut": Blank(cut, plain_engine.cut),
    "missing": Blank(
        judged("missing", _MISSING, usual=_lacking(1, 2, 1), first_round=_lacking(99)), plain_engine.missing
    ),
}
