"""Problem set 05, part A: drafting with a cache."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

from specdec_course.checks import Check, wrong
from specdec_course.checks.distributions import Visitor, exact_distribution
from specdec_course.checks.mistakes import Judge, Mistake
from specdec_course.checks.models import WatchedModel, random_text, script, text_after
from specdec_course.checks.ps05_engine.answers import IDS, PROBABILITIES, SEEN, Case, as_ids, as_two
from specdec_ref.sampling import RandomSource


def _run(draft: Any, case: Case, source: Any = None) -> SimpleNamespace:
    """What the learner's `draft` returned, the tokens of each pass, and what the cache holds afterwards."""
    model = WatchedModel(case.p, case.vocab, name="draft model")
    cache = model.holding(case.cached or ())
    answer = draft(model, cache, case.tokens, case.gamma, case.T, source or RandomSource(1))
    tokens, rows = as_two(answer, "draft", case)
    tokens, n = as_ids(tokens, "The drafted tokens", case), len(rows) if hasattr(rows, "__len__") else repr(rows)
    if len(tokens) != case.gamma or n != case.gamma:
        what = f"{case.gamma} drafts were asked for; draft returned {len(tokens)} tokens and {n} distributions."
        mistake = "every drawn token is handed over, with its distribution: none may be dropped after it was drawn."
        raise wrong(what, given=str(case), mistake=mistake)
    return SimpleNamespace(tokens=tokens, rows=list(rows), fed=[fed for _, fed in model.passes], cached=cache.held)


def _first_row(case: Case) -> list[int]:
    first = text_after(case.p, case.tokens[: len(case.cached) + 1], 1)  # type: ignore[arg-type]
    return [*first, *text_after(case.p, [*case.tokens, *first], case.gamma - 1)]


_HOLE = "with the pending token alone there is a hole in the cache: the last draft of a good round never went in."
_GREEDY = Judge(
    "The text that is drafted at temperature 0",
    lambda c: text_after(c.p, c.tokens, c.gamma),
    [
        Mistake("what the cache holds must not be fed again.", lambda c: text_after(c.p, c.cached + c.tokens, c.gamma)),
        Mistake(_HOLE, lambda c: text_after(c.p, c.cached + c.tokens[-1 if c.cached else 0 :], c.gamma)),
        Mistake(_HOLE, lambda c: text_after(c.p, c.cached + c.tokens[-1:], c.gamma)),
        Mistake("the pending token was not fed at first.", lambda c: text_after(c.p, c.tokens[:-1], c.gamma)),
        Mistake("each draft continues the same text.", lambda c: text_after(c.p, c.tokens, 1) * c.gamma),
        Mistake("the first row of the first pass was read; the last has seen all tokens.", _first_row),
        Mistake(
            "these are draws at temperature 1: hand `distribution` the temperature asked for, here 0.",
            lambda c: text_after(c.p, c.tokens, c.gamma, 1.0, RandomSource(1)),
        ),
    ],
    replace(IDS, hint=lambda *_: "read the last row of each pass, and feed each draft in the pass after it."),
    str,
)


def _drafts_are_greedy(draft: Any, rng: random.Random) -> None:
    texts = [random_text(rng) for _ in range(8)]
    cases = [(Case(script(rng), text, gamma, text[:-1]),) for gamma, text in enumerate(texts, 1)]
    _GREEDY(lambda case: _run(draft, case).tokens, cases)


def _draft_catches_up(draft: Any, rng: random.Random) -> None:
    """The cache may lack more than the pending token: one more after a good round, everything before the first one."""
    texts = [random_text(rng, least, most) for least, most in ((5, 9), (5, 9), (1, 1), (5, 9))]
    cached: list[list[int]] = [texts[0][:-2], [], [], texts[3][:-4]]
    cases = [(Case(script(rng), text, rng.randint(2, 6), start),) for text, start in zip(texts, cached)]
    _GREEDY(lambda case: _run(draft, case).tokens, cases)


_ROW = Judge(
    "The distribution that a draft came from",
    lambda c, i: c.after(i),
    [
        Mistake("this is the softmax, at temperature 1: it has to be one-hot at 0.", lambda c, i: c.after(i, 1.0)),
        Mistake("this is one-hot, as at temperature 0.", lambda c, i: c.after(i, 0.0)),
        Mistake("these are the logits.", lambda c, i: [math.log(x) for x in c.p((*c.tokens, *c.drafted[:i]))]),
        Mistake("this is the distribution one draft later.", lambda c, i: c.after(i + 1)),
        Mistake("this is the first draft's distribution: each has its own.", lambda c, i: c.after(0)),
    ],
    PROBABILITIES,
    lambda c, i: f"{c}; draft {i + 1}",
)


