"""Attention for few rows on a CPU, row by row: a token's bits do not depend on what else is in the pass.

PyTorch's attention multiplies all rows at once and picks its kernel by their number. So a token that is verified with
drafts is rounded differently from the same token alone, and now and then its most likely successor differs. Not here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_ref.kernels.attend import attend
from specdec_ref.kernels.masks import additive


def attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """`specdec_ref.kernels.attention.attention` for bfloat16 on a CPU; scores and sums in float32, one thread.

    Each row has to see a key. Masked keys after the last one that it sees change none of its bits.
    Raises ValueError for shapes that do not fit, TypeError for other formats or devices.
    """
    n_heads, rows, dim = q.shape
    length = keys.shape[1]
    if keys.shape != values.shape or keys.shape != (n_heads, length, dim):
        raise ValueError(
            f"queries {tuple(q.shape)}, keys {tuple(keys.shape)} and values {tuple(values.shape)} don't fit"
        )
    if mask is not None and mask.shape != (rows, length):
        raise ValueError(f"a mask of {tuple(mask.shape)} for {rows} rows and {length} keys")
    q, keys, values = q.contiguous(), _in_rows(keys), _in_rows(values)
    if mask is not None:
        mask = (additive(mask, q.dtype) if mask.dtype == torch.bool else mask.to(q.dtype)).contiguous()
    out = torch.empty_like(q)
    strides = keys.stride(0), values.stride(0)
    attend(q, keys, values, mask, out, n_heads, rows, dim, length, *strides, mask is not None)
    return out


def _in_rows(x: Tensor) -> Tensor:
    """`x` `[n_heads, length, head_dim]` with each head in one piece."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
