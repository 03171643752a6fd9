"""Feed-forward blocks: one gated block, or a mixture of experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from specdec_ref.arithmetic.matrix import Matrix


@dataclass(frozen=True)
class Mlp:
    """A gated feed-forward block: gate, up and down projections of width `intermediate`."""

    intermediate: int
    bias: bool = False

    def __post_init__(self) -> None:
        if self.intermediate < 1:
            raise ValueError(f"a feed-forward block needs a positive width, got {self.intermediate}")

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        """The weight matrices, with `hidden` the width of the model."""
        yield Matrix("mlp", 2 * self.intermediate, hidden)
        yield Matrix("mlp", hidden, self.intermediate)

    def vectors(self, hidden: int) -> int:
        """Parameters outside the matrices."""
        return (2 * self.intermediate + hidden) * self.bias

    def shard(self, tp: int) -> Mlp:
        """The part of one of `tp` ranks."""
        return dataclasses.replace(self, intermediate=-(-self.intermediate // tp))


@dataclass(frozen=True)
class Experts:
    """A mixture of `n_experts` gated blocks, of which a token uses `top_k`, beside one shared block of width
    `shared_intermediate` (0: none). `correction_bias` is DeepSeek-V3's load-balancing vector."""

    n_experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int = 0
    bias: bool = False
    correction_bias: bool = False

    def __post_init__(self) -> None:
        if self.intermediate < 1 or self.shared_intermediate < 0:
            raise ValueError(f"experts need a positive width, got {self}")
        if not 1 <= self.top_k <= self.n_experts:
            raise ValueError(f"a token cannot use {self.top_k} of {self.n_experts} experts")

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        """The weight matrices, with `hidden` the width of the model."""
        yield Matrix("router", self.n_experts, hidden)
        yield Matrix("experts", 2 * self.intermediate, hidden, self.n_experts, self.top_k)
        yield Matrix("experts", hidden, self.intermediate, self.n_experts, self.top_k)
        if self.shared_intermediate:
            yield from Mlp(self.shared_intermediate).matrices(hidden)

    def vectors(self, hidden: int) -> int:
        """Parameters outside the matrices."""
        per_expert = 1 + 2 * self.intermediate + hidden
        return self.n_experts * (per_expert * self.bias + self.correction_bias)

    def shard(self, tp: int) -> Experts:
        """Every expert is cut to 1/tp of its width, so the ranks always do equal work."""
        return dataclasses.replace(
            self,
            intermediate=-(-self.intermediate // tp),
            shared_intermediate=-(-self.shared_intermediate // tp),
        )


def expected_experts(n_experts: int, top_k: int, n_tokens: int) -> float:
    """Distinct experts of one layer that `n_tokens` tokens are expected to need: E (1 - (1 - k/E)^n).

    Assumes that tokens route independently and evenly. Neighbouring tokens prefer the same experts, so real
    passes read fewer; never fewer than k, never more than min(E, n k). It is the occupancy problem's formula
    for how many urns hold a ball.
    """
    return n_experts * (1 - (1 - top_k / n_experts) ** n_tokens)