def _draft_reports_its_distributions(draft: Any, rng: random.Random) -> None:
    for T in (0.0, 0.3, 0.7, 1.5):
        tokens, source = random_text(rng), RandomSource(rng.randrange(10**6))
        case = Case(script(rng), tokens, rng.randint(2, 6), tokens[:-1], T)
        run = _run(draft, case, source)
        _ROW(lambda c, i: run.rows[i], [(case._replace(drafted=run.tokens), i) for i in range(case.gamma)])  # noqa: B023


def _two_drafts(case: Case, T: float) -> dict[Any, float]:
    """The distribution of two drafts over three tokens."""
    second = [case._replace(drafted=[x]).after(1, T) for x in range(3)]
    return {(x, y): case.after(0, T)[x] * second[x][y] for x, y in product(range(3), repeat=2)}


_DRAWN = Judge(
    "How often which two drafts come, over every outcome of the source,",
    lambda case: _two_drafts(case, case.T),
    [
        Mistake(
            "the likeliest token is taken, so its distribution is one-hot, not the softmax that is handed over.",
            lambda case: {tuple(text_after(case.p, case.tokens, 2)): 1.0},
        ),
        Mistake("these are draws at temperature 1.", lambda case: _two_drafts(case, 1.0)),
    ],
    replace(PROBABILITIES, hint=lambda *_: "each draft is one draw, source.categorical(its distribution)."),
    str,
)


def _drafts_follow_their_distribution(draft: Any, rng: random.Random) -> None:
    T, tokens, draws = rng.choice([0.6, 0.8, 1.4]), random_text(rng, 2, 4, vocab=3), set()
    case = Case(script(rng, 3), tokens, 2, tokens[:-1], T, vocab=3)

    def program(source: Visitor) -> tuple[int, ...]:
        counted = SimpleNamespace(draws=0)

        def categorical(q: Any) -> int:
            counted.draws += 1
            return source.categorical(q)

        counted.categorical = categorical
        drafted = _run(draft, case, counted).tokens
        draws.add(counted.draws)
        return tuple(drafted)

    _DRAWN(lambda _: exact_distribution(program, certain=True), [(case,)])
    if draws != {2}:
        what = "Each draft is one draw: one call of source.categorical(its distribution)."
        mistake = "a draw that is not used changes every later one: the same seed gives a different text elsewhere."
        raise wrong(what, given=str(case), got=f"{max(draws)} random choices for two drafts", mistake=mistake)


_CACHE = Judge(
    "The tokens of each pass, with what the cache holds afterwards,",
    lambda c, new, x: ([new, *([i] for i in x[:-1])], [*c.tokens, *x[:-1]]) if x else ([], c.cached),
    [
        Mistake("the last draft was fed, too.", lambda c, new, x: ([new, *([i] for i in x)], [*c.tokens, *x])),
        Mistake(
            "draft takes nothing out of the cache: nobody knows yet which drafts are kept. Rolling back is part C.",
            lambda c, new, x: ([new, *([i] for i in x[:-1])], c.tokens[:-1]),
        ),
        Mistake(
            "what the cache held before was fed again: leave it there, and feed only what it lacks.",
            lambda c, new, x: ([[*c.tokens, *x[:i]] for i in range(len(x))], [*c.tokens, *x[:-1]]),
        ),
    ],
    replace(SEEN, hint=lambda *_: "gamma passes: all that the cache lacks in one pass, then each draft but the last."),
    lambda c, new, x: f"{c}, drafted {x}",
)


def _draft_keeps_its_cache(draft: Any, rng: random.Random) -> None:
    for gamma in range(9):
        tokens, T = random_text(rng, 4, 8), rng.choice([0.0, 0.9])
        case = Case(script(rng), tokens, gamma, tokens[: -rng.randint(1, 2)], T)
        new = tokens[len(case.cached) :]  # type: ignore[arg-type]
        run = _run(draft, case, RandomSource(7))
        _CACHE(lambda *_: (run.fed, run.cached), [(case, new, run.tokens)])  # noqa: B023


_PARTS = [_drafts_are_greedy, _draft_catches_up, _draft_reports_its_distributions, _drafts_follow_their_distribution]
draft = Check("draft", [*_PARTS, _draft_keeps_its_cache])
