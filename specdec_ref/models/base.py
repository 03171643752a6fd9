"""What the engine asks of a model, and what it asks of a model's cache."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Cache(Protocol):
    """Keys and values of the tokens a model has seen, in order."""

    @property
    def length(self) -> int:
        """Tokens held."""

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens (absolute). Raises ValueError outside 0..self.length."""


class CausalLM(Protocol):
    """A causal language model whose cache can be cropped.

    vocab_size: number of logits a row.
    max_context: most tokens that the cache may hold, None where there is no limit.
    eos_token_ids: ids that end a text; empty where the model has none.
    tokenizer: a transformers tokenizer, or None for a model that works on ids alone.
    """

    vocab_size: int
    max_context: int | None
    eos_token_ids: tuple[int, ...]
    tokenizer: Any

    @property
    def device(self) -> torch.device:
        """Where the token ids have to be."""

    def new_cache(self, capacity: int) -> Any:
        """An empty cache with room for `capacity` tokens."""

    def forward(self, tokens: Tensor, cache: Any, rows: slice = slice(None)) -> Tensor:
        """Take in `tokens` `[n]` behind what the cache holds; logits `[n_rows, vocab]` of the chosen rows.

        Row i predicts the token after tokens[i]. `rows=slice(0)` asks for no logits (prefill).
        """


def check_model(model: Any) -> None:
    """Raises TypeError for what lacks a part of `CausalLM`, and says how a model of transformers gets it."""
    parts = (*CausalLM.__annotations__, "device", "new_cache", "forward")
    missing = [name for name in parts if not hasattr(model, name)]
    if missing:
        raise TypeError(
            f"{type(model).__name__} is no model for this package (it has no {missing[0]}): give what load_model(name) "
            "returns, or HuggingFaceModel(model, tokenizer) around a transformers model"
        )
