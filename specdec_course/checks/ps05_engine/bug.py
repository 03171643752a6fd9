"""Problem set 05, part E: an engine with a bug, a witness of it and a repair."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from specdec_course.checks import Check, guard, wrong
from specdec_course.checks.mistakes import Judge
from specdec_course.checks.models import VOCAB, WatchedModel, random_text, script, text_after
from specdec_course.checks.numbers import as_items
from specdec_course.checks.ps05_engine.answers import IDS, SEEN, Ids, as_ids, as_whole
from specdec_ref.models.scripted import ScriptedModel


def _remember(tokens: tuple[int, ...]) -> list[float]:
    chosen = (sum((i + 3) * (t + 1) for i, t in enumerate(tokens)) + 5 * len(tokens)) % 17 % 10
    return [0.91 if x == chosen else 0.01 for x in range(10)]


def remembering_model() -> ScriptedModel:
    """A scripted model over tokens 0 to 9 whose distribution depends on every token so far and on its place."""
    return ScriptedModel(_remember, vocab_size=10)


def _handed_in(propose: Any, prompt: Ids, n: int, gamma: int, note: Callable[[int, int], None]) -> Ids:
    """The engine that the notebook gives, with its bug; `note(drafted, accepted)` is called in each round."""
    model, tokens, end = remembering_model(), list(prompt), len(prompt) + n
    cache = model.new_cache(end)
    if len(tokens) > 1:
        model.forward(torch.tensor(tokens[:-1]), cache, slice(0))
    while len(tokens) < end:
        drafted = propose(tokens, min(gamma, end - len(tokens) - 1))
        best = model.forward(torch.tensor([tokens[-1], *drafted]), cache).argmax(-1).tolist()
        accepted = next((i for i, (x, b) in enumerate(zip(drafted, best)) if x != b), len(drafted))
        tokens += [*drafted[:accepted], best[accepted]]
        note(len(drafted), accepted)
        if accepted < gamma:
            cache.truncate(cache.length - (gamma - accepted))
    return tokens[len(prompt) :]


def _witness_shows_the_bug(witness: Any, rng: random.Random) -> None:
    given = as_items(witness())
    if given is None or len(given) != 4 or not callable(given[0]):
        raise wrong(
            "A witness is (propose, prompt, max_new_tokens, gamma), and propose is a function.", got=repr(given)
        )
    propose, prompt = given[0], as_ids(given[1], "The witness's prompt")
    n, gamma = as_whole(given[2], "The witness's max_new_tokens"), as_whole(given[3], "The witness's gamma")
    if not prompt or not all(0 <= t < 10 for t in prompt) or not (0 <= n <= 300 and 0 <= gamma <= 50):
        what = "The prompt has at least one token, ids 0 to 9; max_new_tokens is 0 to 300 and gamma 0 to 50."
        raise wrong(what, got=f"prompt {prompt}, max_new_tokens {n}, gamma {gamma}")
    rounds: list[tuple[int, int]] = []

    def held_to_its_word(tokens: Ids, most: int) -> Ids:
        drafted = as_ids(propose(list(tokens), most), "What propose returns")
        if len(drafted) > most or not all(0 <= t < 10 for t in drafted):
            mistake = "this breaks propose's promise, so the engine is not to blame."
            raise wrong(f"propose was asked for at most {most} tokens, ids 0 to 9.", got=drafted, mistake=mistake)
        return drafted

    try:
        got = _handed_in(held_to_its_word, prompt, n, gamma, lambda *counts: rounds.append(counts))
    except ValueError as error:
        if "cannot truncate" in str(error):
            return  # it goes wrong with an error
        raise
    if got == text_after(_remember, prompt, n):
        raise wrong(
            "On this input the engine is right.",
            given=f"prompt {prompt}, max_new_tokens {n}, gamma {gamma}",
            got=f"the text of plain decoding, {got}",
            expected="a different text, or an error",
            mistake=f"(drafted, kept) of the rounds: {rounds}. Which kind is missing, or comes only at the end?",
        )


witness = Check("witness", [_witness_shows_the_bug])


_READ = Judge(
    "What the target has read after each pass",
    lambda right, given: right,
    answer=replace(
        SEEN, hint=lambda *_: "ask propose for min(gamma, tokens left - 1) drafts in every round; use every draft."
    ),
    given=lambda right, given: given,
)


def _judge_repair(repaired: Any, rng: random.Random, short: bool, gamma: int, n: int) -> None:
    """Text and passes have to be those of a right engine, with a drafter whose offers are known."""
    p, prompt = script(rng), random_text(rng, 1, 6)
    model, start, end = WatchedModel(p), len(prompt), len(prompt) + n
    text = [*prompt, *text_after(p, prompt, n)]
    offers = {}  # at each length of the text: more than gamma tokens, or fewer, none at first
    for at in range(start, end):
        size = rng.randint(min(at == start + 1, gamma), gamma * (at > start)) if short else gamma + 2
        good = rng.choice([0, rng.randint(0, size), size])
        offers[at] = [t if i < good else (t + 1) % VOCAB for i, t in enumerate(text[at : at + size])]
    right, at = [], start  # what the target has read after each pass
    while at < end:
        drafts = offers[at][: max(0, min(gamma, end - at - 1))]
        right.append(text[:at] + drafts)
        at += next((i for i, (a, b) in enumerate(zip(drafts, text[at:])) if a != b), len(drafts)) + 1

    def propose(tokens: Sequence[int], most: int) -> Ids:
        return offers.get(len(tokens), [])[: max(0, most)]

    kind = "a drafter that offers fewer tokens than it may" if short else "a drafter that offers all it may"
    given = f"{kind}, prompt {prompt}, max_new_tokens {n}, gamma {gamma}"
    with guard(given):
        out = repaired(model, propose, list(prompt), n, gamma)
    passes = [(held, fed) for held, fed in model.passes if len(held) + len(fed) >= start]  # without the prompt alone
    hint = "the text ended before the budget was used up, or went on after it."
    for held, fed in reversed(passes):
        if held != text[: len(held)]:
            hint = f"the cache held {held}, and the text is {text[: len(held)]}: a rejected draft is left in it."
        elif len(held) < len(text) and fed[0] != text[len(held)]:
            hint = f"the cache held {held}, and {fed} was fed after it: a committed token is missing between."
    Judge("The text", lambda: text[start:], (), replace(IDS, hint=lambda *_: hint), lambda: given)(lambda: out, [()])
    for (held_before, fed_before), (held, fed) in pairwise(passes):
        read = held_before + fed_before
        if len(held) < next((i for i, (a, b) in enumerate(zip(read, text)) if a != b), len(read)):
            mistake = "no fresh cache in each round: roll back to what is right."
            what, got = "Tokens are fed again that the cache held before.", f"a pass over {fed}, after {held}"
            raise wrong(what, given=given, got=got, mistake=mistake)
    _READ(lambda right, given: [held + fed for held, fed in passes], [(right, given)])


def _repair_with_short_proposals(repaired: Any, rng: random.Random) -> None:
    for gamma in range(1, 9):
        _judge_repair(repaired, rng, True, gamma, rng.randint(8, 20))


def _repair_with_full_proposals(repaired: Any, rng: random.Random) -> None:
    """Also at the end of the budget."""
    for gamma in range(9):
        for n in (rng.randint(8, 20), gamma):
            _judge_repair(repaired, rng, False, gamma, n)


repair = Check("repair", [_repair_with_short_proposals, _repair_with_full_proposals])
