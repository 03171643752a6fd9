"""Single numbers at an address, for compiled loops."""

from __future__ import annotations

from typing import Any

import numba.extending
from llvmlite import ir
from numba import types

I64 = ir.IntType(64)
intrinsic: Any = numba.extending.intrinsic  # called by loops with one argument fewer than it is written with
Value = Any  # an LLVM value


def at(builder: Any, address: Value, kind: Any) -> Value:
    """A pointer to what lies at an address."""
    return builder.inttoptr(address, kind.as_pointer())


def _reader(kind: Any, llvm: Any, what: str) -> Any:
    def read(typing: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
            return builder.load(at(builder, args[0], llvm), align=1)

        return kind(types.int64), code

    read.__doc__ = f"The {what} at an address."
    return intrinsic(read)


def _writer(kind: Any, llvm: Any, what: str) -> Any:
    def write(typing: Any, address: Any, number: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
            builder.store(args[1], at(builder, args[0], llvm), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, kind), code

    write.__doc__ = f"Write a {what} at an address."
    return intrinsic(write)


int64_at = _reader(types.int64, I64, "int64")
bits_at = _reader(types.uint16, ir.IntType(16), "bfloat16's 16 bits")
float_at = _reader(types.float32, ir.FloatType(), "float32")
put_int64 = _writer(types.int64, I64, "int64")
put_bits = _writer(types.uint16, ir.IntType(16), "bfloat16's 16 bits")
put_float = _writer(types.float32, ir.FloatType(), "float32")


@intrinsic
def address_of(typing: Any, pointer: Any) -> Any:
    """A pointer as an address."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        return builder.ptrtoint(args[0], I64)

    return types.int64(pointer), code


@intrinsic
def bits_pointer(typing: Any, address: Any) -> Any:
    """An address as a pointer to bfloat16 numbers' bits."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        return at(builder, args[0], ir.IntType(16))

    return types.CPointer(types.uint16)(types.int64), code
