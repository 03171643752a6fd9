"""Problem set 05, parts B and C: the greedy rule, the target's pass, the roll-back, the budget and the stop."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specdec_course.checks import Check
from specdec_course.checks.mistakes import Answer, Judge, Mistake
from specdec_course.checks.models import VOCAB, WatchedModel, random_text, script
from specdec_course.checks.ps05_engine.answers import IDS, PROBABILITIES, SEEN, WHOLE, Case, Ids, as_two, as_whole
from specdec_ref.cache.dense import check_truncate
from specdec_ref.interfaces import Proposal
from specdec_ref.verify.greedy import verify_argmax


def _rows(rng: random.Random, n: int) -> Tensor:
    """`n` distributions `[n, vocab]`."""
    return torch.tensor([script(rng)((i,)) for i in range(n)], dtype=torch.float64).reshape(n, VOCAB)


def _kept(drafted: Ids, best: Ids) -> int:
    return verify_argmax(Proposal(drafted), best).accepted


def _rule(accepted: Callable[[Ids, Ids], int], row: Callable[[int], int] = lambda n: n) -> Callable[..., Ids]:
    """A rule that keeps `accepted(drafted, best)` drafts and takes its token from row `row(accepted)`."""

    def rule(drafted: Ids, q: Any, p: Tensor) -> Ids:
        best = p.argmax(-1).tolist()
        return [n := accepted(drafted, best), best[row(n)]]

    return rule


_VERDICT = Judge(
    "What greedy_rule returns, (accepted, token),",
    _rule(_kept),
    [
        Mistake(
            "all drafts that agree were counted, not the prefix.", _rule(lambda x, best: sum(map(operator.eq, x, best)))
        ),
        Mistake("one draft too few is kept.", _rule(lambda drafted, best: max(0, _kept(drafted, best) - 1))),
        Mistake("the token is from one row too early: row i has seen i drafts.", _rule(_kept, lambda n: max(0, n - 1))),
        Mistake("the last row was taken, as if all drafts had been kept.", _rule(_kept, lambda n: -1)),
        Mistake(
            "the rejected draft itself came out: the target's choice belongs there.",
            lambda drafted, q, p: [n := _kept(drafted, best := p.argmax(-1).tolist()), [*drafted, best[-1]][n]],
        ),
    ],
    Answer(
        lambda value, what, given: [
            as_whole(x, "Each of (accepted, token)", given) for x in as_two(value, what, given)
        ],
        operator.eq,
        hint=lambda got, right: f"keep the agreeing prefix, and take the token from row {right[0]}.",
    ),
    lambda drafted, q, p: f"drafted {drafted}, best token of each row {p.argmax(-1).tolist()}",
)


def _judge_rule(rule: Any, rng: random.Random, patterns: list[list[bool]]) -> None:
    """Draft i is the best token of row i where the pattern says so."""
    cases = []
    for agrees in patterns:
        p, q = _rows(rng, len(agrees) + 1), list(_rows(rng, len(agrees)))
        best = p.argmax(-1).tolist()
        cases.append(([b if a else (b + rng.randrange(1, VOCAB)) % VOCAB for a, b in zip(agrees, best)], q, p))
    _VERDICT(rule, cases)


def _rule_keeps_the_prefix(rule: Any, rng: random.Random) -> None:
    """Some drafts agree; also after one that does not."""
    patterns = [[rng.random() < 0.7 for _ in range(rng.randint(1, 7))] for _ in range(20)]
    for agrees in patterns:
        agrees[rng.randrange(len(agrees))] = False
    _judge_rule(rule, rng, [[True, False, True, True], [False, True, True], [False], *patterns])


def _rule_gives_the_bonus(rule: Any, rng: random.Random) -> None:
    _judge_rule(rule, rng, [[True] * g for g in range(9)])


greedy = Check("greedy rule", [_rule_keeps_the_prefix, _rule_gives_the_bonus])


def _round(rng: random.Random, gamma: int, accepted: int, T: float = 0.0) -> Case:
    case = Case(script(rng), random_text(rng), gamma, T=T, drafted=random_text(rng, gamma, gamma))
    return case._replace(q=list(_rows(rng, gamma)), accepted=accepted, token=rng.randrange(VOCAB))


def _run(verify: Any, case: Case) -> SimpleNamespace:
    """What the learner's `verify` did and returned, with a rule that answers as planned whatever it sees."""
    model, calls = WatchedModel(case.p, name="target"), list[Any]()
    cache = model.holding(case.tokens[:-1])

    def rule(drafted: Any, q: Any, p: Any) -> Any:
        calls.append((drafted, q, p))
        return case.accepted, case.token

    emitted = verify(model, cache, case.tokens, case.drafted, case.q, rule, case.T)
    return SimpleNamespace(emitted=emitted, calls=calls, fed=[fed for _, fed in model.passes], cached=cache.held)


