"""Vectors of 16 numbers in compiled loops: the few operations that products and attention need, for any CPU.

A `Tile` is R vectors, held in registers; R is known when a loop is compiled, and an operation is done for all R. LLVM
splits 16 numbers into as many registers as the CPU needs. Only the integer dot products differ between CPUs (`dot4`,
`dot2`), and they are exact. Products and sums of floats are in one stated order. So a loop that is written with these
gives the same bits on every CPU.

Memory is named by addresses (int64), as in the loops that call these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import RequireLiteralValue
from numba.extending import models, register_model

from specdec_ref.kernels import cpu
from specdec_ref.kernels.memory import at, intrinsic

LANES = 16

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
Value = Any  # an LLVM value


def vector(element: Any, n: int = LANES) -> Any:
    """The LLVM type of n numbers."""
    return ir.VectorType(element, n)


INTS, FLOATS = vector(I32), vector(F32)


class Tile(types.Type):
    """The type of R vectors of 16 int32 ("i") or float32 ("f")."""

    def __init__(self, kind: str, rows: int) -> None:
        self.kind, self.rows = kind, rows
        super().__init__(name=f"Tile({kind}, {rows})")


@register_model(Tile)
class _TileModel(models.PrimitiveModel):
    def __init__(self, manager: Any, tile: Tile) -> None:
        super().__init__(manager, tile, ir.ArrayType(INTS if tile.kind == "i" else FLOATS, tile.rows))


# What LLVM is told, one vector at a time


def rows_of(builder: Any, tile: Value) -> list[Value]:
    """The vectors of a tile."""
    return [builder.extract_value(tile, r) for r in range(tile.type.count)]


def join(builder: Any, rows: Sequence[Value]) -> Value:
    """A tile of these vectors."""
    tile = ir.Constant(ir.ArrayType(rows[0].type, len(rows)), ir.Undefined)
    for r, row in enumerate(rows):
        tile = builder.insert_value(tile, row, r)
    return tile


def same(kind: Any, number: float) -> Value:
    """A constant vector with `number` in each lane."""
    return ir.Constant(kind, [number] * kind.count)


def in_all_lanes(builder: Any, number: Value, n: int = LANES) -> Value:
    """A vector with one number in each lane."""
    kind = vector(number.type, n)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, first, ir.Constant(vector(I32, n), [0] * n))


def shuffle(builder: Any, a: Value, b: Value, order: Sequence[int]) -> Value:
    """Lanes of `a` (0 and on) and `b` (after those of a) in this order."""
    return builder.shuffle_vector(a, b, ir.Constant(vector(I32, len(order)), list(order)))


def load(builder: Any, address: Value, kind: Any, align: int = 1) -> Value:
    """What lies at an address."""
    return builder.load(at(builder, address, kind), align=align)


def call(builder: Any, name: str, result: Any, *arguments: Value) -> Value:
    """LLVM's own function of this name."""
    kind = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def row_address(builder: Any, address: Value, stride: Value, row: int) -> Value:
    """address + row stride."""
    return builder.add(address, builder.mul(stride, ir.Constant(I64, row)))


def multiply_add(builder: Any, a: Value, b: Value, c: Value) -> Value:
    """a b + c, rounded once."""
    return call(builder, "llvm.fma.v16f32", FLOATS, a, b, c)


# Making, reading and writing tiles


def _rows(literal: Any) -> int:
    if not isinstance(literal, types.IntegerLiteral):
        raise RequireLiteralValue("the rows of a tile have to be a constant")
    return literal.literal_value


def _zeros(kind: str) -> Any:
    @intrinsic
    def zeros(typing: Any, rows: Any) -> Any:
        tile = Tile(kind, _rows(rows))
        return tile(rows), lambda context, builder, signature, args: ir.Constant(context.get_value_type(tile), None)

    return zeros


no_ints, no_floats = _zeros("i"), _zeros("f")


@intrinsic
def load_words(typing: Any, address: Any) -> Any:
    """16 int32 at a multiple of 64, as a tile of one row."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        return join(builder, [load(builder, args[0], INTS, 64)])

    return Tile("i", 1)(types.int64), code


@intrinsic
def load_floats(typing: Any, address: Any) -> Any:
    """16 float32, as a tile of one row."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        return join(builder, [load(builder, args[0], FLOATS, 4)])

    return Tile("f", 1)(types.int64), code


@intrinsic
def load_halves(typing: Any, address: Any) -> Any:
    """16 float16 at a multiple of 32, widened, as a tile of one row."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        if cpu.variant() != "plain":
            return join(builder, [builder.fpext(load(builder, args[0], vector(F16), 32), FLOATS)])
        # Without an instruction for it: exponent and mantissa moved into place, the exponent's bias made right by a
        # product, which is exact.
        bits = builder.zext(load(builder, args[0], vector(I16), 32), INTS)
        size = builder.shl(builder.and_(bits, same(INTS, 0x7FFF)), same(INTS, 13))
        value = builder.fmul(builder.bitcast(size, FLOATS), same(FLOATS, 2.0**112))
        sign = builder.shl(builder.and_(bits, same(INTS, 0x8000)), same(INTS, 16))
        return join(builder, [builder.bitcast(builder.or_(builder.bitcast(value, INTS), sign), FLOATS)])

    return Tile("f", 1)(types.int64), code


@intrinsic
def load_bfloats(typing: Any, address: Any) -> Any:
    """16 bfloat16, widened, as a tile of one row."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        bits = builder.zext(load(builder, args[0], vector(I16), 2), INTS)
        return join(builder, [builder.bitcast(builder.shl(bits, same(INTS, 16)), FLOATS)])

    return Tile("f", 1)(types.int64), code


