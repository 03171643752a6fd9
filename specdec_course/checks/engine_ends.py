"""Problem set 05, part C: rolling back, the budget and the stop."""

from __future__ import annotations

import random
from typing import Any

from specdec_course.checks import Check, guard, wrong
from specdec_course.checks.engine_models import (
    VOCAB,
    WatchedModel,
    ids,
    random_distribution,
    some_text,
)


def _rolled(roll_back: Any, rng: random.Random, held: list[int], tokens: list[int], keep: int, story: str) -> None:
    """Roll back a cache that holds `held`; afterwards it must hold `keep` of these tokens."""
    cache = WatchedModel(random_distribution(rng)).holding(held)
    given = f"{story}; the cache holds {held}, committed are {tokens}"
    before = list(tokens)
    with guard(given):
        try:
            roll_back(cache, tokens)
        except ValueError as error:
            if "cannot truncate" not in str(error):
                raise
            mistake = ""
            if keep == len(held):
                mistake = "there is nothing to take back: this cache is shorter than all tokens but the pending one"
            what, expected = f"roll_back raised: {error}.", f"cache {held[:keep]}"
            raise wrong(what, given=given, got=str(error), expected=expected, mistake=mistake) from None
    if tokens != before:
        raise wrong("roll_back changed the list of committed tokens.", given=before, got=tokens)
    if cache.held == held[:keep]:
        return
    n, mistake = cache.length, ""
    if n == len(held):
        mistake = "nothing was rolled back: rejected drafts stay in the cache"
    elif n == 0:
        mistake = "the cache was emptied: then the whole text has to be fed again. Keep what is right"
    elif n == keep + 1:
        mistake = "one token too many stays. The newest committed token is pending: no pass has taken it in, and what "
        mistake += "stands in its place is a rejected draft"
    elif n > keep:
        mistake = f"{n - keep} tokens too many stay: rejected drafts are among them"
    elif n < keep:
        mistake = f"{keep - n} committed token{'s are' if keep - n > 1 else ' is'} lost: rolled back too far"
    raise wrong(
        "After the roll-back the cache holds other tokens than it should.",
        given=given,
        got=cache.held,
        expected=held[:keep],
        mistake=mistake,
    )


def rolls_back_the_target(roll_back: Any, rng: random.Random) -> None:
    """gamma drafts, 0 to gamma kept: the target's cache held the text, the pending token and all drafts."""
    for gamma in reversed(range(9)):  # many drafts first: what was not rolled back is told from one token too many
        for accepted in range(gamma + 1):
            text, drafted = some_text(rng, 1, 6), [rng.randrange(VOCAB) for _ in range(gamma)]
            tokens = [*text, *drafted[:accepted], rng.randrange(VOCAB)]
            story = f"target, {accepted} of {gamma} drafts kept"
            _rolled(roll_back, rng, [*text, *drafted], tokens, len(text) + accepted, story)


def rolls_back_the_draft(roll_back: Any, rng: random.Random) -> None:
    """The draft's cache held all drafts but the last; where all were kept, nothing is to be taken back."""
    for gamma in reversed(range(1, 9)):
        for accepted in range(gamma + 1):
            text, drafted = some_text(rng, 1, 6), [rng.randrange(VOCAB) for _ in range(gamma)]
            tokens = [*text, *drafted[:accepted], rng.randrange(VOCAB)]
            held = [*text, *drafted[:-1]]
            keep = min(len(held), len(text) + accepted)
            _rolled(roll_back, rng, held, tokens, keep, f"draft, {accepted} of {gamma} drafts kept")


def rolls_back_after_a_cut(roll_back: Any, rng: random.Random) -> None:
    """The text was cut inside the block, or nothing was drafted for some rounds and the cache is far behind."""
    for _ in range(8):
        gamma = rng.randint(3, 7)
        text, drafted = some_text(rng, 2, 6), [rng.randrange(VOCAB) for _ in range(gamma)]
        kept = rng.randint(1, gamma - 1)  # the last of these ended the text
        tokens = [*text, *drafted[:kept]]
        story = f"all {gamma} drafts kept, but draft {kept} ended the text"
        _rolled(roll_back, rng, [*text, *drafted], tokens, len(tokens) - 1, f"target, {story}")
        _rolled(roll_back, rng, [*text, *drafted[:-1]], tokens, len(tokens) - 1, f"draft, {story}")
        behind = rng.randint(0, len(text) - 2)
        _rolled(roll_back, rng, text[:behind], text, behind, "draft, no drafts for some rounds")


rollback = Check("roll_back", [rolls_back_the_target, rolls_back_the_draft, rolls_back_after_a_cut])