_ONE_PASS = Judge(
    "The tokens that go into the target, pass by pass,",
    lambda c: [[c.tokens[-1], *c.drafted]],
    [
        Mistake("the pending token is not in the cache yet: no row judges the first draft.", lambda c: [c.drafted]),
        Mistake("one token per pass is plain decoding.", lambda c: [[x] for x in (c.tokens[-1], *c.drafted)]),
        Mistake("the cache holds the text already, all but the pending token.", lambda c: [[*c.tokens, *c.drafted]]),
    ],
    SEEN,
    str,
)
_LEFT = "verify takes nothing out of the cache: the loop rolls it back afterwards."
_CACHED = Judge("The cache after verify", lambda c: c.tokens + c.drafted, (), replace(SEEN, hint=lambda *_: _LEFT), str)


def _verify_is_one_pass(verify: Any, rng: random.Random) -> None:
    cases = [(_round(rng, gamma, rng.randint(0, gamma)),) for gamma in reversed(range(9))]
    _ONE_PASS(lambda case: _run(verify, case).fed, cases)
    _CACHED(lambda case: _run(verify, case).cached, cases)


def _asked(c: Case, T: float | None = None, first: int = 0, last: int = 0) -> Any:
    rows = range(first, len(c.drafted or ()) + 1 - last)
    return [(c.drafted, c.q, [c.after(i, T) for i in rows])]


_RULE = Judge(
    "What the rule is asked, (drafted, q, p) in each call,",
    _asked,
    [
        Mistake("the rule that verify is given is asked once, with all drafts.", lambda c: []),
        Mistake("p and q are exchanged.", lambda c: [(x, p, q) for x, q, p in _asked(c)]),
        Mistake("p is at temperature 1: use the temperature that was asked for.", lambda c: _asked(c, 1.0)),
        Mistake("p is at temperature 0: use the temperature that was asked for.", lambda c: _asked(c, 0.0)),
        Mistake(
            "p is in logits.",
            lambda c: [(x, q, torch.tensor(p).log()) for x, q, p in _asked(c, 1.0)],
        ),
        Mistake("the first row is missing: it judges the first draft.", lambda c: _asked(c, first=1)),
        Mistake("the last row is missing: it is for the bonus.", lambda c: _asked(c, last=1)),
        Mistake("the second argument is q, as verify was given it.", lambda c: [(x, None, p) for x, _, p in _asked(c)]),
    ],
    PROBABILITIES,
    str,
)


def _verify_asks_the_rule(verify: Any, rng: random.Random) -> None:
    cases = [(_round(rng, gamma, 0, T),) for gamma, T in ((3, 0.0), (1, 0.7), (4, 0.3), (5, 1.5), (0, 0.7))]
    _RULE(lambda case: _run(verify, case).calls, cases)


_EMITTED = Judge(
    "What verify returns",
    lambda c: [*c.drafted[: c.accepted], c.token],
    [
        Mistake("rejected drafts stay in the output.", lambda c: [*c.drafted, c.token]),
        Mistake("the target's token after the kept drafts is missing.", lambda c: c.drafted[: c.accepted]),
        Mistake("the kept drafts are missing.", lambda c: [c.token]),
        Mistake("return the new tokens only.", lambda c: [*c.tokens, *c.drafted[: c.accepted], c.token]),
    ],
    replace(IDS, hint=lambda *_: "the rule that verify is given decides, not a rule of its own."),
    str,
)


def _verify_emits(verify: Any, rng: random.Random) -> None:
    counts = [(gamma, accepted) for gamma in (0, 1, 2, 3, 5, 8) for accepted in range(gamma + 1)]
    cases = [(_round(rng, *count, rng.choice([0.0, 0.8])),) for count in counts]
    _EMITTED(lambda case: _run(verify, case).emitted, cases)


