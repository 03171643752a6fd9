"""Problem set 05, part A: drafting with a cache."""

from __future__ import annotations

import math
import random
from itertools import product
from typing import Any

from specdec_course.checks import Check, guard, wrong
from specdec_course.checks.engine_models import (
    CLOSE,
    WatchedModel,
    best,
    floats,
    greedy_text,
    ids,
    pair,
    random_distribution,
    same,
    shown,
    some_text,
    tempered,
)
from specdec_ref.proof.enumeration import enumerate_distribution
from specdec_ref.sampling import RandomSource


def _drafted(draft: Any, model: WatchedModel, cache: Any, tokens: list[int], gamma: int, T: float, source: Any) -> Any:
    """What the learner's `draft` returns: (ids, distributions as they came); `tokens` stays as it was."""
    before = list(tokens)
    given = f"tokens {tokens}, the cache holds {cache.held}, gamma {gamma}, temperature {T:g}"
    with guard(given, passing=RuntimeError):  # what an enumerating source raises
        drafted, distributions = pair(draft(model, cache, tokens, gamma, T, source), "draft")
    if list(tokens) != before:
        raise wrong(
            "draft changed the list `tokens` that it was given.",
            given=before,
            got=tokens,
            mistake="drafts are no part of the text yet: collect them in a list of their own",
        )
    drafted = ids(drafted, "What draft returns first, the drafted tokens,")
    try:
        n_distributions = len(distributions)
    except TypeError:
        raise wrong("draft should return a list of distributions behind the tokens.", got=distributions) from None
    if len(drafted) != gamma or n_distributions != gamma:
        raise wrong(
            f"{gamma} drafts were asked for; draft returned {len(drafted)} tokens and {n_distributions} distributions.",
            mistake="every drawn token is handed over, with its distribution: none may be dropped after it was drawn",
        )
    return drafted, distributions


def drafts_are_greedy(draft: Any, rng: random.Random) -> None:
    """At temperature 0 the drafts are what the draft model itself would write; the cache lacks one token."""
    for gamma in range(1, 9):
        distribution, tokens = random_distribution(rng), some_text(rng)
        model = WatchedModel(distribution)
        got, distributions = _drafted(draft, model, model.holding(tokens[:-1]), tokens, gamma, 0.0, RandomSource(1))
        expected = greedy_text(distribution, tokens, gamma)
        if got != expected:
            first = floats(distributions[0], "Distribution 0")
            mistake = "read the last row of each pass, and feed each draft in the pass behind it"
            if model.passes and model.passes[0][1] == tokens:
                mistake = "the whole text was fed: what the cache holds already must not be fed again"
            elif gamma > 1 and got == [expected[0]] * gamma:
                mistake = "each draft continues the same text: feed the draft before, not the pending token again"
            elif got[0] == best(distribution, tokens[:-1]):
                mistake = "the pending token was not fed before the first draft"
            elif same(first, tempered(distribution, tokens, 1.0)):
                mistake = (
                    "this is the distribution at temperature 1: hand `distribution` the temperature asked for, here 0"
                )
            raise wrong(
                f"The greedy drafts are others (gamma {gamma}).",
                given=f"tokens {tokens}, the cache holds all but the last",
                got=got,
                expected=expected,
                mistake=mistake,
            )


def draft_catches_up(draft: Any, rng: random.Random) -> None:
    """The cache may lack more than the pending token: one more after a good round, everything before the first one."""
    for lacking in (2, "everything", "a text of one token", 4):
        distribution, gamma = random_distribution(rng), rng.randint(2, 6)
        tokens = some_text(rng, 1, 1) if lacking == "a text of one token" else some_text(rng, 5, 9)
        held = tokens[:-lacking] if isinstance(lacking, int) else []
        model = WatchedModel(distribution)
        got, _ = _drafted(draft, model, model.holding(held), tokens, gamma, 0.0, RandomSource(1))
        expected = greedy_text(distribution, tokens, gamma)
        if got != expected:
            first = model.passes[0] if model.passes else ([], [])
            mistake = f"the first pass was fed {first[1]}; the cache lacked {tokens[len(held) :]}"
            if first[1] == tokens[len(held) :] and got[0] == best(distribution, tokens[: len(held) + 1]):
                mistake = (
                    "the first row of the first pass was read: it has seen one of the tokens that were fed. The last "
                )
                mistake += "row, [-1], has seen them all"
            elif first[1] == tokens[-1:]:
                mistake += ": with the pending token alone there is a hole in the cache. It lacks the last draft, too, "
                mistake += "after a round in which all drafts were kept"
            elif held and first[1] == tokens:
                mistake += ": what it holds already must not be fed again"
            raise wrong(
                "The drafts are wrong where the cache lacks more than the pending token.",
                given=f"tokens {tokens}, the cache holds {held}",
                got=got,
                expected=expected,
                mistake=mistake,
            )


