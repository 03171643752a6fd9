"""Problem set 05: the learner's own engine at work, on a scripted model and on SmolLM2. Not marked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from specdec_course.checks import GRADING_SEED, CheckFailed
from specdec_course.checks.ps05_engine.answers import as_ids
from specdec_ref import SpeculativeEngine, load_model
from specdec_ref.engine.prompt import encode_prompt
from specdec_ref.models.store.catalog import ModelNotAvailable
from specdec_ref.prompts import prompt
from specdec_ref.sampling import RandomSource


def show_run(
    generate: Any, parts: Any, rule: Any, target: Any, draft_model: Any, prompt: Sequence[int], n: int, gamma: int
) -> None:
    """Print what each round of the learner's loop gave, and whether the text is that of plain decoding.

    Nothing is run at marking. Raises CheckFailed where the loop does not end.
    """
    if os.environ.get(GRADING_SEED):
        return print("Shown to the learner; not run at marking.")
    ends = [0]

    def note(tokens: Sequence[int], *caches: Any) -> None:
        ends.append(len(tokens) - len(prompt))
        if len(ends) > 2 * n + 5:
            raise CheckFailed(f"{len(ends)} rounds for {n} tokens and no end: does the loop ever stop?")

    options = {"source": RandomSource(0), "on_round": note}
    out = generate(target, draft_model, list(prompt), n, gamma, parts, rule, **options)
    out = as_ids(out, "What generate returns")
    plain = SpeculativeEngine(target).generate(list(prompt), n, eos_token_id=None).tokens
    blocks = [out[start:end] for start, end in pairwise(ends)]
    decode = target.tokenizer.decode if target.tokenizer is not None else lambda block: " ".join(map(str, block))
    print("|" + "|".join(decode(block).replace("\n", "⏎") for block in blocks) + "|")
    rate = f", {len(out) / len(blocks):.2f} tokens per round" if blocks else ""
    print(f"{len(out)} tokens in {len(blocks)} rounds{rate}; plain decoding takes {n} passes for {n} tokens")
    if out == plain:
        return print("the same tokens as plain decoding")
    at = next((i for i, (a, b) in enumerate(zip(out, plain)) if a != b), min(len(out), len(plain)))
    print(f"NOT the tokens of plain decoding: token {at + 1} of the text differs. Run the checks of the parts again.")


@lru_cache(maxsize=1)
def _load() -> Any:
    return load_model(dtype="float32")


def smollm2() -> Any:
    """SmolLM2 in float32, loaded once; None where its weights are missing (says how to get them) and at marking."""
    if os.environ.get(GRADING_SEED):
        return None
    try:
        return _load()
    except ModelNotAvailable as error:
        return print(f"SmolLM2 is not here: {error}\nThe rest of the problem set needs no weights.")


def smollm2_prompt(model: Any) -> list[int]:
    """A prompt of the course whose answer repeats parts of it, as token ids."""
    return encode_prompt(prompt("rewrite-1").messages, model)
