"""Kinds of attention: their weights, the vectors they cache, and their FLOP."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from specdec_ref.arithmetic.matrix import Matrix


@dataclass(frozen=True)
class Attention:
    """`n_heads` query heads that share `n_kv_heads` key and value heads of `head_dim` (arXiv 2305.13245).

    n_kv_heads = n_heads is multi-head (MHA), 1 is multi-query (MQA), between is grouped-query (GQA).
    `window`: a token sees the last `window` tokens, itself included; None sees all.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False

    def __post_init__(self) -> None:
        if min(self.n_heads, self.n_kv_heads, self.head_dim) < 1:
            raise ValueError(f"attention needs positive heads and head_dim, got {self}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"a window holds at least the token itself, got {self.window}: give None for no window")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"{self.n_heads} query heads cannot share {self.n_kv_heads} key/value heads evenly: "
                "num_attention_heads must be a multiple of num_key_value_heads"
            )

    @property
    def kind(self) -> str:
        """MHA, GQA or MQA."""
        if self.n_kv_heads == self.n_heads:
            return "MHA"
        return "MQA" if self.n_kv_heads == 1 else "GQA"

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        """The weight matrices, with `hidden` the width of the model."""
        yield Matrix("attention", (self.n_heads + 2 * self.n_kv_heads) * self.head_dim, hidden)
        yield Matrix("attention", hidden, self.n_heads * self.head_dim)

    def vectors(self, hidden: int) -> int:
        """Parameters outside the matrices: biases, query/key norms, attention sinks."""
        qkv = (self.n_heads + 2 * self.n_kv_heads) * self.head_dim * self.qkv_bias
        return qkv + hidden * self.out_bias + 2 * self.head_dim * self.qk_norm + self.n_heads * self.sinks

    def cached(self, latent: bool = True) -> list[tuple[int, int]]:
        """What one token leaves in the cache: (number of vectors, their length)."""
        return [(2 * self.n_kv_heads, self.head_dim)]

    def flops_per_pair(self, absorbed: bool = True) -> int:
        """FLOP of one query token against one cached one: scores and weighted values of all query heads."""
        return 4 * self.n_heads * self.head_dim

    def shard(self, tp: int) -> Attention:
        """The heads of one of `tp` ranks; raises ValueError where they do not divide."""
        if self.n_heads % tp:
            raise ValueError(
                f"{self.n_heads} query heads cannot be split over {tp} ranks: take a degree that divides {self.n_heads}"
            )
        kv_heads = kv_heads_per_rank(self.n_kv_heads, tp)
        return dataclasses.replace(self, n_heads=self.n_heads // tp, n_kv_heads=kv_heads)


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA, arXiv 2405.04434): all heads share one cached vector of
    `kv_rank` + `rope_dim` values per token, from which each head's keys and values are expanded.

    `q_rank` None means that queries are not compressed.
    """

    n_heads: int
    kv_rank: int
    rope_dim: int
    nope_dim: int
    v_dim: int
    q_rank: int | None = None
    bias: bool = False
    kind: ClassVar[str] = "MLA"
    window: ClassVar[None] = None

    def __post_init__(self) -> None:
        sizes = (self.n_heads, self.kv_rank, self.rope_dim, self.nope_dim, self.v_dim, self.q_rank or 1)
        if min(sizes) < 1 or self.q_rank == 0:
            raise ValueError(f"latent attention needs positive heads, ranks and dimensions, got {self}")

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        """The weight matrices, with `hidden` the width of the model."""
        q_rows = self.n_heads * (self.nope_dim + self.rope_dim)
        if self.q_rank is None:
            yield Matrix("attention", q_rows, hidden)
        else:
            yield Matrix("attention", self.q_rank, hidden)
            yield Matrix("attention", q_rows, self.q_rank)
        yield Matrix("attention", self.kv_rank + self.rope_dim, hidden)
        yield Matrix("attention", self.n_heads * (self.nope_dim + self.v_dim), self.kv_rank)
        yield Matrix("attention", hidden, self.n_heads * self.v_dim)

    def vectors(self, hidden: int) -> int:
        """Parameters outside the matrices."""
        norms = (self.q_rank or 0) + self.kv_rank
        return norms + ((self.q_rank or 0) + self.kv_rank + self.rope_dim + hidden) * self.bias

    def cached(self, latent: bool = True) -> list[tuple[int, int]]:
        """(Number of vectors, their length) that a token leaves; `latent` False: expanded per head."""
        if latent:
            return [(1, self.kv_rank), (1, self.rope_dim)]
        return [(self.n_heads, self.nope_dim + self.rope_dim), (self.n_heads, self.v_dim)]

    def flops_per_pair(self, absorbed: bool = True) -> int:
        """Absorbed, as in decoding: each head scores and sums the cached latent itself, not expanded."""
        if absorbed:
            return 2 * self.n_heads * (2 * self.kv_rank + self.rope_dim)
        return 2 * self.n_heads * (self.nope_dim + self.rope_dim + self.v_dim)

    def shard(self, tp: int) -> LatentAttention:
        """Heads are split; the latent and the projections down to it are held by every rank."""
        if self.n_heads % tp:
            raise ValueError(f"{self.n_heads} heads cannot be split over {tp} ranks: take a divisor")
        return dataclasses.replace(self, n_heads=self.n_heads // tp)


def kv_heads_per_rank(n_kv_heads: int, tp: int) -> int:
    """Key/value heads that each of `tp` tensor-parallel ranks holds: a share, or a replica of at least one.

    Raises ValueError where neither divides the other, since a head cannot be cut.
    """
    if tp < 1:
        raise ValueError(f"tensor-parallel degree must be at least 1, got {tp}")
    if n_kv_heads % tp and tp % n_kv_heads:
        raise ValueError(
            f"{n_kv_heads} key/value heads fit {tp} ranks neither as shares nor as replicas: "
            f"take a degree that divides {n_kv_heads} or is a multiple of it"
        )
    return max(1, n_kv_heads // tp)


def causal_pairs(n_tokens: int, context: int = 0, window: int | None = None) -> int:
    """Query-key pairs of `n_tokens` new tokens after `context`: sum over i of min(context + i, window)."""
    if window is None or context + n_tokens <= window:
        return n_tokens * context + n_tokens * (n_tokens + 1) // 2
    short = max(0, window - context)
    return causal_pairs(short, context) + (n_tokens - short) * window
