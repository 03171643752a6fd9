"""Attention from a few rows to all keys of a head, compiled: any CPU, the same bits whatever else is in the pass.

Scores and sums are float32. A row's score is summed over the dimensions in one order, its result over the keys from the
first to the last, so neither depends on the other rows, nor on keys after the last that it sees. Keys lie one after the
other, or wherever a paged cache's slots say.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec_ref.kernels.loops import BITS, COUNT, called, exp, inlined, loop, narrow, widen
from specdec_ref.kernels.memory import address_of, bits_at, int64_at, put_bits, put_float
from specdec_ref.kernels.vectors import (
    add_products,
    add_times,
    load_bfloats,
    load_floats,
    load_rows,
    no_floats,
    store_floats,
    store_rows,
    sums_of_rows,
)

TILE = 64  # keys that are widened to float32 at a time, and dimensions of a result that are summed at a time


@inlined
def _widen_rows(data: int, slots: int, first: int, n: int, dim: int, tile: int, width: int) -> None:
    """Rows first to first + n of `data` as float32 `[n, width]` at `tile`; width is dim, padded with what is there."""
    for k in range(n):
        row = data + 2 * dim * (first + k if slots == 0 else int64_at(slots + 8 * (first + k)))
        for d in range(0, dim - dim % 16, 16):
            store_floats(load_bfloats(row + 2 * d), tile + 4 * (k * width + d))
        for d in range(dim - dim % 16, dim):
            put_float(tile + 4 * (k * width + d), widen(bits_at(row + 2 * d)))


@called
def _softmax(scores: Any) -> None:
    """In place, over a multiple of TILE scores. Lane by lane, so that scores of -inf after the last change nothing."""
    top = np.float32(-np.inf)
    for t in range(len(scores)):
        top = max(top, scores[t])
    sums = np.zeros(TILE, np.float32)
    for start in range(0, len(scores), TILE):
        tile = scores[start : start + TILE]
        for j in range(TILE):
            tile[j] = exp(tile[j] - top)
        for j in range(TILE):
            sums[j] += tile[j]
    total = np.float32(0)
    for j in range(TILE):
        total += sums[j]
    share = np.float32(1) / total
    for t in range(len(scores)):
        scores[t] *= share


@called
def attend_rows(
    q: int,
    keys: int,
    values: int,
    slots: int,
    bias: int,
    out: int,
    rows: int,
    first: int,
    n: int,
    dim: int,
    length: int,
) -> None:
    """softmax(q keys^T / sqrt(dim) + bias) values for rows of one key head; all arguments but sizes are addresses.

    q and out: `[rows, dim]`. keys, values: rows of `dim`, row t at t, or at slots[t] (int64) where slots are given.
    bias: `[rows, length]`, or 0: then the rows are `first` and on of n new tokens repeated, the last of `length`, and
    each sees up to itself.
    """
    scale = np.float32(1 / np.sqrt(dim))
    width = (dim + TILE - 1) // TILE * TILE
    tiles = (length + TILE - 1) // TILE
    columns = tiles * TILE
    queries, scores = np.zeros((rows, width), np.float32), np.empty((rows, columns), np.float32)
    widened, sums = np.zeros(TILE * width, np.float32), np.zeros((rows, width), np.float32)
    tile = widened.ctypes.data
    for r in range(rows):
        for d in range(dim):
            queries[r, d] = widen(bits_at(q + 2 * (r * dim + d))) * scale
    steps = (dim + 15) // 16 * 16
    for t in range(tiles):
        here = min(TILE, length - t * TILE)
        _widen_rows(keys, slots, t * TILE, here, dim, tile, width)
        for r in range(rows):
            seen = length if bias else length - n + (first + r) % n + 1
            query, to = queries.ctypes.data + 4 * r * width, scores.ctypes.data + 4 * (r * columns + t * TILE)
            for k in range(0, TILE, 16):
                products = no_floats(16)
                for d in range(0, steps, 16):
                    products = add_products(products, load_floats(query + 4 * d), tile + 4 * (k * width + d), 4 * width)
                store_floats(sums_of_rows(products), to + 4 * k)
            score = scores[r, t * TILE : t * TILE + TILE]
            if bias:
                for k in range(here):
                    score[k] += widen(bits_at(bias + 2 * (r * length + t * TILE + k)))
            score[max(0, min(here, seen - t * TILE)) :] = -np.inf
    for r in range(rows):
        _softmax(scores[r])
    for t in range(tiles):
        here = min(TILE, length - t * TILE)
        _widen_rows(values, slots, t * TILE, here, dim, tile, width)
        for r in range(rows):
            share = scores.ctypes.data + 4 * (r * columns + t * TILE)
            for d in range(0, width, TILE):
                total = load_rows(no_floats(4), sums.ctypes.data + 4 * (r * width + d), 64)
                for k in range(here):
                    total = add_times(total, share + 4 * k, tile + 4 * (k * width + d), 64)
                store_rows(total, sums.ctypes.data + 4 * (r * width + d), 64)
    for r in range(rows):
        for d in range(dim):
            put_bits(out + 2 * (r * dim + d), narrow(sums[r, d]))


@loop(BITS, BITS, BITS, BITS, BITS, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT)
def attend(  # type: ignore[no-untyped-def]
    q, keys, values, bias, out, n_heads, rows, dim, length, key_stride, value_stride, masked
) -> None:
    """`attend_rows` for each head.

    q and out: `[n_heads, rows, dim]`. bias: `[rows, length]`, read only if `masked`, else it may be null.
    keys and values: `[n_heads, length, dim]`, each head contiguous, heads `key_stride` or `value_stride` numbers apart.
    """
    for h in range(n_heads):
        query = address_of(q) + 2 * h * rows * dim
        key, value = address_of(keys) + 2 * h * key_stride, address_of(values) + 2 * h * value_stride
        hidden = address_of(bias) if masked else 0
        result = address_of(out) + 2 * h * rows * dim
        # Without a mask every row is a last token, which sees everything.
        attend_rows(query, key, value, 0, hidden, result, rows, 0, 1, dim, length)
