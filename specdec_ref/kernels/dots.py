"""Integer dot products: the one operation that each kind of CPU takes in its own way, exactly.

A lane holds the weights of one output, each row of a tile an input row of its own. `dot4` multiplies 4 inputs in 8 bits
a lane, `dot2` 2 inputs in 16 bits. Sums are int32 and don't overflow: the largest sum of a group of 32 is
32 * 128 * 32767.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import types

from specdec_ref.kernels import cpu
from specdec_ref.kernels.memory import intrinsic
from specdec_ref.kernels.vectors import (
    I8,
    I16,
    I32,
    I64,
    INTS,
    LANES,
    Tile,
    Value,
    call,
    in_all_lanes,
    join,
    load,
    row_address,
    rows_of,
    same,
    shuffle,
    vector,
)

binding.initialize_native_asmparser()  # for the one instruction that is written as text
BYTES, PAIRS = vector(I8, 4 * LANES), vector(I16, 2 * LANES)


def _halves(builder: Any, operation: Callable[..., Value], *vectors: Value) -> Value:
    """Apply an operation on 8 lanes to both halves of vectors of 16 lanes."""
    parts = []
    for start in (0, 1):
        part = []
        for v in vectors:
            n = v.type.count // 2
            part.append(shuffle(builder, v, v, range(start * n, start * n + n)))
        parts.append(operation(*part))
    return shuffle(builder, parts[0], parts[1], range(LANES))


def _four(builder: Any, total: Value, levels: Value, x: Value, signed: bool) -> Value:
    """total[lane] + levels[lane, 0..3] . x[lane, 0..3]; x signed bytes, levels signed bytes or 0 to 15."""
    kind, half = cpu.variant(), vector(I32, LANES // 2)
    if kind in ("avx512-vnni", "avx-vnni"):
        if signed:  # the instruction takes unsigned levels: q + 128, put right by `first_sum`
            levels = builder.xor(levels, same(INTS, -0x7F7F7F80))
        if kind == "avx512-vnni":
            name = "llvm.x86.avx512.vpdpbusd.512"
            return call(builder, name, INTS, total, builder.bitcast(levels, BYTES), builder.bitcast(x, BYTES))
        eight = vector(I8, 2 * LANES)

        def dot(t: Value, a: Value, b: Value) -> Value:
            name = "llvm.x86.avx512.vpdpbusd.256"
            return call(builder, name, half, t, builder.bitcast(a, eight), builder.bitcast(b, eight))

        return _halves(builder, dot, total, levels, x)
    if kind == "avx2":
        eight, sixteen = vector(I8, 2 * LANES), vector(I16, LANES)

        def dot(t: Value, a: Value, b: Value) -> Value:
            a, b = builder.bitcast(a, eight), builder.bitcast(b, eight)
            if signed:  # |a| times b with the sign of a: 2 * 128 * 127 fits 16 bits
                negative = builder.icmp_signed("<", a, same(eight, 0))
                b = builder.select(negative, builder.sub(same(eight, 0), b), b)
                a = builder.select(negative, builder.sub(same(eight, 0), a), a)
            pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", sixteen, a, b)
            return builder.add(t, call(builder, "llvm.x86.avx2.pmadd.wd", half, pairs, same(sixteen, 1)))

        return _halves(builder, dot, total, levels, x)
    if kind == "neon-dotprod":
        four, sixteen = vector(I32, 4), vector(I8, 16)
        parts = []
        for start in range(0, LANES, 4):
            lanes = range(start, start + 4)
            t, a, b = (shuffle(builder, v, v, lanes) for v in (total, levels, x))
            name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
            parts.append(call(builder, name, four, t, builder.bitcast(a, sixteen), builder.bitcast(b, sixteen)))
        low, high = (shuffle(builder, parts[i], parts[i + 1], range(8)) for i in (0, 2))
        return shuffle(builder, low, high, range(LANES))
    for i in range(4):
        a, b = (builder.ashr(builder.shl(v, same(INTS, 24 - 8 * i)), same(INTS, 24)) for v in (levels, x))
        total = builder.add(total, builder.mul(a, b))
    return total


def _two(builder: Any, total: Value, levels: Value, x: Value) -> Value:
    """total[lane] + levels[lane, 0..1] . x[lane, 0..1], signed 16 bits."""
    kind = cpu.variant()
    if kind == "avx512-vnni":
        # As text: LLVM would replace llvm.x86.avx512.vpdpwssd.512 by two instructions, a product and a sum.
        pairs = ir.FunctionType(INTS, [INTS, INTS, INTS])
        instruction = ir.InlineAsm(pairs, "vpdpwssd $3, $2, $0", "=v,0,v,v")
        return builder.call(instruction, [total, levels, x])
    if kind in ("avx-vnni", "avx2"):
        sixteen, half = vector(I16, LANES), vector(I32, LANES // 2)

        def dot(t: Value, a: Value, b: Value) -> Value:
            a, b = builder.bitcast(a, sixteen), builder.bitcast(b, sixteen)
            if kind == "avx-vnni":
                return call(builder, "llvm.x86.avx512.vpdpwssd.256", half, t, a, b)
            return builder.add(t, call(builder, "llvm.x86.avx2.pmadd.wd", half, a, b))

        return _halves(builder, dot, total, levels, x)
    for i in range(2):
        a, b = (builder.ashr(builder.shl(v, same(INTS, 16 - 16 * i)), same(INTS, 16)) for v in (levels, x))
        total = builder.add(total, builder.mul(a, b))
    return total


def _each_row(builder: Any, tile: Value, address: Value, stride: Value, dot: Callable[..., Value]) -> Value:
    """`dot` of each row with the 4 bytes of its input, at address + r stride."""
    rows = []
    for r, total in enumerate(rows_of(builder, tile)):
        x = in_all_lanes(builder, load(builder, row_address(builder, address, stride, r), I32, 4))
        rows.append(dot(total, x))
    return join(builder, rows)


def _plus(builder: Any, address: Value, offset: int) -> Value:
    return builder.add(address, ir.Constant(I64, offset))


@intrinsic
def dot4(typing: Any, sums: Any, levels: Any, x: Any, stride: Any) -> Any:
    """sums[r, lane] + levels[lane, 0..3] . x[r, 0..3]: levels 0 to 15 a byte, x signed bytes at x + r stride."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        w = builder.extract_value(args[1], 0)
        return _each_row(builder, args[0], args[2], args[3], lambda t, x: _four(builder, t, w, x, False))

    return sums(sums, levels, types.int64, types.int64), code


