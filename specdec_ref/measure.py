"""Time what this machine does: passes of a model over several tokens at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from specdec_ref.models.base import CausalLM


@torch.inference_mode()
def pass_seconds(
    model: CausalLM, n_tokens: Sequence[int] = (1, 2, 4, 8, 16), context: int = 64, repeats: int = 8
) -> dict[int, list[float]]:
    """Seconds of one forward pass over n tokens, with `context` tokens in the cache; `repeats` of each n.

    The sizes take turns, so that a slow minute of the machine hits all alike. Each pass returns the logits of all its
    tokens, as verification needs them. Raises ValueError where the context does not fit the model.
    """
    largest = max(n_tokens)
    if model.max_context is not None and context + largest > model.max_context:
        raise ValueError(f"{context} + {largest} tokens exceed the model's context of {model.max_context}")
    cache = model.new_cache(context + largest)
    ids = torch.arange(context + largest, device=model.device) % model.vocab_size
    if context:
        model.forward(ids[:context], cache, slice(0))
    seconds: dict[int, list[float]] = {n: [] for n in n_tokens}
    for repeat in range(repeats + 1):
        for n in n_tokens:
            start = time.perf_counter()
            model.forward(ids[context : context + n], cache)
            _synchronise(model.device)
            if repeat:  # the first round warms up
                seconds[n].append(time.perf_counter() - start)
            cache.truncate(context)
    return seconds


def relative_cost(seconds: dict[int, list[float]]) -> dict[int, float]:
    """T(n) / T(1) from `pass_seconds`, medians over the repeats; v(gamma) of the speedup formula is T(gamma + 1) / T(1).

    Raises ValueError where n = 1 was not measured.
    """
    if 1 not in seconds:
        raise ValueError("a pass over one token was not measured: include 1 in n_tokens")
    one = statistics.median(seconds[1])
    return {n: statistics.median(times) / one for n, times in seconds.items()}


def _synchronise(device: Any) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
