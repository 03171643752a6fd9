"""The plain KV cache: one preallocated block of memory a model, filled from the left."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specdec_ref.kernels.attention import attention


class Memory(NamedTuple):
    """Where a compiled pass finds keys and values: number d of position i of a head of a layer.

    It is at layer * layer_stride + head * head_stride + slot * head_dim + d, where slot is i, or slots[i].
    """

    keys: Tensor
    values: Tensor
    layer_stride: int
    head_stride: int
    slots: Tensor | None


def check_keep(length: int, indices: Sequence[int]) -> None:
    """Raises ValueError unless `indices` name tokens of a cache of `length`, in rising order."""
    rising = all(a < b for a, b in itertools.pairwise(indices))
    if not indices or not rising or indices[0] < 0 or indices[-1] >= length:
        raise ValueError(f"cannot keep {list(indices)} of {length} tokens: give rising indices from 0 to {length - 1}")


def check_truncate(length: int, new_length: int) -> None:
    """Raises ValueError unless a cache of `length` tokens can be cut to `new_length`."""
    if not 0 <= new_length <= length:
        raise ValueError(f"cannot truncate a cache of {length} tokens to {new_length}: give 0 to {length}")


class DenseCache:
    """Keys and values of all layers, `[n_layers, n_kv_heads, capacity, head_dim]` each.

    `length` counts the tokens held. A pass writes after them with `append`, one layer after the other, and
    makes them count with `advance`; `truncate` forgets from the right and moves no data.
    """

    def __init__(
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (n_layers, n_kv_heads, capacity, head_dim)
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self._layers = [(k, v) for k, v in zip(self.keys, self.values, strict=True)]  # views, made once
        self.capacity = capacity
        self.length = 0

    @property
    def nbytes(self) -> int:
        """Bytes reserved for keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def reserve(self, n_tokens: int) -> None:
        """Raises ValueError if `n_tokens` more do not fit; changes nothing."""
        if self.length + n_tokens > self.capacity:
            raise ValueError(
                f"the cache holds {self.length} of {self.capacity} tokens, {n_tokens} more do not fit: "
                "ask new_cache() for a larger capacity"
            )

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write n new tokens of one layer, `[n_kv_heads, n, head_dim]`; returns all keys and values so far."""
        (k, v), end = self._layers[layer], self.length + keys.shape[1]
        k[:, self.length : end] = keys
        v[:, self.length : end] = values
        return k[:, :end], v[:, :end]

    def attend(self, layer: int, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Write n new tokens of one layer, as `append` does, and attend from them to all so far: see `attention`."""
        return attention(q, *self.append(layer, keys, values), mask)

    def memory(self, _length: int) -> Memory:
        """Where the tokens' keys and values lie, for a compiled pass."""
        heads, d = self.keys.shape[1], self.keys.shape[3]
        return Memory(self.keys, self.values, heads * self.capacity * d, self.capacity * d, None)

    def advance(self, n_tokens: int) -> None:
        """Count the `n_tokens` that every layer has just appended."""
        self.length += n_tokens

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens (absolute). Raises ValueError outside 0..length."""
        check_truncate(self.length, length)
        self.length = length

    def keep(self, indices: Sequence[int]) -> None:
        """Keep the tokens before `indices[0]`, and of the rest those at `indices` (absolute, rising), closed up.

        Only what lies after a gap moves. Raises ValueError for indices that are not held or do not rise.
        """
        check_keep(self.length, indices)
        start, end = indices[0], indices[0] + len(indices)
        if indices[-1] >= end:
            moved = torch.tensor(indices, device=self.keys.device)
            for tensor in (self.keys, self.values):
                tensor[:, :, start:end] = tensor.index_select(2, moved)
        self.length = end
