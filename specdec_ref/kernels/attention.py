"""Attention from new tokens to all that a cache holds, in one piece or in blocks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_ref.kernels import rowwise

FEW_ROWS = 256  # up to this many, attention in bfloat16 on a CPU goes row by row


def attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q keys^T / sqrt(head_dim)) values, for each key head; shaped as `q`.

    q: `[n_kv_heads, rows, head_dim]`; queries that share a key head are rows of it.
    keys, values: `[n_kv_heads, length, head_dim]`.
    mask: `[rows, length]`, True where a row may look, or 0 there and -inf elsewhere; None hides nothing.
    Source: Vaswani et al. 2017 (arXiv 1706.03762), equation 1; Ainslie et al. 2023 (arXiv 2305.13245) for shared heads.
    """
    few = q.dtype == torch.bfloat16 and q.is_cpu and q.shape[1] <= FEW_ROWS
    if few and not (q.requires_grad or keys.requires_grad or values.requires_grad):  # the loops have no gradient
        return rowwise.attention(q, keys, values, mask)
    return F.scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=mask)[0]


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, length: int, mask: Tensor | None = None
) -> Tensor:
    """`attention` to a sequence whose keys and values lie in blocks: gathered through its block table, then the same.

    keys, values: a layer of the pool, `[n_kv_heads, num_blocks, block_size, head_dim]`.
    table: `[n_blocks]`, the sequence's blocks in order; the first `length` slots hold its tokens.
    Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.1.
    """
    k, v = (pool.index_select(1, table).flatten(1, 2)[:, :length] for pool in (keys, values))
    return attention(q, k, v, mask)