@intrinsic
def dot4_signed(typing: Any, sums: Any, levels: Any, x: Any, stride: Any) -> Any:
    """`dot4` with signed levels. The sums are to begin with `first_sums`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        w = builder.extract_value(args[1], 0)
        return _each_row(builder, args[0], args[2], args[3], lambda t, x: _four(builder, t, w, x, True))

    return sums(sums, levels, types.int64, types.int64), code


@intrinsic
def first_sums(typing: Any, sums: Any, address: Any, stride: Any) -> Any:
    """What the sums of `dot4_signed` begin with: -128 times the sum of the inputs, the int32 at address + r stride,
    where the CPU takes unsigned levels only; else 0."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        if cpu.variant() not in ("avx512-vnni", "avx-vnni"):
            return args[0]

        def start(_total: Value, x: Value) -> Value:
            return builder.mul(x, same(INTS, -128))

        return _each_row(builder, args[0], args[1], args[2], start)

    return sums(sums, types.int64, types.int64), code


@intrinsic
def dot2(typing: Any, sums: Any, levels: Any, x: Any, stride: Any) -> Any:
    """sums[r, lane] + levels[lane, 0..1] . x[r, 0..1]: signed 16 bits, x at x + r stride."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        w = builder.extract_value(args[1], 0)
        return _each_row(builder, args[0], args[2], args[3], lambda t, x: _two(builder, t, w, x))

    return sums(sums, levels, types.int64, types.int64), code


def _part(code: Callable[[Any, Value], Value]) -> Any:
    """An operation on a tile of one row."""

    def make(typing: Any, tile: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Value:
            return join(builder, [code(builder, builder.extract_value(args[0], 0))])

        return Tile("i", 1)(tile), generate

    return intrinsic(make)


def _nibble(i: int, mask: int) -> Any:
    def code(builder: Any, v: Value) -> Value:
        shifted = builder.lshr(v, same(INTS, 4 * i)) if i else v
        return builder.and_(shifted, same(INTS, mask))

    return _part(code)


def _signed_byte(i: int) -> Any:
    def code(builder: Any, v: Value) -> Value:
        pairs = builder.bitcast(v, PAIRS)
        wide = builder.ashr(pairs if i else builder.shl(pairs, same(PAIRS, 8)), same(PAIRS, 8))
        return builder.bitcast(wide, INTS)

    return _part(code)


low_nibbles, high_nibbles = _nibble(0, 0x0F0F0F0F), _nibble(1, 0x0F0F0F0F)
"""The lower and the upper 4 bits of each byte."""
nibble0, nibble1, nibble2, nibble3 = (_nibble(i, 0x000F000F) for i in range(4))
"""Bits 0-3, 4-7, 8-11 and 12-15 of each 16 bits."""
low_bytes, high_bytes = _signed_byte(0), _signed_byte(1)
"""The lower and the upper byte of each 16 bits, with its sign."""