def _counted(how_many: Any, gamma: int, n: int, end: int, context: int | None) -> None:
    """Compare with the largest g for which text and draft's cache stay within their limits, found by trying."""
    fits = [
        g
        for g in range(gamma + 1)
        if g == 0 or (n + g + 1 <= end and (context is None or len([*range(n), *range(g - 1)]) <= context))
    ]
    where = f"gamma {gamma}, {n} tokens now, end at {end}" + ("" if context is None else f", draft's context {context}")
    with guard(where):
        got = how_many(gamma, n, end) if context is None else how_many(gamma, n, end, context)
    try:
        same_number = got is not None and int(got) == got == max(fits)
    except (TypeError, ValueError):
        same_number = False
    if same_number:
        return
    mistake = ""
    if isinstance(got, (int, float)):
        if got < 0:
            mistake = "never fewer than 0 drafts"
        elif got > gamma:
            mistake = "never more than gamma drafts"
        elif n + got + 1 > end:
            mistake = "a round gives one token more than it keeps drafts: leave room for it"
        elif context is not None and n + got - 1 > context:
            mistake = f"the draft's cache would hold {n + int(got) - 1} tokens, and it has place for {context}"
        elif got < max(fits):
            mistake = (
                "more would fit: the last draft never goes into the draft's cache, and the last emitted token is free"
            )
    raise wrong("Another number of drafts is right.", given=where, got=got, expected=max(fits), mistake=mistake)


def limit_keeps_the_budget(how_many: Any, rng: random.Random) -> None:
    """Every room from 1 to gamma + 3."""
    for gamma in range(9):
        n = rng.randint(1, 50)
        for room in range(1, gamma + 4):
            _counted(how_many, gamma, n, n + room, None)


def limit_keeps_the_drafts_context(how_many: Any, rng: random.Random) -> None:
    """The draft's context is larger than all, nearly full, full, or much too short."""
    for gamma in (0, 1, 3, 5, 8):
        n = rng.randint(20, 40)
        for context in [4, *range(n - 4, n + 12), 500]:
            _counted(how_many, gamma, n, n + rng.choice([1, 2, gamma + 1, 100]), context)
            _counted(how_many, gamma, n, n + 100, context)


limit = Check("how_many_drafts", [limit_keeps_the_budget, limit_keeps_the_drafts_context])


def _was_cut(cut: Any, emitted: list[int], eos: Any, end: int) -> None:
    before, given = list(emitted), f"emitted {emitted}, eos {eos}"
    with guard(given):
        result = cut(emitted, eos)
    if result is not None and not hasattr(result, "__len__"):
        what = "cut has to return a list: the loop looks at its last token, and counts it."
        raise wrong(what, given=given, got=repr(result), mistake="a generator can be read only once: return a list")
    if emitted != before:
        raise wrong(
            "cut changed the list that it was given.",
            given=given,
            got=emitted,
            mistake="whoever called it still needs that list: make a new one, emitted[:n] for instance",
        )
    got, expected = ids(result, "What cut returns"), before[:end]
    if got == expected:
        return
    mistake = ""
    stops = [i for i, t in enumerate(before) if t in eos]
    if stops[1:] and got == before[: stops[-1] + 1] != before:
        mistake = "the first end token ends the text, not the last one"
    elif stops and got == before:
        mistake = "the end of the text stands inside the block, and what follows it was kept"
    elif stops and got == before[: end - 1]:
        mistake = "the end token itself belongs to the text"
    elif not stops:
        mistake = "no token here ends the text: all are kept"
    raise wrong("The text ends elsewhere.", given=given, got=got, expected=expected, mistake=mistake)


def cuts_at_every_place(cut: Any, rng: random.Random) -> None:
    """One end token, at each place of a block; sometimes twice in it."""
    for n in range(1, 8):
        for i in range(n):
            emitted = rng.sample(range(100, 200), n)
            _was_cut(cut, list(emitted), rng.choice([(emitted[i],), [emitted[i]], {emitted[i]}]), i + 1)
            if i + 2 < n:
                _was_cut(cut, [*emitted[: i + 1], *emitted[i:]], (emitted[i],), i + 1)


def cuts_at_several_ends(cut: Any, rng: random.Random) -> None:
    """Several end tokens: the first in the block counts, whichever of them it is."""
    for _ in range(12):
        emitted = rng.sample(range(100, 200), rng.randint(3, 7))
        places = sorted(rng.sample(range(len(emitted)), 2))
        eos = [emitted[places[1]], emitted[places[0]], 7, 0]
        rng.shuffle(eos)
        _was_cut(cut, emitted, rng.choice([tuple(eos), list(eos), set(eos), frozenset(eos)]), places[0] + 1)


def cuts_nothing_else(cut: Any, rng: random.Random) -> None:
    """No end token in the block, or none at all."""
    none: list[Any] = [(), [], set(), (7,), {7, 8}]
    for eos in none:
        emitted = rng.sample(range(100), rng.randint(1, 6))
        emitted = [t + 10 for t in emitted]
        _was_cut(cut, emitted, eos, len(emitted))
    _was_cut(cut, [0, 1, 2], (), 3)


cut = Check("cut", [cuts_at_every_place, cuts_at_several_ends, cuts_nothing_else])
