"""A real model whose answers are remembered: so that even its loop can be enumerated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdec_ref.interfaces import CausalLM
from specdec_ref.models.scripted import TokenCache


class MemoisedModel:
    """`model` in float64, each context computed once; the cache holds the tokens themselves.

    window: the model sees that many last tokens only, which makes a poorer model of it: a draft with its vocabulary.
    The engine can't tell it from a model; what it does not exercise is the model's own key-value cache.
    """

    def __init__(self, model: CausalLM, window: int | None = None) -> None:
        self.model = model
        self.window = window
        self.vocab_size = model.vocab_size
        self.max_context = model.max_context
        self.eos_token_ids = model.eos_token_ids
        self.tokenizer = model.tokenizer
        self._known: dict[tuple[int, ...], Tensor] = {}

    @property
    def device(self) -> torch.device:
        return self.model.device

    def new_cache(self, capacity: int) -> TokenCache:
        """An empty cache; it grows as needed."""
        return TokenCache()

    def forward(self, tokens: Tensor, cache: Any, rows: slice = slice(None)) -> Tensor:
        """Logits `[n_rows, vocab]` in float64 after each of `tokens` `[n]`; the cache grows by n."""
        start = cache.length
        cache.tokens.extend(tokens.tolist())
        wanted = [self.logits(tuple(cache.tokens[: start + i + 1])) for i in range(len(tokens))[rows]]
        return torch.stack(wanted) if wanted else torch.empty(0, self.vocab_size, dtype=torch.float64)

    def logits(self, context: tuple[int, ...]) -> Tensor:
        """Logits `[vocab]` after `context`, from one pass over it."""
        seen = context[-self.window :] if self.window else context
        if seen not in self._known:
            ids = torch.tensor(seen, device=self.model.device)
            with torch.inference_mode():
                last = self.model.forward(ids, self.model.new_cache(len(seen)), slice(len(seen) - 1, None))
            self._known[seen] = last[0].double()
        return self._known[seen]

    def distribution(self, context: tuple[int, ...]) -> list[float]:
        """Next-token probabilities at temperature 1, as a plain list."""
        return self.logits(context).softmax(-1).tolist()
