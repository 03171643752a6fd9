"""Several threads in one compiled function: PyTorch's own team of them, and a barrier between phases of work.

A pass has hundreds of phases of some microseconds, too short to start threads for each, or to let the system wake them.
So all threads run the whole function, and wait for each other by looking at a number, at first without giving up their
core. A thread that has to wait long shares its core with another program, or waits for one that does: then it gives
way, and says so, and `Team` takes fewer threads for a while.
"""

from __future__ import annotations

import ctypes
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils

from specdec_ref.kernels.loops import called, loop
from specdec_ref.kernels.memory import I64, Value, at, int64_at, intrinsic, put_int64

I32 = ir.IntType(32)

# Where numbers lie in a team's shared memory, in bytes; each that is written often has a cache line of its own.
ARRIVED, TURN, TICKET, LATE, THREADS, SPINS, COUNT, NAP, YIELD = 0, 64, 128, 192, 256, 264, 272, 280, 288
SIZE = 320
SPIN_SECONDS = 3e-4  # that a thread looks before it gives way, for a token
NAP_MICROSECONDS = 50


@intrinsic
def add_at(typing: Any, address: Any, number: Any) -> Any:
    """Add to the int64 at an address, in one step for all threads; returns what it was."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        return builder.atomic_rmw("add", at(builder, args[0], I64), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), code


@intrinsic
def look_at(typing: Any, address: Any) -> Any:
    """The int64 at an address as other threads have left it, with all that they wrote before it."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        return builder.load_atomic(at(builder, args[0], I64), "acquire", 8)

    return types.int64(types.int64), code


@intrinsic
def breathe(typing: Any) -> Any:
    """A moment's rest for a core that looks at a number again and again."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        triple = context.codegen().magic_tuple()[0]
        if triple.startswith(("x86_64", "i686")):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        elif triple.startswith(("aarch64", "arm64")):
            kind = ir.FunctionType(ir.VoidType(), [I32])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.aarch64.hint")
            builder.call(function, [ir.Constant(I32, 1)])
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
def call_at(typing: Any, address: Any, number: Any) -> Any:
    """Call the C function int f(int) at an address."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Value:
        function = at(builder, args[0], ir.FunctionType(I32, [I32]))
        return builder.sext(builder.call(function, [builder.trunc(args[1], I32)]), I64)

    return types.int64(types.int64, types.int64), code


@called
def wait(team: int) -> None:
    """Return when every thread of the team has come here. team: the address of its shared memory."""
    threads = int64_at(team + THREADS)
    if threads == 1:
        return
    turn = look_at(team + TURN)
    if add_at(team + ARRIVED, 1) == threads - 1:
        put_int64(team + ARRIVED, 0)
        add_at(team + TURN, 1)
        return
    spins, most, rests = 0, int64_at(team + SPINS), 0
    while look_at(team + TURN) == turn:
        spins += 1
        if spins < most:
            breathe()
        else:
            rests += 1
            if rests == 2:
                add_at(team + LATE, 1)
            # First let others run here; then sleep, so that the thread we wait for can be moved to this core.
            if rests % 4:
                call_at(int64_at(team + YIELD), 0)
            else:
                call_at(int64_at(team + NAP), NAP_MICROSECONDS)


@loop(types.int64)
def breaths(n: int) -> None:
    """n times `breathe`, to see how long one takes."""
    for _ in range(n):
        breathe()


@called
def join_team(team: int) -> tuple[int, int]:
    """This thread's number, from 0 on, and how many there are; once per thread and run.

    OpenMP may give fewer threads than were asked for.
    """
    if int64_at(team + THREADS) > 1:
        put_int64(team + THREADS, call_at(int64_at(team + COUNT), 0))
    return add_at(team + TICKET, 1), int64_at(team + THREADS)


@called
def share(n: int, me: int, threads: int) -> tuple[int, int]:
    """The part of n things that thread `me` does: first, and one past the last."""
    return me * n // threads, (me + 1) * n // threads


