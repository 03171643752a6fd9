"""Problem set 05, part E: an engine with a bug, a witness of it and a repair."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from specdec_course.checks import Check, guard, wrong
from specdec_course.checks.engine_models import (
    VOCAB,
    WatchedModel,
    greedy_text,
    ids,
    random_distribution,
    some_text,
)
from specdec_ref.models.scripted import ScriptedModel


def _remember(tokens: tuple[int, ...]) -> list[float]:
    chosen = (sum((i + 3) * (t + 1) for i, t in enumerate(tokens)) + 5 * len(tokens)) % 17 % 10
    return [0.91 if x == chosen else 0.01 for x in range(10)]


def remembering_model() -> ScriptedModel:
    """A scripted model over tokens 0 to 9 whose distribution depends on every token so far and on its place."""
    return ScriptedModel(_remember, vocab_size=10)


def _handed_in(model: Any, propose: Any, prompt: Sequence[int], n: int, gamma: int, note: Any) -> list[int]:
    """The engine that the notebook gives, with its bug; `note(drafted, accepted)` is told of each round."""
    tokens, end = list(prompt), len(prompt) + n
    cache = model.new_cache(end)
    if len(tokens) > 1:
        model.forward(torch.tensor(tokens[:-1]), cache, slice(0))
    while len(tokens) < end:
        drafted = propose(tokens, min(gamma, end - len(tokens) - 1))
        choices = model.forward(torch.tensor([tokens[-1], *drafted]), cache).argmax(-1).tolist()
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == choices[accepted]:
            accepted += 1
        tokens += [*drafted[:accepted], choices[accepted]]
        note(len(drafted), accepted)
        if accepted < gamma:
            cache.truncate(cache.length - (gamma - accepted))
    return tokens[len(prompt) :]


def witness_shows_the_bug(witness: Any, rng: random.Random) -> None:
    """The arguments are allowed, and the engine goes wrong on them."""
    given = witness()
    try:
        propose, prompt, n, gamma = given
        prompt, n, gamma = ids(prompt, "The witness's prompt"), int(n), int(gamma)
    except (TypeError, ValueError):
        raise wrong("A witness is (propose, prompt, max_new_tokens, gamma).", got=given) from None
    if not callable(propose):
        raise wrong("The witness's first entry is a function propose(tokens, gamma).", got=propose)
    if not prompt or not all(0 <= t < 10 for t in prompt):
        raise wrong("The prompt has at least one token, ids 0 to 9.", got=prompt)
    if not (0 <= n <= 300 and 0 <= gamma <= 50):
        raise wrong("max_new_tokens is 0 to 300 and gamma 0 to 50.", got=f"{n} and {gamma}")
    rounds: list[tuple[int, int]] = []

    def held_to_its_word(tokens: list[int], most: int) -> list[int]:
        drafted = ids(propose(list(tokens), most), "What propose returns")
        if len(drafted) > most or not all(0 <= t < 10 for t in drafted):
            raise wrong(
                f"propose was asked for at most {most} tokens, ids 0 to 9.",
                got=drafted,
                mistake="this breaks propose's promise, so the engine is not to blame",
            )
        return drafted

    plain = greedy_text(_remember, prompt, n)
    try:
        got = _handed_in(remembering_model(), held_to_its_word, prompt, n, gamma, lambda d, a: rounds.append((d, a)))
    except ValueError as error:
        if "cannot truncate" in str(error):
            return  # it goes wrong with an error
        raise
    if got == plain:
        raise wrong(
            "On this input the engine is right.",
            given=f"prompt {prompt}, max_new_tokens {n}, gamma {gamma}",
            got=f"the text of plain decoding, {got}",
            expected="another text, or an error",
            mistake=f"(drafted, kept) of the rounds: {rounds}. Which kind is missing, or comes only at the end?",
        )


witness = Check("witness", [witness_shows_the_bug])


def _mended(repaired: Any, rng: random.Random, offers: str, gamma: int, n: int) -> None:
    """Run the repaired engine with a drafter whose offers are known: text and passes must be those of a right one."""
    p, prompt = random_distribution(rng), some_text(rng, 1, 6)
    start, end = len(prompt), len(prompt) + n
    text = [*prompt, *greedy_text(p, prompt, n)]
    model, asked = WatchedModel(p), dict[int, int]()
    # What is offered behind each length, whoever asks: more than gamma for who asks for more, or fewer, none at first.
    offered = {}
    for at in range(start, end):
        size = gamma + 2 if offers == "full" else 0 if at == start else rng.randint(min(at == start + 1, gamma), gamma)
        good = rng.choice([0, rng.randint(0, size), size])
        offered[at] = [t if i < good else (t + 1) % VOCAB for i, t in enumerate(text[at : at + size])]

    def propose(tokens: Sequence[int], most: int) -> list[int]:
        asked[len(tokens)] = int(most)
        return offered.get(len(tokens), [])[: max(0, most)]

    given = f"a drafter of {offers} proposals, prompt {prompt}, max_new_tokens {n}, gamma {gamma}"
    with guard(given):
        result = repaired(model, propose, list(prompt), n, gamma)
    got = ids(result, "What repaired returns")
    if got != text[start:]:
        mistake = ""
        for held, fed in model.passes:
            if held != text[: len(held)]:
                mistake = f"the cache held {held}, and the text is {text[: len(held)]}: a rejected draft is left in it"
            elif len(held) + len(fed) >= start and len(held) < end and fed[0] != text[len(held)]:
                mistake = f"the cache held {held}, and {fed} was fed behind it: a committed token is missing between"
            if mistake:
                break
        if len(got) < n and got == text[start:][: len(got)]:
            mistake = "the text ended before the budget was used up"
        what = "The text is not that of plain decoding."
        raise wrong(what, given=given, got=got, expected=text[start:], mistake=mistake)
    passes = [(held, fed) for held, fed in model.passes if len(held) + len(fed) >= start]  # without the prompt's
    at = start
    for number, (held, fed) in enumerate(passes):
        if at > start and not held:
            raise wrong(
                "The text is right, but tokens are fed again that the cache held before.",
                given=given,
                got=f"a pass over {fed}",
                expected="the pending token and the drafts",
                mistake="a roll-back keeps what is right: no fresh cache in each round",
            )
        most = min(gamma, end - at - 1)
        drafts = offered.get(at, [])[: max(0, most)]
        if at >= end or held != text[: at - 1] or fed != [text[at - 1], *drafts]:
            mistake = "use every draft that is proposed, and keep the whole agreeing prefix"
            if at < end and asked.get(at, 0) < most:
                mistake = f"ask propose for min(gamma, tokens left - 1) drafts in every round: {most} here, and "
                mistake += f"{asked[at]} were asked for" if at in asked else "it was not asked"
            raise wrong(
                "The text is right, but the passes are others than those of a right engine.",
                given=f"{given}; pass {number + 1} behind the prompt",
                got=f"a pass over {fed}, behind {held}",
                expected=f"a pass over {[text[at - 1], *drafts]}, behind {text[: at - 1]}" if at < end else "no pass",
                mistake=mistake,
            )
        at += next((i for i, (a, b) in enumerate(zip(drafts, text[at:])) if a != b), len(drafts)) + 1


def repair_with_short_proposals(repaired: Any, rng: random.Random) -> None:
    """A drafter that offers fewer tokens than it is asked for, or none."""
    for gamma in range(1, 9):
        _mended(repaired, rng, "short", gamma, rng.randint(8, 20))


def repair_with_full_proposals(repaired: Any, rng: random.Random) -> None:
    """A drafter that offers as many as it is asked for; also at the end of the budget."""
    for gamma in range(9):
        _mended(repaired, rng, "full", gamma, rng.randint(8, 20))
        _mended(repaired, rng, "full", gamma, gamma)


repair = Check("repair", [repair_with_short_proposals, repair_with_full_proposals])
