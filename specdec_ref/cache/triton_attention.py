"""Paged attention as one kernel for CUDA: reads each key and value where it lies, through the block table.

For `PagedKVPool(model, num_blocks, attention=paged_attention)`. Needs triton, which torch's builds for CUDA bring
along. The arithmetic is tested on a CPU through triton's interpreter, and the same tests passed on an H200;
`lessons/recorded/paged_attention_gpu.json` holds errors and times from there. One sequence alone keeps only one program
a key head busy: from some thousand tokens on the gathered copy was faster.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, KEYS = 16, 64  # queries a program holds, and keys it reads at a time: the smallest tile of a tensor core, times 4


@triton.jit(do_not_specialize=["rows", "length"])
def _attend(  # type: ignore[no-untyped-def]
    q,
    keys,
    values,
    table,
    mask,
    out,
    rows,
    length,
    block_size,
    head_stride,
    scale,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
):
    head = tl.program_id(0)
    row, dim = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM)
    q_offset = (head * rows + row[:, None]) * HEAD_DIM + dim[None, :]
    q_inside = (row < rows)[:, None] & (dim < HEAD_DIM)[None, :]
    query = tl.load(q + q_offset, mask=q_inside, other=0.0)

    # The softmax runs along: `best` is the largest score so far, `total` and `sums` are relative to it. It starts
    # finite, so that a tile in which a row may see nothing gives 0 and not NaN.
    best = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    for start in range(0, length, KEYS):
        position = start + tl.arange(0, KEYS)
        known = position < length
        block = tl.load(table + position // block_size, mask=known, other=0)
        offset = head * head_stride + (block * block_size + position % block_size)[:, None] * HEAD_DIM + dim[None, :]
        inside = known[:, None] & (dim < HEAD_DIM)[None, :]
        key = tl.load(keys + offset, mask=inside, other=0.0)
        value = tl.load(values + offset, mask=inside, other=0.0)

        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        seen = known[None, :]
        if MASKED:
            there = (row < rows)[:, None] & known[None, :]
            seen = seen & (tl.load(mask + row[:, None] * length + position[None, :], mask=there, other=1) != 0)
        score = tl.where(seen, score, float("-inf"))

        higher = tl.maximum(best, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        shrink = tl.exp(best - higher)
        total = total * shrink + tl.sum(weight, 1)
        sums = sums * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        best = higher
    tl.store(out + q_offset, (sums / total[:, None]).to(query.dtype), mask=q_inside)


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, length: int, mask: Tensor | None = None
) -> Tensor:
    """`specdec_ref.cache.attention.paged_attention` without the gathered copy; scores and sums in float32.

    q: `[n_kv_heads, rows, head_dim]`; keys, values: `[n_kv_heads, num_blocks, block_size, head_dim]`; table:
    `[n_blocks]`; mask: `[rows, length]`, True where a row may look (or 0 there and -inf elsewhere), or None. One
    program for each key head and 16 rows of q: a single sequence with few key heads leaves most of a large GPU idle.
    Raises TypeError for float64, which it would not be exact in.
    Source: Kwon et al. 2023 (arXiv 2309.06180), section 5.1; the running softmax is Milakov and Gimelshein 2018
    (arXiv 1805.02867).
    """
    if q.dtype == torch.float64:
        raise TypeError("this kernel sums in float32: for float64 take specdec_ref.cache.attention.paged_attention")
    n_heads, rows, head_dim = q.shape
    q, out = q.contiguous(), torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _attend[n_heads, triton.cdiv(rows, ROWS)](
        q,
        keys.contiguous(),
        values.contiguous(),
        table,
        None if mask is None else (mask if mask.dtype == torch.bool else mask == 0).to(torch.uint8).contiguous(),
        out,
        rows,
        length,
        keys.shape[2],
        keys[0].numel(),
        head_dim**-0.5,
        HEAD_DIM=head_dim,
        DIM=max(16, triton.next_power_of_2(head_dim)),
        ROWS=ROWS,
        KEYS=KEYS,
        MASKED=mask is not None,
    )
    return out