class Team:
    """Threads that run a compiled function together, at most as many as PyTorch takes.

    Where another program takes a core, threads wait for each other for milliseconds, and one thread alone is faster
    than two. After a few such runs there is one fewer, and the full number is tried again from time to time, ever more
    rarely while it fails.
    """

    AGAIN = (8, 256)  # runs until the full number is tried again: at first, and at most
    TRIAL = 4  # runs in which it must not be late

    def __init__(self) -> None:
        raw = np.zeros(SIZE + 64, np.uint8)
        start = -raw.ctypes.data % 64
        self.memory = raw[start : start + SIZE].view(np.int64)
        self.address = self.memory.ctypes.data
        if parallel := _gomp_parallel():  # otherwise there is one thread, and nobody to wait for
            self._set(YIELD, _address_of(ctypes.CDLL(None).sched_yield))
            self._set(NAP, _address_of(ctypes.CDLL(None).usleep))
            self._set(COUNT, _address_of(parallel.library.omp_get_num_threads))
        self.spins = int(SPIN_SECONDS / _breath_seconds())
        self.lock = threading.Lock()  # of whoever runs something: there is one shared memory
        self.fewer = 0
        self.late = 0.0  # how often the last runs were late; an older run counts less
        self.again, self.runs = self.AGAIN[0], 0
        self.trial = 0

    @property
    def threads(self) -> int:
        """Threads that the next run takes."""
        most = torch.get_num_threads() if _gomp_parallel() else 1
        return max(1, most - self.fewer)

    def run(self, loop: Any, argument: int, size: int = 1) -> None:
        """Run a `Loop` that takes the address `argument`, and finds this team's memory there, in all threads.

        size: of the work, in tokens: in a larger piece a thread may come later without being late.
        """
        threads = self.threads
        for place, value in ((THREADS, threads), (TICKET, 0), (ARRIVED, 0), (LATE, 0)):
            self._set(place, value)
        self._set(SPINS, self.spins * (8 + size) // 8)
        call = loop.compile()
        if threads == 1:
            call(argument)
        else:
            parallel = _gomp_parallel()
            assert parallel is not None
            parallel(loop.address, argument, threads, 0)
        self.notice(bool(self.memory[LATE // 8]))

    def notice(self, late: bool) -> None:
        """Take fewer threads after runs in which one came late, the full number again after some runs without."""
        self.late = 0.75 * self.late + late
        if late and (self.trial or self.late > 1.5):
            if self.trial:
                self.again = min(2 * self.again, self.AGAIN[1])
            self.fewer = min(self.fewer + 1, max(0, torch.get_num_threads() - 1))
            self.late, self.runs, self.trial = 0.0, self.again, 0
        elif self.trial:
            self.trial -= 1
            if not self.trial:
                self.again = self.AGAIN[0]
        elif self.fewer:
            self.runs -= 1
            if self.runs <= 0:
                self.fewer, self.trial = 0, self.TRIAL

    def _set(self, place: int, value: int) -> None:
        self.memory[place // 8] = value


@cache
def team() -> Team:
    """The team of this process."""
    return Team()


@cache
def _gomp_parallel() -> Any:
    """GOMP_parallel of the OpenMP library that PyTorch runs on, so that its own threads run our function; or None."""
    for path in sorted(Path(torch.__file__).parent.glob("lib/libgomp*.so*")):
        try:
            library = ctypes.CDLL(str(path))
            function: Any = library.GOMP_parallel
        except (OSError, AttributeError):
            continue
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        function.restype, function.library = None, library
        return function
    return None


def _breath_seconds() -> float:
    """How long a `breathe` takes: the shortest of some."""
    call, best = breaths.compile(), float("inf")
    for _ in range(5):
        start = time.perf_counter()
        call(1000)
        best = min(best, (time.perf_counter() - start) / 1000)
    return best


def _address_of(function: Any) -> int:
    """Where a C function lies."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0
