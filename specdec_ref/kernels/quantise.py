"""Activations in integers: 32 bfloat16 numbers that share a scale, in 8 or in 16 bits.

Groups of 32 are those of the weights, so that a group's product is an integer times two scales. 16 bits hold a bfloat16
number almost exactly; 8 bits, as llama.cpp takes them, are faster and cost some accuracy.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core.errors import RequireLiteralValue

from specdec_ref.kernels.memory import intrinsic
from specdec_ref.kernels.vectors import (
    F32,
    FLOATS,
    I8,
    I16,
    I32,
    I64,
    INTS,
    LANES,
    Value,
    at,
    call,
    in_all_lanes,
    load,
    same,
    shuffle,
    vector,
)

GROUP = 32  # weights, and activations, that share a scale
MOST = {8: 127, 16: 32767}  # the largest level
OCTET = (0, 4, 1, 5, 2, 6, 3, 7)
"""The order of 8 levels in 8 bits, so that one layout of the weights serves 8 and 16 bits; see `packing`."""
_ROUND = 1.5 * 2**23  # a float32 of this size has no fraction: adding it rounds to an integer, ties to even
_SMALLEST = 2.0**-100  # below it a group counts as zeros


@intrinsic
def quantise_group(typing: Any, x: Any, levels: Any, scale: Any, offset: Any, total: Any, bits: Any) -> Any:
    """32 bfloat16 at `x` as integers at `levels`, with what products need of them.

    scale: gets the float32 by which a level is multiplied. total: gets the int32 sum of the levels. offset: gets the
    float32 scale * total. bits: 8 or 16, a constant.
    """
    if not isinstance(bits, types.IntegerLiteral):
        raise RequireLiteralValue("bits have to be a constant")
    n_bits = bits.literal_value

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        x_, levels_, scale_, offset_, total_, _ = args
        halves = []
        for h in range(2):
            number = load(builder, builder.add(x_, ir.Constant(I64, 2 * LANES * h)), vector(I16), 2)
            halves.append(builder.shl(builder.zext(number, INTS), same(INTS, 16)))
        sizes = [builder.and_(v, same(INTS, 0x7FFFFFFF)) for v in halves]
        larger = builder.select(builder.icmp_unsigned(">", *sizes), *sizes)
        top = builder.bitcast(call(builder, "llvm.vector.reduce.umax.v16i32", I32, larger), F32)
        zero = builder.fcmp_ordered("<", top, ir.Constant(F32, _SMALLEST))
        most = ir.Constant(F32, float(MOST[n_bits]))
        inverse = builder.select(zero, ir.Constant(F32, 0.0), builder.fdiv(most, top))
        scaled = builder.select(zero, ir.Constant(F32, 0.0), builder.fdiv(top, most))
        integers = []
        for v in halves:
            rounded = builder.fadd(
                builder.fmul(builder.bitcast(v, FLOATS), in_all_lanes(builder, inverse)), same(FLOATS, _ROUND)
            )
            level = builder.sub(builder.bitcast(rounded, INTS), builder.bitcast(same(FLOATS, _ROUND), INTS))
            integers.append(level)
        kind = vector(I8 if n_bits == 8 else I16, GROUP)
        order = [8 * i + j for i in range(4) for j in OCTET] if n_bits == 8 else range(GROUP)
        both = builder.trunc(shuffle(builder, integers[0], integers[1], order), kind)
        builder.store(both, at(builder, levels_, kind), align=1)
        amount = call(builder, "llvm.vector.reduce.add.v16i32", I32, builder.add(*integers))
        builder.store(scaled, at(builder, scale_, F32), align=4)
        builder.store(amount, at(builder, total_, I32), align=4)
        builder.store(builder.fmul(scaled, builder.sitofp(amount, F32)), at(builder, offset_, F32), align=4)
        return context.get_dummy_value()

    return types.void(x, levels, scale, offset, total, bits), code


def _quantise(n_bits: int) -> Any:
    bytes_ = n_bits // 8

    def quantise(x: int, into: Any, first: int, last: int) -> None:
        """Groups `first` to `last` of `x`. into: addresses of levels, scales, offsets and totals of group 0."""
        levels, scales, offsets, totals = into
        for g in range(first, last):
            at = 4 * g
            quantise_group(
                x + 2 * GROUP * g, levels + bytes_ * GROUP * g, scales + at, offsets + at, totals + at, n_bits
            )

    quantise.__qualname__ = f"quantise_{n_bits}"  # code that is read from disk finds what it calls by name
    return numba.njit(error_model="numpy", fastmath=False)(quantise)


# Without leave to fuse a product and a sum, which callers' code has: the levels would depend on the CPU.
quantise8, quantise16 = _quantise(8), _quantise(16)