verify = Check("verify", [_verify_is_one_pass, _verify_asks_the_rule, _verify_emits])


def _truncated(story: str, held: Ids, tokens: Ids) -> Ids:
    check_truncate(len(held), len(tokens) - 1)
    return held[: len(tokens) - 1]


def _how_far(got: Ids, right: Ids) -> str:
    n = len(got) - len(right)
    if n == 1:
        return "one token too many stays. The newest committed token is pending: no pass has taken it in yet."
    if n > 1:
        return f"{n} tokens too many stay, rejected drafts among them."
    return f"{-n} committed token{'s are' if n < -1 else ' is'} lost: rolled back too far."


_ROLLED = Judge(
    "What the cache holds after the roll-back",
    lambda story, held, tokens: held[: len(tokens) - 1],
    [
        Mistake("nothing was rolled back: rejected drafts stay in the cache.", lambda story, held, tokens: held),
        Mistake("the cache was emptied: keep what is right.", lambda story, held, tokens: []),
        Mistake("there is nothing to take back: this cache is shorter than what may stay.", _truncated),
    ],
    replace(SEEN, hint=_how_far),
    lambda story, held, tokens: f"{story}; the cache holds {held}, committed are {tokens}",
    refuses=(ValueError,),
)


def _judge_roll_back(roll_back: Any, cases: list[tuple[str, Ids, Ids]]) -> None:
    def learner(story: str, held: Ids, tokens: Ids) -> Ids:
        cache = WatchedModel(lambda tokens: ()).holding(held)
        roll_back(cache, tokens)
        return cache.held

    _ROLLED(learner, cases)


def _rounds(rng: random.Random, whose: str, unfed: int, ended: bool = False) -> list[tuple[str, Ids, Ids]]:
    """Rounds of up to 8 drafts, any number of them kept; all but the last `unfed` of them went into the cache.

    ended: the last of those kept ended the text.
    """
    cases = []
    for gamma, kept in ((g, k) for g in range(8, unfed - 1, -1) for k in range(ended, g + 1)):
        text, drafted = random_text(rng, 1, 6), random_text(rng, gamma, gamma)
        tokens = [*text, *drafted[:kept], *([] if ended else [rng.randrange(VOCAB)])]
        story = f"{whose}, {kept} of {gamma} drafts kept" + ", the last of them ended the text" * ended
        cases.append((story, [*text, *drafted[: gamma - unfed]], tokens))
    return cases


def _rolls_back_the_target(roll_back: Any, rng: random.Random) -> None:
    _judge_roll_back(roll_back, _rounds(rng, "target", 0))


def _rolls_back_the_draft(roll_back: Any, rng: random.Random) -> None:
    _judge_roll_back(roll_back, _rounds(rng, "draft", 1))


def _rolls_back_after_a_cut(roll_back: Any, rng: random.Random) -> None:
    """The text was cut inside the block, or nothing was drafted for some rounds and the cache is far behind."""
    texts = [random_text(rng, 2, 6) for _ in range(8)]
    behind = [("draft, no drafts for some rounds", text[: rng.randint(0, len(text) - 2)], text) for text in texts]
    _judge_roll_back(roll_back, _rounds(rng, "target", 0, True) + _rounds(rng, "draft", 1, True) + behind)


rollback = Check("roll_back", [_rolls_back_the_target, _rolls_back_the_draft, _rolls_back_after_a_cut])


def most_drafts(gamma: int, n_tokens: int, end: int, draft_context: int | None = None) -> int:
    """The largest number of drafts with which text and draft's cache stay within their limits, found by trying."""
    places = n_tokens + gamma if draft_context is None else draft_context
    return max(g for g in range(gamma + 1) if g == 0 or (n_tokens + g + 1 <= end and n_tokens + g - 1 <= places))


def _slip(says: str, count: Callable[[int, int, int, int], int]) -> Mistake:
    return Mistake(says, lambda g, n, end, context=None: count(g, n, end, 10**6 if context is None else context))