@intrinsic
def store_floats(typing: Any, tile: Any, address: Any) -> Any:
    """Write a tile of one row, float32."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        builder.store(builder.extract_value(args[0], 0), at(builder, args[1], FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(tile, types.int64), code


@intrinsic
def store_bfloats(typing: Any, tile: Any, address: Any, stride: Any) -> Any:
    """Round each row to bfloat16, to nearest, ties to even, and write row r at address + r stride bytes."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        for r, row in enumerate(rows_of(builder, args[0])):
            bits = builder.bitcast(row, INTS)
            odd = builder.and_(builder.lshr(bits, same(INTS, 16)), same(INTS, 1))
            rounded = builder.lshr(builder.add(builder.add(bits, same(INTS, 0x7FFF)), odd), same(INTS, 16))
            # A NaN could be rounded up to infinity or past it: it stays NaN.
            rounded = builder.select(builder.fcmp_unordered("uno", row, row), same(INTS, 0x7FC0), rounded)
            to = at(builder, row_address(builder, args[1], args[2], r), vector(I16))
            builder.store(builder.trunc(rounded, vector(I16)), to, align=2)
        return context.get_dummy_value()

    return types.void(tile, types.int64, types.int64), code


@intrinsic
def prefetch(typing: Any, address: Any) -> Any:
    """Ask for the 64 bytes at an address before they are needed."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        pointer = at(builder, args[0], I8)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, ir.Constant(I32, 0), ir.Constant(I32, 3), ir.Constant(I32, 1)])
        return context.get_dummy_value()

    return types.void(types.int64), code


# Arithmetic


@intrinsic
def add_ints(typing: Any, a: Any, b: Any) -> Any:
    """a + b of int32 tiles of the same rows."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        pairs = zip(rows_of(builder, args[0]), rows_of(builder, args[1]), strict=True)
        return join(builder, [builder.add(x, y) for x, y in pairs])

    return a(a, b), code


@intrinsic
def add_scaled(typing: Any, sums: Any, dots: Any, scale: Any, address: Any, stride: Any) -> Any:
    """sums[r] + dots[r] * (scale * s[r]), dots made floats; s[r] is the float32 at address + r stride."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        rows = []
        scales = builder.extract_value(args[2], 0)
        for r, (total, dot) in enumerate(zip(rows_of(builder, args[0]), rows_of(builder, args[1]), strict=True)):
            s = in_all_lanes(builder, load(builder, row_address(builder, args[3], args[4], r), F32, 4))
            factor = builder.fmul(scales, s)
            rows.append(multiply_add(builder, builder.sitofp(dot, FLOATS), factor, total))
        return join(builder, rows)

    return sums(sums, dots, scale, types.int64, types.int64), code


@intrinsic
def add_outer(typing: Any, sums: Any, row: Any, address: Any, stride: Any) -> Any:
    """sums[r] + row * s[r]; s[r] is the float32 at address + r stride."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        rows, factors = [], builder.extract_value(args[1], 0)
        for r, total in enumerate(rows_of(builder, args[0])):
            s = in_all_lanes(builder, load(builder, row_address(builder, args[2], args[3], r), F32, 4))
            rows.append(multiply_add(builder, factors, s, total))
        return join(builder, rows)

    return sums(sums, row, types.int64, types.int64), code


@intrinsic
def add_products(typing: Any, sums: Any, row: Any, address: Any, stride: Any) -> Any:
    """sums[r] + row * v[r]; v[r] is the 16 float32 at address + r stride."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        rows, factors = [], builder.extract_value(args[1], 0)
        for r, total in enumerate(rows_of(builder, args[0])):
            v = load(builder, row_address(builder, args[2], args[3], r), FLOATS, 4)
            rows.append(multiply_add(builder, factors, v, total))
        return join(builder, rows)

    return sums(sums, row, types.int64, types.int64), code


@intrinsic
def sums_of_rows(typing: Any, tile: Any) -> Any:
    """Lane k is the sum of row k of a tile of 16 rows: neighbours are added, then neighbours of those, and so on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        rows = rows_of(builder, args[0])
        while len(rows) > 1:
            rows = [
                builder.fadd(
                    shuffle(builder, a, b, range(0, 2 * LANES, 2)), shuffle(builder, a, b, range(1, 2 * LANES, 2))
                )
                for a, b in zip(rows[::2], rows[1::2], strict=True)
            ]
        return join(builder, rows)

    return Tile("f", 1)(tile), code


@intrinsic
def load_rows(typing: Any, like: Any, address: Any, stride: Any) -> Any:
    """A tile of float32: row r is the 16 numbers at address + r stride; as many rows as `like` has."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        return join(
            builder, [load(builder, row_address(builder, args[1], args[2], r), FLOATS, 4) for r in range(like.rows)]
        )

    return like(like, types.int64, types.int64), code


@intrinsic
def store_rows(typing: Any, tile: Any, address: Any, stride: Any) -> Any:
    """Write each row's 16 float32 at address + r stride."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        for r, row in enumerate(rows_of(builder, args[0])):
            builder.store(row, at(builder, row_address(builder, args[1], args[2], r), FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(tile, types.int64, types.int64), code


@intrinsic
def add_times(typing: Any, sums: Any, factor: Any, address: Any, stride: Any) -> Any:
    """sums[r] + f v[r]: f is the float32 at `factor`, v[r] the 16 float32 at address + r stride."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        f = in_all_lanes(builder, load(builder, args[1], F32, 4))
        rows = []
        for r, total in enumerate(rows_of(builder, args[0])):
            v = load(builder, row_address(builder, args[2], args[3], r), FLOATS, 4)
            rows.append(multiply_add(builder, f, v, total))
        return join(builder, rows)

    return sums(sums, types.int64, types.int64, types.int64), code
