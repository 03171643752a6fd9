"""RMSNorm, rotation and gated activation as loops compiled by Numba: bfloat16, few tokens, one CPU core.

For one token each PyTorch operation takes longer to call than to compute, so what lies between two matrix products is
one loop here. A bfloat16 number comes as its 16 bits, since NumPy has no such type; sums are float32.

A loop processes each row independently, in a summation order that does not depend on the number of rows. So a token's
numbers are the same to the last bit, however many other tokens are in the pass.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numba import carray, types
from torch import Tensor

from specdec_ref.kernels import cpu

VARIANT = cpu.variant()  # now, since it limits what Numba compiles for, and Numba asks only once
BITS = types.CPointer(types.uint16)  # a bfloat16 tensor
COUNT = types.int64
REAL = types.float32
LANES = 64  # partial sums of a row, so that many numbers are added at once
# Products and sums may be fused, but not reordered: a reordered sum could differ with the number of rows.
FAST = {"contract"}
_C = {COUNT: ctypes.c_int64, REAL: ctypes.c_float}


@cache
def _version() -> str:
    """What changes with the kind of CPU and with the sources, of which Numba asks only a function's own file."""
    sources = [source.read_bytes() for source in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256(b"".join([VARIANT.encode(), *sources])).hexdigest()[:12]


trouble: str | None = None
"""Why compiled loops could not be read from disk or kept there; None as long as nothing went wrong."""


def inlined(function: Callable[..., Any]) -> Any:
    """A function that is inlined into the compiled loops that call it."""
    return numba.njit(inline="always", error_model="numpy", fastmath=FAST)(function)


def called(function: Callable[..., Any]) -> Any:
    """A function that compiled loops call, compiled by itself."""
    return numba.njit(error_model="numpy", fastmath=FAST)(function)


def address(tensor: Tensor | None) -> int:
    """Where a tensor's numbers begin; 0, the null pointer, for None."""
    if tensor is None:
        return 0
    if tensor.dtype != torch.bfloat16 or not tensor.is_cpu:
        raise TypeError(
            f"a compiled loop takes bfloat16 on the CPU, not {tensor.dtype} on {tensor.device}: a model that was laid "
            "out for the CPU cannot be moved or cast, load it again with that dtype and device"
        )
    return tensor.data_ptr()


class Loop:
    """A function of pointers and numbers, compiled by `compile` or when first called, and kept on disk by Numba.

    Called with a tensor for each pointer, bfloat16 on the CPU, or it raises TypeError; None is the null pointer, where
    the loop says that it does not read there. It cannot check shapes: its callers do.
    """

    def __init__(self, function: Callable[..., None], signature: tuple[Any, ...]) -> None:
        # Numba names what it keeps after the function: with the version, code of other sources is never taken for it.
        function.__qualname__ = f"{function.__name__}-{_version()}"
        self.function, self.signature = function, signature
        self._code: Any = None
        self._call: Callable[..., None] | None = None

    def __call__(self, *arguments: Tensor | float | None) -> None:
        call = self._call or self.compile()
        call(*[address(a) if a is None or isinstance(a, Tensor) else a for a in arguments])

    def compile(self) -> Callable[..., None]:
        """The compiled loop, which takes addresses. The first time takes seconds, later processes read the result.

        Raises ValueError where NUMBA_DISABLE_JIT forbids compiling.
        """
        if self._call is None:
            if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
                raise ValueError(
                    "NUMBA_DISABLE_JIT is set, and bfloat16 on a CPU needs compiled loops: unset it, or load with "
                    "dtype='float32'"
                )
            try:
                self._code = self._compiled(cache=True)
            except Exception as error:  # whatever is wrong with the folder or the files in it
                _warn_not_kept(error)
                self._code = self._compiled(cache=False)
            arguments: list[Any] = [_C.get(t, ctypes.c_void_p) for t in self.signature]
            self._call = ctypes.CFUNCTYPE(None, *arguments)(self._code.address)
        return self._call

    def compile_aloud(self, what: str) -> None:
        """`compile`, for a loop that takes long: says so, unless it is read from disk. Raises as `compile`."""
        if self._call is None and not self.kept:
            print(f"specdec: compiling {what} for this CPU, once ...", file=sys.stderr, flush=True)
        self.compile()

    @property
    def kept(self) -> bool:
        """Whether an earlier process has left compiled code of this version on disk."""
        folder = cache_folder()
        return bool(folder) and any(Path(folder).glob(f"*.{self.function.__qualname__}-*.nbi"))

    @property
    def address(self) -> int:
        """Where the compiled code begins."""
        self.compile()
        return self._code.address

    def _compiled(self, cache: bool) -> Any:
        cfunc: Any = numba.cfunc
        return cfunc(types.void(*self.signature), cache=cache, error_model="numpy", fastmath=FAST)(self.function)


@cache
def cache_folder() -> str:
    """Where Numba keeps the compiled loops; empty if it finds no folder that it may write to."""
    from numba.core.caching import FunctionCache

    try:
        return FunctionCache(gate.function).cache_path
    except Exception:
        return ""


def advice() -> str:
    """What to do where compiled loops cannot be read from disk or kept there."""
    folder = cache_folder()
    return f"make room in {folder}, or delete the files there" if folder else "set NUMBA_CACHE_DIR to a folder"


def _warn_not_kept(error: Exception) -> None:
    """Warn once in a process, whatever happens to the other loops."""
    global trouble
    if trouble is not None:
        return
    trouble = f"{type(error).__name__}: {error}"
    warnings.warn(
        f"the compiled loops cannot be read from disk or kept there ({trouble}), so that each process has to compile "
        f"them again, which takes seconds: {advice()}",
        RuntimeWarning,
        stacklevel=4,
    )


def loop(*signature: Any) -> Callable[[Callable[..., None]], Loop]:
    """Make a `Loop` of a function whose arguments are of these types."""
    return lambda function: Loop(function, signature)


@inlined
def widen(bits: Any) -> Any:
    """bfloat16's bits as float32: they are its upper half."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@inlined
def narrow(x: Any) -> Any:
    """float32 as bfloat16's bits, rounded to the nearest, ties to even. NaN stays NaN."""
    bits = np.float32(x).view(np.uint32)
    half = np.uint32(np.uint32(0x7FFF) + np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1)))
    rounded = np.uint16(np.uint32(bits + half) >> np.uint32(16))
    return np.uint16(0x7FC0) if x != x else rounded


