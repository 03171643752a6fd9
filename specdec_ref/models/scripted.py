"""A model whose distributions you write yourself: for proofs, tests and lessons, without any weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specdec_ref.cache.dense import check_keep, check_truncate
from specdec_ref.interfaces import Pass

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

    def keep(self, indices: Sequence[int]) -> None:
        """Keep the tokens before `indices[0]`, and of the rest those at `indices`. Raises ValueError as `truncate`."""
        check_keep(self.length, indices)
        self.tokens[indices[0] :] = [self.tokens[i] for i in indices]


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
        return self.forward_pass(tokens, cache, rows).logits

    def forward_pass(
        self,
        tokens: Tensor,
        cache: TokenCache,
        rows: slice = slice(None),
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        layers: Sequence[int] = (),
    ) -> Pass:
        """See `TreeLM.forward_pass`. Each token's context is what its row of `mask` shows.

        Cached tokens come in their order there, then the new ones in the order of positions.

        The hidden state of a token, in every layer, is the number of tokens it sees and its own id, `[n, 2]`.
        """
        past, new = tuple(cache.tokens), tokens.tolist()
        cache.tokens.extend(new)
        n = len(new)

        def context(i: int) -> tuple[int, ...]:
            if mask is None:
                return (*past, *new[: i + 1])
            places = range(n) if positions is None else positions.tolist()
            cached = mask.shape[1] - n  # that the mask says something of
            seen = mask[i].nonzero().flatten().tolist()
            own = sorted((j - cached for j in seen if j >= cached), key=places.__getitem__)
            known = past[: len(past) - cached]
            return (*known, *(past[len(known) + j] for j in seen if j < cached), *(new[j] for j in own))

        wanted = [list(self.distribution(context(i))) for i in range(n)[rows]]
        logits = torch.tensor(wanted, dtype=torch.float64).reshape(len(wanted), self.vocab_size).log()
        if not layers:
            return Pass(logits, ())
        state = torch.tensor([[len(context(i)), x] for i, x in enumerate(new)], dtype=torch.float64)
        return Pass(logits, (state.reshape(n, 2),) * len(layers))
