"""The contracts between rooms: what a model, its cache, a drafter and a rule are to the engine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from specdec_ref.sampling import RandomSource, Sampling

ORIGINS = {
    "accepted": "drafted, and accepted by the target",
    "corrected": "the target's token after a rejected draft",
    "bonus": "the target's token where no draft was rejected",
}
"""Where an emitted token comes from, and what that means."""


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens x_1..x_g, and for each the distribution q_i that it was *drawn from*, after every filter.

    tokens: up to gamma token ids; empty where the drafter has nothing to offer.
    probs: `[g, vocab]`; None says that every distribution is one-hot, as for lookup or an argmax draft. A drafter that
        takes the argmax but reports its softmax makes the output wrong: the distribution of an argmax is one-hot.
    parents: for trees, the index of each token's parent, -1 for the root; None is a chain.
    """

    tokens: list[int]
    probs: Tensor | None = None
    parents: list[int] | None = None

    def __post_init__(self) -> None:
        if self.probs is not None and not hasattr(self.probs, "dim"):
            raise TypeError(f"probs is of type {type(self.probs).__name__}: give a tensor of shape [n_tokens, vocab]")
        if self.probs is not None and (self.probs.dim() != 2 or len(self.probs) != len(self.tokens)):
            raise ValueError(
                f"a proposal of {len(self.tokens)} tokens needs one distribution a token, [{len(self.tokens)}, vocab], "
                f"not probs of shape {list(self.probs.shape)}"
            )

    def distribution(self, i: int, like: Tensor) -> Tensor:
        """q_i over the target's vocabulary: shape, dtype and device of `like` `[vocab]`.

        A draft vocabulary smaller than the target's is q = 0 on the rest.
        """
        q = torch.zeros_like(like)
        if self.probs is None:
            q[self.tokens[i]] = 1
        else:
            q[: self.probs.shape[-1]] = self.probs[i].to(like)
        return q


@dataclass(frozen=True)
class Verdict:
    """The rule's answer: keep the first `accepted` drafted tokens, then emit `token`.

    origin: "bonus" where every drafted token was accepted (also when none was drafted), else "corrected".
    """

    accepted: int
    token: int
    origin: str

    def emitted(self, drafted: Sequence[int]) -> list[int]:
        """The round's tokens: the accepted prefix and one more."""
        return [*drafted[: self.accepted], self.token]


Rule = Callable[[Proposal, Tensor, RandomSource], Verdict]
"""proposal, p `[g + 1, vocab]` (row i: the target's distribution after i drafts), random source -> verdict."""


class KVCache(Protocol):
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


class Drafter:
    """Base of all drafters. A drafter without state only writes `propose`.

    The engine calls, for each generation: `begin` once, then in turns `propose` and `commit`, and at last `end`.
    """

    def check(self, target: CausalLM) -> None:
        """Raises ValueError where this drafter's tokens are not the target's."""

    def begin(self, target: CausalLM, sampling: Sampling, capacity: int) -> Drafter:
        """A drafter for one sequence of at most `capacity` tokens, drawn with `sampling`.

        A copy, so that two generations in flight at once never share state.
        """
        return copy.copy(self)

    def propose(self, tokens: Sequence[int], gamma: int, source: RandomSource) -> Proposal:
        """Up to `gamma` tokens to follow `tokens` (prompt and output so far), with the distributions they were drawn
        from.

        Whatever is random is drawn from `source`. To propose fewer tokens, or none, is always allowed, as long
        as that was decided before drawing: to drop a token *because of what was drawn* changes its distribution.
        """
        raise NotImplementedError

    def commit(self, tokens: Sequence[int]) -> None:
        """`tokens` is now the whole committed sequence: forget drafts that did not become part of it."""

    def end(self) -> None:
        """The generation is over, or broke off: give back what it holds of a pool that others use too."""
