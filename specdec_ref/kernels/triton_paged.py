"""Paged attention as a CUDA kernel, which reads each key and value in place, through the block table.

For `PagedKVPool(model, num_blocks, attention=paged_attention)`. Needs triton, which PyTorch's CUDA builds include. The
arithmetic is tested on a CPU through triton's interpreter, and also passed on an H200;
`lessons/recorded/paged_attention_gpu.json` holds errors and times from there.

One new token has few queries to distribute over programs: with 8 key heads only 8 would run, on a chip with room for
more than a hundred. So a long context is cut into parts, one program for each, and a second, small kernel combines
their results (flash decoding).
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, KEYS = 16, 64  # queries a program holds, and keys it reads at a time: the smallest tile of a tensor core, times 4
PROGRAMS = 2  # wanted for each multiprocessor: one waits for its keys while the other computes
MIN_TILES, MAX_PARTS = 16, 128  # a smaller part is not worth the second kernel, which holds all parts at once


@triton.jit(do_not_specialize=["rows", "length", "span"])
def _attend(  # type: ignore[no-untyped-def]
    q,
    keys,
    values,
    table,
    mask,
    out,
    bests,
    totals,
    rows,
    length,
    span,
    block_size,
    head_stride,
    scale,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """One key head, ROWS queries and one part of the context: the `span` positions from `part` * `span` on.

    SPLIT: leave in `out` (`[parts, n_heads, rows, head_dim]`) the sums before division, and in `bests` and `totals`
    (`[parts, n_heads, rows]`) what they are relative to. Otherwise there is one part, and `out` gets the result.
    """
    head, part = tl.program_id(0), tl.program_id(2)
    row, dim = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM)
    q_offset = (head * rows + row[:, None]) * HEAD_DIM + dim[None, :]
    q_inside = (row < rows)[:, None] & (dim < HEAD_DIM)[None, :]
    query = tl.load(q + q_offset, mask=q_inside, other=0.0)

    # The softmax runs along: `best` is the largest score so far, `total` and `sums` are relative to it. It starts
    # finite, so that a tile or a part in which a row may see nothing gives 0 and not NaN.
    best = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    for start in range(0, span, KEYS):
        position = part * span + start + tl.arange(0, KEYS)
        known = position < length
        block = tl.load(table + position // block_size, mask=known, other=0)
        slot = block * block_size + position % block_size
        offset = head.to(tl.int64) * head_stride + slot[:, None] * HEAD_DIM + dim[None, :]
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

    result = (part * tl.num_programs(0) + head) * rows + row
    if SPLIT:
        tl.store(bests + result, best, mask=row < rows)
        tl.store(totals + result, total, mask=row < rows)
    else:
        sums = sums / total[:, None]
    tl.store(out + result[:, None] * HEAD_DIM + dim[None, :], sums.to(out.dtype.element_ty), mask=q_inside)


@triton.jit(do_not_specialize=["parts"])
def _combine(  # type: ignore[no-untyped-def]
    sums, bests, totals, out, parts, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, PARTS: tl.constexpr
):
    """One row of `out` (`[n_heads * rows, head_dim]`) from what `_attend` left of it in each part.

    A part in which the row saw nothing has a total and sums of 0, and the smallest `best`.
    """
    row, part, dim = tl.program_id(0), tl.arange(0, PARTS), tl.arange(0, DIM)
    result, known = part * tl.num_programs(0) + row, part < parts
    best = tl.load(bests + result, mask=known, other=float("-inf"))
    weight = tl.exp(best - tl.max(best, 0))
    total = tl.sum(weight * tl.load(totals + result, mask=known, other=0.0), 0)
    inside = known[:, None] & (dim < HEAD_DIM)[None, :]
    part_sums = tl.load(sums + result[:, None] * HEAD_DIM + dim[None, :], mask=inside, other=0.0)
    whole = tl.sum(weight[:, None] * part_sums, 0) / total
    tl.store(out + row * HEAD_DIM + dim, whole.to(out.dtype.element_ty), mask=dim < HEAD_DIM)


def choose_parts(tiles: int, programs: int, processors: int) -> int:
    """Into how many parts to cut a context, so that its programs all run at once and fill the device.

    tiles: of KEYS positions, in the context. programs: needed for one part. processors: the device's multiprocessors.
    """
    return max(1, min(PROGRAMS * processors // programs, tiles // MIN_TILES, MAX_PARTS))


@cache
def _processors(device: torch.device) -> int:
    """Multiprocessors of a device, asked for once; a CPU has none, so any number will do."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 32


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    length: int,
    mask: Tensor | None = None,
    *,
    parts: int | None = None,
) -> Tensor:
    """`specdec_ref.kernels.attention.paged_attention` without the gathered copy; scores and sums in float32.

    q: `[n_kv_heads, rows, head_dim]`; keys, values: `[n_kv_heads, num_blocks, block_size, head_dim]`; table:
    `[n_blocks]`; mask: `[rows, length]`, True where a row may look (or 0 there and -inf elsewhere), or None.
    parts: cut the context into at most this many, each of whole tiles of KEYS positions; None: `choose_parts`. There is
    one program for each key head, ROWS rows of q and part.
    Raises TypeError for float64, in which it would not be exact, and ValueError for `parts` outside 1 to MAX_PARTS.
    Source: Kwon et al. 2023 (arXiv 2309.06180), section 5.1; the running softmax is Milakov and Gimelshein 2018
    (arXiv 1805.02867); the parts are Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference".
    """
    if q.dtype == torch.float64:
        raise TypeError("this kernel sums in float32: for float64 take specdec_ref.kernels.attention.paged_attention")
    if parts is not None and not 1 <= parts <= MAX_PARTS:
        raise ValueError(f"parts must be from 1 to {MAX_PARTS}, not {parts}")
    n_heads, rows, head_dim = q.shape
    q, keys, values = q.contiguous(), keys.contiguous(), values.contiguous()
    out = torch.empty_like(q)
    row_tiles, tiles = triton.cdiv(rows, ROWS), triton.cdiv(length, KEYS)
    if parts is None:
        parts = choose_parts(tiles, n_heads * row_tiles, _processors(q.device))
    span = triton.cdiv(tiles, parts)  # tiles of a part
    parts = triton.cdiv(tiles, span)  # so that no part is empty
    dim = max(16, triton.next_power_of_2(head_dim))
    sums, bests, totals = out, None, None
    if parts > 1:
        sums = q.new_empty(parts, *q.shape, dtype=torch.float32)
        bests, totals = q.new_empty(2, parts, n_heads, rows, dtype=torch.float32)
    _attend[n_heads, row_tiles, parts](
        q,
        keys,
        values,
        table,
        None if mask is None else (mask if mask.dtype == torch.bool else mask == 0).to(torch.uint8).contiguous(),
        sums,
        bests,
        totals,
        rows,
        length,
        span * KEYS,
        keys.shape[2],
        keys.stride(0),
        head_dim**-0.5,
        HEAD_DIM=head_dim,
        DIM=dim,
        ROWS=ROWS,
        KEYS=KEYS,
        MASKED=mask is not None,
        SPLIT=parts > 1,
    )
    if parts > 1:
        _combine[(n_heads * rows,)](
            sums, bests, totals, out, parts, HEAD_DIM=head_dim, DIM=dim, PARTS=triton.next_power_of_2(parts)
        )
    return out
