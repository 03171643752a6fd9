"""A model whose distributions you write yourself: for proofs, tests and lessons, without any weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specdec_ref.cache.dense import check_truncate

Conditional = Callable[[tuple[int, ...]], Sequence[float]]
"""Next-token probabilities, given all tokens so far."""


class TokenCache:
    """The cache of a scripted model: the tokens themselves."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens. Raises ValueError outside 0..length."""
        check_truncate(self.length, length)
        del self.tokens[length:]


class ScriptedModel:
    """A causal LM in float64 that answers log distribution(tokens so far).

    distribution: function from the tokens so far (at least one) to `vocab_size` probabilities.
    The distribution sees what the *cache* holds and the new tokens, as a real model would: an engine that rolls back
    wrongly gets wrong distributions.
    """

    def __init__(
        self,
        distribution: Conditional,
        vocab_size: int,
        eos_token_ids: Sequence[int] = (),
        max_context: int | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.distribution = distribution
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)
        self.max_context = max_context
        self.tokenizer = tokenizer
        self.device = torch.device("cpu")

    def new_cache(self, capacity: int) -> TokenCache:
        """An empty cache; it grows as needed."""
        return TokenCache()

    def forward(self, tokens: Tensor, cache: TokenCache, rows: slice = slice(None)) -> Tensor:
        """Logits `[n_rows, vocab]` in float64 after each of `tokens` `[n]`; the cache grows by n."""
        start = cache.length
        cache.tokens.extend(tokens.tolist())
        wanted = range(len(tokens))[rows]
        distributions = [list(self.distribution(tuple(cache.tokens[: start + i + 1]))) for i in wanted]
        return torch.tensor(distributions, dtype=torch.float64).reshape(len(distributions), self.vocab_size).log()
