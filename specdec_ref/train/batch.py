"""Many sequences in one pass: the reference Llama on a batch of rows, each with a length of its own.

The engine decodes one sequence at a time, which reads all weights for one token; here one reading serves every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_ref.cache.dense import DenseCache
from specdec_ref.kernels.attend import attend
from specdec_ref.models.llama import Layer, Llama, rotate


class Rows(Protocol):
    """Sequences in flight, numbered from 0: what `answers` asks of whatever runs them."""

    def start(self, row: int, tokens: Sequence[int]) -> Tensor:
        """Row `row` now holds `tokens`; logits `[vocab]` of the token after them."""

    def move(self, source: int, target: int) -> None:
        """Row `target` now holds what row `source` did."""

    def step(self, tokens: Sequence[int]) -> Tensor:
        """One more token in each of the first len(tokens) rows; logits `[len(tokens), vocab]` of the next ones."""


class LlamaRows:
    """`Rows` of the reference Llama in plain PyTorch.

    n_rows: sequences at once; capacity: tokens that each may hold.
    """

    def __init__(self, model: Llama, n_rows: int, capacity: int) -> None:
        c = model.config
        self.model = model
        shape = (c.n_layers, n_rows, c.n_kv_heads, capacity, c.head_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=model.dtype, device=model.device) for _ in range(2))
        self.lengths = torch.zeros(n_rows, dtype=torch.long, device=model.device)

    def start(self, row: int, tokens: Sequence[int]) -> Tensor:
        """See `Rows.start`. Raises ValueError for more tokens than the capacity."""
        n = len(tokens)
        cache = self.model.new_cache(n)
        assert isinstance(cache, DenseCache)
        logits = self.model(torch.tensor(tokens, device=self.model.device), cache, slice(n - 1, None))
        self.keys[:, row, :, :n], self.values[:, row, :, :n] = cache.keys, cache.values
        self.lengths[row] = n
        return logits[0]

    def move(self, source: int, target: int) -> None:
        """See `Rows.move`."""
        for held in (self.keys, self.values):
            held[:, target] = held[:, source]
        self.lengths[target] = self.lengths[source]

    def step(self, tokens: Sequence[int]) -> Tensor:
        """See `Rows.step`."""
        model, b = self.model, len(tokens)
        at = self.lengths[:b].clone()  # [b], where each row's new token goes
        cos, sin = model.cos[at], model.sin[at]  # [b, 1, head_dim]
        x = model.embed(torch.tensor(tokens, device=model.device))  # [b, hidden]
        for i, layer in enumerate(model.layers):
            assert isinstance(layer, Layer)
            x = self._layer(layer, x, cos, sin, self.keys[i, :b], self.values[i, :b], at)
        self.lengths[:b] += 1
        logits: Tensor = model.head(model.norm(x))  # [b, vocab]
        return logits

    def _layer(
        self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, at: Tensor
    ) -> Tensor:
        """One layer for one new token per row; `keys`, `values` `[b, kv, capacity, d]` are written at `at` `[b]`."""
        c, b = layer.config, len(x)
        h, kv, d = c.n_heads, c.n_kv_heads, c.head_dim
        qkv = layer.qkv(layer.attention_norm(x)).view(b, h + 2 * kv, d)  # [b, hidden] -> [b, heads, d]
        qk = rotate(qkv[:, : h + kv], cos, sin)  # [b, h + kv, d]
        rows = torch.arange(b, device=x.device)
        keys[rows, :, at], values[rows, :, at] = qk[:, h:], qkv[:, h + kv :]
        q = qk[:, :h].reshape(b, kv, h // kv, d)
        x = x + layer.out(_attend(q, keys, values, at + 1).view(b, h * d))  # [b, hidden]
        gate, up = layer.gate_up(layer.mlp_norm(x)).chunk(2, -1)  # [b, hidden] -> twice [b, intermediate]
        out: Tensor = x + layer.down(F.silu(gate).mul_(up))
        return out


def _attend(q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    """Attention of one token per row, `[b, kv, group, d]`, to the first `lengths` `[b]` of its own keys and values."""
    if q.dtype == torch.bfloat16 and q.is_cpu:  # row by row over its own length, where PyTorch takes the longest
        out = torch.empty_like(q)
        (_, kv, group, d), stride = q.shape, keys.stride(1)
        for row, n in enumerate(lengths.tolist()):
            attend(q[row], keys[row], values[row], None, out[row], kv, group, d, n, stride, stride, False)
        return out
    longest = int(lengths.max())
    seen = torch.arange(longest, device=q.device) < lengths[:, None]  # [b, longest]
    return F.scaled_dot_product_attention(q, keys[:, :, :longest], values[:, :, :longest], seen[:, None, None])
