"""The plain KV cache: one preallocated block of memory a model, filled from the left."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_ref.kernels.attention import attention


def check_truncate(length: int, new_length: int) -> None:
    """Raises ValueError unless a cache of `length` tokens can be cut to `new_length`."""
    if not 0 <= new_length <= length:
        raise ValueError(f"cannot truncate a cache of {length} tokens to {new_length}: give 0 to {length}")


class DenseCache:
    """Keys and values of all layers, `[n_layers, n_kv_heads, capacity, head_dim]` each.

    `length` counts the tokens held. A pass writes behind them with `append`, one layer after the other, and
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

    def advance(self, n_tokens: int) -> None:
        """Count the `n_tokens` that every layer has just appended."""
        self.length += n_tokens

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens (absolute). Raises ValueError outside 0..length."""
        check_truncate(self.length, length)
        self.length = length