_COUNT = Judge(
    "The number of drafts",
    most_drafts,
    [
        _slip("a round gives one token more than it keeps drafts.", lambda g, n, end, c: most_drafts(g, n, end + 1, c)),
        _slip("the draft's cache would hold more than its context.", lambda g, n, end, c: most_drafts(g, n, end)),
        _slip("a context of 0 has no place; no limit is None.", lambda g, n, end, c: most_drafts(g, n, end, c or None)),
        _slip("more would fit: the last draft is never fed.", lambda g, n, end, c: most_drafts(g, n, end, c - 1)),
        _slip("the draft's cache would hold one token too many.", lambda g, n, end, c: most_drafts(g, n, end, c + 1)),
        _slip("never fewer than 0 drafts.", lambda g, n, end, c: min(g, end - n - 1, c - n + 1)),
        _slip("never more than gamma drafts.", lambda g, n, end, c: max(0, min(end - n - 1, c - n + 1))),
        _slip("more would fit: the text may have `end` tokens.", lambda g, n, end, c: most_drafts(g, n, end - 1, c)),
    ],
    replace(WHOLE, hint=lambda got, right: "more would fit." if got < right else "so many do not fit."),
)


def _limit_keeps_the_budget(how_many: Any, rng: random.Random) -> None:
    starts = [(gamma, rng.randint(1, 50)) for gamma in range(9)]
    _COUNT(how_many, [(gamma, n, n + room) for gamma, n in starts for room in range(1, gamma + 4)])


def _limit_keeps_the_drafts_context(how_many: Any, rng: random.Random) -> None:
    """The draft's context is larger than all, nearly full, full, much too short, or 0."""
    cases = []
    for gamma, n in ((gamma, rng.randint(20, 40)) for gamma in (8, 5, 3, 1, 0)):
        rooms = (100, rng.choice([1, 2]))
        cases += [(gamma, n, n + room, c) for c, room in product([500, *range(n + 11, n - 5, -1), 4, 0], rooms)]
    _COUNT(how_many, cases)


limit = Check("how_many_drafts", [_limit_keeps_the_budget, _limit_keeps_the_drafts_context])


def up_to_the_stop(emitted: Ids, eos: Any) -> Ids:
    """The emitted tokens up to the first end token, and that one too."""
    stops = [i for i, token in enumerate(emitted) if token in eos]
    return emitted[: stops[0] + 1] if stops else emitted


def _to_the_last(emitted: Ids, eos: Any) -> Ids:
    return emitted[::-1][next(i for i, x in enumerate(emitted[::-1]) if x in eos) :][::-1]


def _where(got: Ids, right: Ids) -> str:
    return f"the end of the text {'stands inside the block' if len(got) > len(right) else 'comes later, or never'}."


_CUT = Judge(
    "What cut returns",
    up_to_the_stop,
    [
        Mistake("several tokens may end the text.", lambda emitted, eos: up_to_the_stop(emitted, list(eos)[:1])),
        Mistake("the last end token was taken: the first end token ends the text.", _to_the_last),
        Mistake(
            "the end token belongs to the text.", lambda x, eos: [t for t in up_to_the_stop(x, eos) if t not in eos]
        ),
    ],
    replace(IDS, hint=_where),
)


def _cuts_at_every_place(cut: Any, rng: random.Random) -> None:
    """One end token, at each place of a block; sometimes twice in it."""
    cases: list[tuple[Ids, Any]] = []
    for n, i in ((size, at) for size in range(1, 8) for at in range(size)):
        block = rng.sample(range(100, 200), n)
        cases.append((block, rng.choice([(block[i],), [block[i]], {block[i]}])))
        cases += [([*block[: i + 1], *block[i:]], (block[i],))] if i + 2 < n else []
    _CUT(cut, cases)


def _cuts_at_several_ends(cut: Any, rng: random.Random) -> None:
    cases = []
    for block in (rng.sample(range(100, 200), rng.randint(3, 7)) for _ in range(12)):
        eos = rng.sample([*rng.sample(block, 2), 7, 0], 4)
        cases.append((block, rng.choice([tuple(eos), list(eos), set(eos), frozenset(eos)])))
    _CUT(cut, cases)


def _cuts_nothing_else(cut: Any, rng: random.Random) -> None:
    none: list[Any] = [(), [], set(), (7,), {7, 8}]
    _CUT(cut, [*((rng.sample(range(10, 110), rng.randint(1, 6)), eos) for eos in none), ([0, 1, 2], ())])


cut = Check("cut", [_cuts_at_every_place, _cuts_at_several_ends, _cuts_nothing_else])
