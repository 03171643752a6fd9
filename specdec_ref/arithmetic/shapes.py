"""The shape of a decoder-only transformer: parameters, bytes of weights, and FLOP of a pass, counted by layer.

Everything is counted from the layers, so a sum over layers is exact by construction. A count is of
parameters, bytes or FLOP (one multiply and one add are 2 FLOP); only matrix products are counted as FLOP.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from specdec_ref.arithmetic.attention import Attention, LatentAttention, causal_pairs
from specdec_ref.arithmetic.feedforward import Experts, Mlp, expected_experts
from specdec_ref.arithmetic.formats import NumberFormat, WeightFormats, weight_formats
from specdec_ref.arithmetic.matrix import Matrix


@dataclass(frozen=True)
class LayerShape:
    """One decoder layer: attention, a feed-forward block, and `norms` norm vectors of the hidden size."""

    attention: Attention | LatentAttention
    mlp: Mlp | Experts
    norms: int = 2

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        """The weight matrices, with `hidden` the width of the model."""
        yield from self.attention.matrices(hidden)
        yield from self.mlp.matrices(hidden)

    def vectors(self, hidden: int) -> int:
        """Parameters outside the matrices."""
        return self.norms * hidden + self.attention.vectors(hidden) + self.mlp.vectors(hidden)


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder-only language model, from which every count follows."""

    name: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerShape, ...]
    tied: bool

    def __post_init__(self) -> None:
        if min(self.vocab_size, self.hidden_size, len(self.layers)) < 1:
            raise ValueError(f"{self.name}: vocabulary, hidden size and number of layers must be positive")

    def matrices(self) -> Iterator[Matrix]:
        """Every weight matrix of the layers, then the output head; the input embedding is only looked up."""
        for layer in self.layers:
            yield from layer.matrices(self.hidden_size)
        yield Matrix("head", self.vocab_size, self.hidden_size)

    @property
    def vectors(self) -> int:
        """Parameters in norms, biases and sinks, the final norm included."""
        return self.hidden_size + sum(layer.vectors(self.hidden_size) for layer in self.layers)

    @property
    def parameters(self) -> int:
        """All parameters; a tied embedding counts once. Multi-token-prediction heads are not included."""
        table = 0 if self.tied else self.vocab_size * self.hidden_size
        return table + self.vectors + sum(matrix.parameters for matrix in self.matrices())

    def weight_bytes(self, weights: str | WeightFormats = "bf16") -> int:
        """Bytes that the weights occupy, scales included."""
        formats = weight_formats(weights)
        table = 0 if self.tied else formats.head.nbytes(self.hidden_size, self.vocab_size)
        return table + self._stored(formats, reads=None)

    def weight_bytes_read(self, n_tokens: int = 1, weights: str | WeightFormats = "bf16", head: bool = True) -> int:
        """Bytes of weights that one pass over `n_tokens` tokens (all sequences together) streams from memory.

        Of the embedding a pass reads one row per token, and all of it where it is tied and serves as the output head.
        `head` False: no logits are computed, so the head is not read. Of a mixture a pass reads the experts that the
        tokens are expected to need (`expected_experts`).
        """
        if n_tokens < 1:
            raise ValueError(f"a pass needs at least one token, got {n_tokens}")
        formats = weight_formats(weights)
        rows = 0 if self.tied and head else min(n_tokens, self.vocab_size)
        return formats.head.nbytes(self.hidden_size, rows) + self._stored(formats, reads=n_tokens, head=head)

    def _stored(self, formats: WeightFormats, reads: int | None, head: bool = True) -> int:
        total = formats.rest.nbytes(self.vectors)
        for matrix in self.matrices():
            if matrix.part == "head" and not head:
                continue
            count: float = matrix.count
            if reads is not None and matrix.used is not None:
                count = expected_experts(matrix.count, matrix.used, reads)
            total += round(count * _format_of(matrix, formats).nbytes(matrix.cols, matrix.rows))
        return total

    def flops(self, n_tokens: int = 1, context: int = 0, logits: int | None = None, absorbed: bool = True) -> int:
        """FLOP of the matrix products of one pass of one sequence over `n_tokens` new tokens after `context`.

        `logits`: positions whose logits are wanted (None: all). Attention is causal: the i-th new token
        meets context + i tokens, or its layer's window of them. Softmax, norms and activations are left
        out. Source: Kaplan et al. 2020 (arXiv 2001.08361), table 1.
        """
        if n_tokens < 1 or context < 0:
            raise ValueError(f"a pass needs n_tokens >= 1 and context >= 0, got {n_tokens} and {context}")
        logits = n_tokens if logits is None else logits
        if not 0 <= logits <= n_tokens:
            raise ValueError(f"{n_tokens} tokens cannot give logits at {logits} positions")
        total = sum(m.flops_per_token * (logits if m.part == "head" else n_tokens) for m in self.matrices())
        for layer in self.layers:
            pairs = causal_pairs(n_tokens, context, layer.attention.window)
            total += pairs * layer.attention.flops_per_pair(absorbed)
        return total

    def flops_per_token(self, context: int = 0) -> int:
        """FLOP to decode one token that follows `context` cached ones."""
        return self.flops(1, context)

    def shard(self, tp: int) -> ModelShape:
        """What one of `tp` tensor-parallel ranks holds and computes (Megatron-LM, arXiv 1909.08053).

        Heads, feed-forward width and vocabulary are divided; norms, routers, latents and surplus key/value
        heads are replicated. Raises ValueError where heads do not divide.
        """
        if tp < 1:
            raise ValueError(f"tensor-parallel degree must be at least 1, got {tp}")
        if tp == 1:
            return self
        layers = tuple(
            dataclasses.replace(layer, attention=layer.attention.shard(tp), mlp=layer.mlp.shard(tp))
            for layer in self.layers
        )
        vocab = -(-self.vocab_size // tp)
        return dataclasses.replace(self, name=f"{self.name} 1/{tp}", layers=layers, vocab_size=vocab)


def _format_of(matrix: Matrix, formats: WeightFormats) -> NumberFormat:
    if matrix.part == "experts":
        return formats.for_experts
    return {"head": formats.head, "router": formats.rest}.get(matrix.part, formats.layers)
