"""Products with weights in 4 and 8 bits as a GGUF file stores them: integer sums, one multiplication by scales a group.

A pass over few tokens takes as long as its weights take to arrive from memory. So they are read as they are stored, and
multiplied as integers, which CPUs do many at a time: the sum over a group of 32 inputs is exact, in any order. What is
rounded is the activation, once per group (`quantise`), and each group's sum, times the two scales, in float32. So a
token's numbers are the same to the last bit, whatever else is in the pass.
"""

from __future__ import annotations

from typing import Any

import numba

from specdec_ref.kernels.dots import (
    dot2,
    dot4,
    dot4_signed,
    first_sums,
    high_bytes,
    high_nibbles,
    low_bytes,
    low_nibbles,
    nibble0,
    nibble1,
    nibble2,
    nibble3,
)
from specdec_ref.kernels.packing import OUTPUTS
from specdec_ref.kernels.quantise import GROUP
from specdec_ref.kernels.vectors import (
    add_ints,
    add_outer,
    add_scaled,
    load_halves,
    load_words,
    no_floats,
    no_ints,
    prefetch,
    store_bfloats,
)

LEVELS = {4: 256, 8: 512}  # bytes of a block's levels per group
SCALES = {4: 64, 8: 32}  # bytes of a block's scales, and in 4 bits minima, per group
AHEAD = 2048  # bytes that a tile asks for in advance
Loop = Any  # a compiled function


def _four_bit_tile(rows: int, n_bits: int) -> Loop:
    """A product of `rows` rows with a block of 16 outputs in 4 bits, w = scale * level + minimum."""

    def dots16(dots: Any, more: Any, w: Any, x: int, stride: int) -> Any:
        dots = dot2(dots, nibble0(w), x, stride)
        more = dot2(more, nibble1(w), x + 4, stride)
        dots = dot2(dots, nibble2(w), x + 8, stride)
        return dots, dot2(more, nibble3(w), x + 12, stride)

    def dots8(dots: Any, more: Any, w: Any, x: int, stride: int) -> Any:
        dots = dot4(dots, low_nibbles(w), x, stride)
        return dots, dot4(more, high_nibbles(w), x + 4, stride)

    eight_inputs = numba.njit(inline="always", fastmath=False)(dots16 if n_bits == 16 else dots8)
    bytes_ = n_bits // 8

    def tile(levels: int, scales: int, x: Any, out: int, groups: int, out_stride: int) -> None:
        inputs, x_scales, x_offsets, _ = x
        y = no_floats(rows)
        for g in range(groups):
            dots, more = no_ints(rows), no_ints(rows)
            for j in range(4):
                weights = load_words(levels + 256 * g + 64 * j)
                dots, more = eight_inputs(
                    dots, more, weights, inputs + bytes_ * (GROUP * g + 8 * j), bytes_ * GROUP * groups
                )
                prefetch(levels + 256 * g + 64 * j + AHEAD)
            dots = add_ints(dots, more)
            prefetch(scales + 64 * g + AHEAD // 4)
            y = add_scaled(y, dots, load_halves(scales + 64 * g), x_scales + 4 * g, 4 * groups)
            y = add_outer(y, load_halves(scales + 64 * g + 32), x_offsets + 4 * g, 4 * groups)
        store_bfloats(y, out, out_stride)

    # A name of its own: code that is read from disk finds what it calls by name.
    tile.__qualname__ = f"four_bit_tile_{rows}_{n_bits}"
    return numba.njit(error_model="numpy", fastmath=False)(tile)


def _eight_bit_tile(rows: int, n_bits: int) -> Loop:
    """A product of `rows` rows with a block of 16 outputs in 8 bits, w = scale * level."""

    def dots16(dots: Any, more: Any, w: int, x: int, stride: int) -> Any:
        first, second = load_words(w), load_words(w + 64)
        dots = dot2(dots, low_bytes(first), x, stride)
        more = dot2(more, low_bytes(second), x + 4, stride)
        dots = dot2(dots, high_bytes(first), x + 8, stride)
        return dots, dot2(more, high_bytes(second), x + 12, stride)

    def dots8(dots: Any, more: Any, w: int, x: int, stride: int) -> Any:
        dots = dot4_signed(dots, load_words(w), x, stride)
        return dots, dot4_signed(more, load_words(w + 64), x + 4, stride)

    eight_inputs = numba.njit(inline="always", fastmath=False)(dots16 if n_bits == 16 else dots8)
    bytes_, unsigned = n_bits // 8, n_bits == 8

    def tile(levels: int, scales: int, x: Any, out: int, groups: int, out_stride: int) -> None:
        inputs, x_scales, _, x_totals = x
        y = no_floats(rows)
        for g in range(groups):
            dots, more = no_ints(rows), no_ints(rows)
            if unsigned:
                dots = first_sums(dots, x_totals + 4 * g, 4 * groups)
            for j in range(4):
                weights = levels + 512 * g + 128 * j
                dots, more = eight_inputs(
                    dots, more, weights, inputs + bytes_ * (GROUP * g + 8 * j), bytes_ * GROUP * groups
                )
                prefetch(weights + AHEAD)
                prefetch(weights + AHEAD + 64)
            dots = add_ints(dots, more)
            prefetch(scales + 32 * g + AHEAD // 16)
            y = add_scaled(y, dots, load_halves(scales + 32 * g), x_scales + 4 * g, 4 * groups)
        store_bfloats(y, out, out_stride)

    # A name of its own: code that is read from disk finds what it calls by name.
    tile.__qualname__ = f"eight_bit_tile_{rows}_{n_bits}"
    return numba.njit(error_model="numpy", fastmath=False)(tile)


def _blocks(weight_bits: int, n_bits: int) -> Loop:
    """A product of any number of rows with some of a matrix's blocks."""
    make = _four_bit_tile if weight_bits == 4 else _eight_bit_tile
    tile1, tile2, tile4, tile8 = (make(rows, n_bits) for rows in (1, 2, 4, 8))
    level_bytes, scale_bytes, bytes_ = LEVELS[weight_bits], SCALES[weight_bits], n_bits // 8

    def blocks(first: int, last: int, matrix: Any, x: Any, out: int, rows: int, groups: int, outs: int) -> None:
        """out[:, 16 first : 16 last] = x W^T, `[rows, outs]` bfloat16.

        matrix: addresses of levels and scales. x: of levels, scales, offsets and totals, see `quantise_group`.
        """
        levels, scales = matrix
        inputs, x_scales, x_offsets, x_totals = x
        for b in range(first, last):
            w, s = levels + b * groups * level_bytes, scales + b * groups * scale_bytes
            r = 0
            while r < rows:
                at, left = 4 * r * groups, rows - r
                row = (inputs + bytes_ * GROUP * r * groups, x_scales + at, x_offsets + at, x_totals + at)
                y = out + 2 * (r * outs + b * OUTPUTS)
                if left >= 8:
                    tile8(w, s, row, y, groups, 2 * outs)
                    r += 8
                elif left >= 4:
                    tile4(w, s, row, y, groups, 2 * outs)
                    r += 4
                elif left >= 2:
                    tile2(w, s, row, y, groups, 2 * outs)
                    r += 2
                else:
                    tile1(w, s, row, y, groups, 2 * outs)
                    r += 1

    blocks.__qualname__ = f"blocks_{weight_bits}_{n_bits}"
    return numba.njit(error_model="numpy", fastmath=False)(blocks)


four_by_8, four_by_16 = _blocks(4, 8), _blocks(4, 16)
eight_by_8, eight_by_16 = _blocks(8, 8), _blocks(8, 16)
