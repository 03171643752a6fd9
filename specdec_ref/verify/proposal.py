"""What a drafter hands over, and what a rule makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens x_1..x_g, and for each the law q_i that it was *drawn from*, after every filter.

    tokens: up to gamma token ids; empty where the drafter has nothing to offer.
    probs: `[g, vocab]`; None says that every law is one-hot, as for lookup or an argmax draft. A drafter that
        takes the argmax but reports its softmax makes the output wrong: the law of an argmax is one-hot.
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
                f"a proposal of {len(self.tokens)} tokens needs one law a token, [{len(self.tokens)}, vocab], "
                f"not probs of shape {list(self.probs.shape)}"
            )

    def law(self, i: int, like: Tensor) -> Tensor:
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