@inlined
def exp(x: Any) -> Any:
    """e^x in float32, off by less than 3e-7 of itself; 0 below -87, and no more than e^88 above.

    x = n ln 2 + r with |r| <= ln 2 / 2: e^r by its series, 2^n by writing n into the exponent. Unlike the C library's,
    it vectorises.
    """
    y = min(max(x, np.float32(-87)), np.float32(88))
    n = np.floor(y * np.float32(1.4426950408889634) + np.float32(0.5))
    r = (y - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)  # ln 2 in two parts, the first one short
    s = np.float32(1 / 5040)
    for factor in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        s = s * r + np.float32(factor)
    power = np.uint32(np.uint32(np.int32(n) + np.int32(127)) << np.uint32(23)).view(np.float32)
    return np.float32(0) if x < np.float32(-87) else s * power


@loop(BITS, BITS, BITS, BITS, BITS, COUNT, COUNT, REAL, COUNT)
def norm(x, more, weight, total, out, rows, width, eps, adds) -> None:  # type: ignore[no-untyped-def]
    """total = x + more; out = total / sqrt(mean(total^2) + eps) * weight. All `[rows, width]`, weight `[width]`.

    Without `adds` it is x in place of total, and more and total may be null.
    """
    a, b, w = carray(x, (rows, width)), carray(more, (rows, width)), carray(weight, width)
    sums, results = carray(total, (rows, width)), carray(out, (rows, width))
    row, lanes = np.empty(width, np.float32), np.empty(LANES, np.float32)
    whole = width - width % LANES
    for r in range(rows):
        x_row, more_row, sum_row, out_row = a[r], b[r], sums[r], results[r]
        if adds:
            for i in range(width):
                sum_row[i] = narrow(widen(x_row[i]) + widen(more_row[i]))
                row[i] = widen(sum_row[i])
        else:
            for i in range(width):
                row[i] = widen(x_row[i])
        lanes[:] = 0
        for start in range(0, whole, LANES):
            part = row[start : start + LANES]
            for j in range(LANES):
                lanes[j] += part[j] * part[j]
        square = np.float32(0)
        for j in range(LANES):
            square += lanes[j]
        for i in range(whole, width):
            square += row[i] * row[i]
        factor = np.float32(1) / np.sqrt(square / np.float32(width) + eps)
        for i in range(width):
            out_row[i] = narrow(row[i] * factor * widen(w[i]))


@called
def rotate_head(x: Any, cos: Any, sin: Any, out: Any) -> None:
    """Turn one head `[dim]` by its position's angles, as in `llama.py`."""
    half = len(x) // 2
    low, high = x[:half], x[half:]
    for j in range(half):
        a, b = widen(low[j]), widen(high[j])
        out[j] = narrow(a * widen(cos[j]) + b * widen(sin[j]))
        out[half + j] = narrow(b * widen(cos[half + j]) + a * widen(sin[half + j]))


@loop(BITS, BITS, BITS, BITS, BITS, BITS, COUNT, COUNT, COUNT, COUNT)
def rotate(qkv, cos, sin, q, k, v, n, n_heads, n_kv_heads, dim) -> None:  # type: ignore[no-untyped-def]
    """`qkv` `[n, n_heads + 2 n_kv_heads, dim]` into q, k and v `[heads, n, dim]`, q and k rotated."""
    data = carray(qkv, (n, n_heads + 2 * n_kv_heads, dim))
    cosines, sines = carray(cos, (n, dim)), carray(sin, (n, dim))
    queries, keys = carray(q, (n_heads, n, dim)), carray(k, (n_kv_heads, n, dim))
    values = carray(v, (n_kv_heads, n, dim))
    for i in range(n):
        for h in range(n_heads + n_kv_heads):
            out = queries[h, i] if h < n_heads else keys[h - n_heads, i]
            rotate_head(data[i, h], cosines[i], sines[i], out)
        for h in range(n_kv_heads):
            values[h, i] = data[i, n_heads + n_kv_heads + h]


@inlined
def gated(gate: Any, up: Any) -> Any:
    """silu(gate) * up, of bfloat16's bits."""
    g = widen(gate)
    return narrow(g / (np.float32(1) + exp(-g)) * widen(up))


@loop(BITS, BITS, COUNT, COUNT)
def gate(gate_up, out, n, width) -> None:  # type: ignore[no-untyped-def]
    """silu(gate) * up, `[n, width]`, of `gate_up` `[n, 2 width]`."""
    both, results = carray(gate_up, (n, 2 * width)), carray(out, (n, width))
    for i in range(n):
        gate, up = both[i, :width], both[i, width:]
        for j in range(width):
            results[i, j] = gated(gate[j], up[j])
