"""Problem set 05: the learner's own engine at work, on a scripted model and on SmolLM2. Not marked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch

from specdec_course.checks import GRADING_SEED, CheckFailed
from specdec_course.checks.engine_models import (
    ids,
)
from specdec_ref.sampling import RandomSource


class _Counting:
    """A model that gives up after too many passes; all else is the model's."""

    def __init__(self, model: Any, most: int) -> None:
        self._model, self._most, self.passes = model, most, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, tokens: Any, cache: Any, rows: slice = slice(None)) -> Any:
        self.passes += 1
        if self.passes > self._most:
            raise CheckFailed(f"{self._most} passes and no end: does the loop ever stop?")
        return self._model.forward(tokens, cache, rows)


@lru_cache(maxsize=8)
def _plain(model: Any, prompt: tuple[int, ...], n: int) -> list[int]:
    """Plain greedy decoding, through the model's cache."""
    tokens, cache = list(prompt), model.new_cache(len(prompt) + n)
    if len(tokens) > 1:
        model.forward(torch.tensor(tokens[:-1]), cache, slice(0))
    for _ in range(n):
        tokens.append(int(model.forward(torch.tensor(tokens[-1:]), cache)[-1].argmax()))
    return tokens[len(prompt) :]


def show_run(
    generate: Any, parts: Any, rule: Any, target: Any, draft_model: Any, prompt: Sequence[int], n: int, gamma: int
) -> None:
    """Print what each round of the learner's loop gave, and whether the text is that of plain decoding.

    Nothing is run at marking. Raises CheckFailed where the loop does not end.
    """
    if os.environ.get(GRADING_SEED):
        print("Shown to the learner; not run at marking.")
        return
    ends = [len(prompt)]
    counted = _Counting(target, 3 * n + 5)

    def note(tokens: Sequence[int], target_cache: Any, draft_cache: Any) -> None:
        ends.append(len(tokens))

    told = {"source": RandomSource(0), "on_round": note}
    out = ids(generate(counted, draft_model, list(prompt), n, gamma, parts, rule, **told), "What generate returns")
    plain, groups = _plain(target, tuple(prompt), n), []
    for start, end in pairwise(ends):
        block = out[start - len(prompt) : end - len(prompt)]
        tokenizer = getattr(target, "tokenizer", None)
        groups.append(tokenizer.decode(block) if tokenizer is not None else " ".join(map(str, block)))
    print("|" + "|".join(group.replace("\n", "⏎") for group in groups) + "|")
    rounds = len(ends) - 1
    rate = f", {len(out) / rounds:.2f} tokens a round" if rounds else ""
    print(f"{len(out)} tokens in {rounds} rounds{rate}; plain decoding takes {n} passes for {n} tokens")
    if out == plain:
        print("the same tokens as plain decoding")
        return
    at = next((i for i, (a, b) in enumerate(zip(out, plain)) if a != b), min(len(out), len(plain)))
    print(f"NOT the tokens of plain decoding: token {at + 1} of the text differs. Run the checks of the parts again.")


@lru_cache(maxsize=1)
def _load() -> Any:
    from specdec_ref import load_model

    return load_model(dtype="float32")


def smollm2() -> Any:
    """SmolLM2 in float32, loaded once; None where its weights are missing (says how to get them) and at marking."""
    from specdec_ref.models.store.catalog import ModelNotAvailable

    if os.environ.get(GRADING_SEED):
        return None
    try:
        return _load()
    except ModelNotAvailable as error:
        print(f"SmolLM2 is not here: {error}\nThe rest of the problem set needs no weights.")
        return None


def smollm2_prompt(model: Any) -> list[int]:
    """A prompt of the course whose answer repeats parts of it, as token ids."""
    from specdec_ref.engine.prompt import encode_prompt
    from specdec_ref.prompts import prompt

    return encode_prompt(prompt("rewrite-1").messages, model)