def draft_reports_its_distributions(draft: Any, rng: random.Random) -> None:
    """Each draft comes with the distribution of its place, at the temperature that was asked for."""
    for T in (0.0, 0.3, 0.7, 1.5):
        distribution, tokens, gamma = random_distribution(rng), some_text(rng), rng.randint(2, 6)
        model, source = WatchedModel(distribution), RandomSource(rng.randrange(10**6))
        drafted, distributions = _drafted(draft, model, model.holding(tokens[:-1]), tokens, gamma, T, source)
        for i, got_distribution in enumerate(distributions):
            got, before = floats(got_distribution, f"Distribution {i}"), [*tokens, *drafted[:i]]
            expected = tempered(distribution, before, T)
            if same(got, expected):
                continue
            mistake = "hand over distribution(row, temperature) of the row that the token was drawn from"
            if same(got, tempered(distribution, before, 1.0)):
                mistake = "this is the distribution at temperature 1: the temperature asked for was left out"
                if T == 0:
                    mistake = (
                        "this is the softmax. At temperature 0 the draft is the argmax, and its distribution is one-hot"
                    )
            elif same(got, [math.log(x) for x in distribution(tuple(before))]):
                mistake = "these are the logits, not the distribution"
            elif same(got, tempered(distribution, [*before, drafted[i]], T)):
                mistake = "this is the distribution behind this draft, not the one that it was drawn from"
            elif T > 0 and same(got, tempered(distribution, before, 0.0)):
                mistake = "this is one-hot: above temperature 0 a draft is drawn from the softmax"
            elif same(got, tempered(distribution, tokens, T)):
                mistake = "this is the distribution of the first draft: every place has its own"
            raise wrong(
                f"Distribution {i} of {gamma} is not the one that draft {i} is drawn from at temperature {T}.",
                given=f"tokens {tokens}, drafts {drafted}",
                got=shown(got),
                expected=shown(expected),
                mistake=mistake,
            )


def drafts_follow_their_distribution(draft: Any, rng: random.Random) -> None:
    """Two drafts over three tokens, for every way that chance can fall: their distribution is the product of the
    distributions.
    """
    T, distribution, tokens = rng.choice([0.6, 0.8, 1.4]), random_distribution(rng, 3), some_text(rng, 2, 4, vocab=3)
    asked = []

    def program(source: Any) -> tuple[int, ...]:
        model = WatchedModel(distribution, 3)
        drafted, _ = _drafted(draft, model, model.holding(tokens[:-1]), tokens, 2, T, source)
        asked.append(len(getattr(source, "choices", ())))
        return tuple(drafted)

    try:
        got = enumerate_distribution(program)
    except RuntimeError:
        raise wrong("The same choices of `source` gave different drafts: some chance comes from elsewhere.") from None
    expected = {
        (x, y): tempered(distribution, tokens, T)[x] * tempered(distribution, [*tokens, x], T)[y]
        for x, y in product(range(3), repeat=2)
    }
    off = max((abs(got.get(k, 0) - v), k) for k, v in expected.items())
    if off[0] > CLOSE:
        mistake = "each draft is one draw, source.categorical(its distribution), whatever comes"
        if not any(asked):
            mistake = "`source` was never asked: draw with source.categorical(...)"
            if {program(RandomSource(i)) for i in range(20)} == {tuple(greedy_text(distribution, tokens, 2))}:
                mistake = (
                    "the likeliest token is taken, so its distribution is one-hot, not the softmax that is handed over"
                )
        raise wrong(
            f"Drafts do not follow the distributions they come with (temperature {T:g}): look at the drafts {off[1]}.",
            given=f"tokens {tokens}, gamma 2, every outcome of the source",
            got=f"probability {got.get(off[1], 0):.4f}",
            expected=f"probability {expected[off[1]]:.4f}",
            mistake=mistake,
        )
    if set(asked) != {2}:
        raise wrong(
            "Each draft is one draw: one call of source.categorical(its distribution).",
            given=f"tokens {tokens}, gamma 2, temperature {T:g}",
            got=f"{max(asked)} random choices",
            expected="2 random choices",
            mistake="a draw was made and not used: later draws come out otherwise than from the same seed elsewhere",
        )


def draft_keeps_its_cache(draft: Any, rng: random.Random) -> None:
    """gamma passes, nothing fed twice; then the cache holds the text and all drafts but the last. Gamma 0: nothing."""
    for gamma in [0, *range(1, 9)]:
        distribution, tokens = random_distribution(rng), some_text(rng, 4, 8)
        held = tokens[: -rng.randint(1, 2)]
        model = WatchedModel(distribution)
        cache = model.holding(held)
        drafted, _ = _drafted(draft, model, cache, tokens, gamma, rng.choice([0.0, 0.9]), RandomSource(7))
        expected = [*tokens, *drafted[:-1]] if gamma else held
        right = [(held, tokens[len(held) :])] + [([*tokens, *drafted[:i]], [drafted[i]]) for i in range(gamma - 1)]
        right, n = right[:gamma], len(model.passes)
        if model.passes == right and cache.held == expected:
            continue
        mistake = "at first feed all that the cache lacks, then each draft once"
        if gamma == 0:
            mistake = "without drafts nothing happens: nothing is taken in, and the cache stays as it is"
        elif n == gamma + 1 and cache.held == [*tokens, *drafted]:
            mistake = "the last draft was fed, too: that is one pass more than there are drafts"
        elif n > gamma:
            mistake = "take in all that the cache lacks in one pass"
        elif model.passes == right:
            mistake = (
                "draft takes nothing out of the cache: it is not known yet which drafts are kept. Rolling back is "
            )
            mistake += "part C"
        elif n == gamma and cache.held == expected:
            mistake = "what the cache held before was fed again: leave it there, and feed only what it lacks"
        elif cache.held == held or n < gamma:
            mistake = "the cache that was handed in is not used"
        raise wrong(
            f"Passes and cache are not as they should be, with gamma {gamma}.",
            given=f"tokens {tokens}, the cache held {held}; drafted {drafted}",
            got=f"{n} passes, over {[fed for _, fed in model.passes]}; cache {cache.held}",
            expected=f"{gamma} passes, over {[fed for _, fed in right]}; cache {expected}",
            mistake=mistake,
        )


draft = Check(
    "draft",
    [
        drafts_are_greedy,
        draft_catches_up,
        draft_reports_its_distributions,
        drafts_follow_their_distribution,
        draft_keeps_its_cache,
    ],
)
