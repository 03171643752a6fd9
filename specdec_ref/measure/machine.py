"""The speed of this machine: how fast weights stream from memory, and how fast matrices multiply."""

from __future__ import annotations

import datetime
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import psutil
import torch
from torch.nn import functional as F

from specdec_ref.arithmetic import Accelerator
from specdec_ref.kernels.linear import PackedLinear, can_pack
from specdec_ref.measure.passes import Clock, Progress, silently, synchronise, using_threads
from specdec_ref.models.dtype import resolve_dtype

SHORT_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
"""The arithmetic's names of the formats that can be measured."""


class WeightStream:
    """Matrices that together exceed every cache, each multiplied by a few tokens in turn, as a model's layers are.

    Decoding does just this: matrix-vector products whose matrices were last read a whole pass ago. So this is the
    bandwidth that decoding can hope for, number format and kernels included, and not that of a bare copy. bfloat16 on a
    CPU is laid out as `pack` lays out a model, where it can be: in the plain layout the same bytes can take twice as
    long.

    dtype: a name or torch dtype. width: inputs of each matrix. nbytes: of all matrices together; the default is
    larger than caches are. matrix_bytes: of one; large enough that the cost of a call is small beside it.
    """

    def __init__(
        self,
        dtype: str | torch.dtype = "fp32",
        width: int = 2048,
        nbytes: int | None = None,
        device: torch.device | str = "cpu",
        clock: Clock = time.perf_counter,
        matrix_bytes: int | None = None,
    ) -> None:
        self.dtype, self.clock = resolve_dtype(dtype, device), clock
        on_cpu = torch.device(device).type == "cpu"
        nbytes = nbytes or (2**30 if on_cpu else 2**32)
        rows = (matrix_bytes or (2**23 if on_cpu else 2**30)) // (width * self.dtype.itemsize)
        self.matrix_bytes = rows * width * self.dtype.itemsize
        if rows < 1 or nbytes < 2 * self.matrix_bytes:
            raise ValueError(f"{nbytes:,} bytes hold no two matrices of {self.matrix_bytes:,}: give a larger nbytes")
        self.rows, self.width, self.device = rows, width, torch.device(device)
        packed = on_cpu and self.dtype == torch.bfloat16 and can_pack()
        count = nbytes // self.matrix_bytes
        self.matrices = [self._matrix(packed) for _ in range(count)]
        self._next = 0

    @torch.inference_mode()
    def _matrix(self, packed: bool) -> Callable[[torch.Tensor], torch.Tensor]:
        weight = torch.ones(self.rows, self.width, dtype=self.dtype, device=self.device)
        return PackedLinear(weight) if packed else partial(F.linear, weight=weight)

    @torch.inference_mode()
    def seconds(self, n_tokens: int = 1, matrices: int = 32) -> float:
        """Seconds of one product `[n_tokens, width] x [width, rows]`: the median over the next `matrices` of the ring.

        The median leaves out products during which the system did something else. A matrix comes round again only
        after all others, so it has left the caches.
        """
        tokens = torch.ones(n_tokens, self.width, dtype=self.dtype, device=self.device)
        times = []
        for _ in range(min(matrices, len(self.matrices))):
            matrix = self.matrices[self._next]
            self._next = (self._next + 1) % len(self.matrices)
            synchronise(self.device)
            start = self.clock()
            matrix(tokens)
            synchronise(self.device)
            times.append(self.clock() - start)
        return statistics.median(times)

    def bandwidth(self, matrices: int = 32) -> float:
        """Bytes of weights per second for a single token."""
        return self.matrix_bytes / self.seconds(1, matrices)


class SquareProduct:
    """A product of two n x n matrices, large enough to show the rate of the arithmetic units.

    n doubles until one product takes `least_seconds`, so that the cost of a call is small beside it.
    """

    def __init__(
        self,
        dtype: str | torch.dtype = "fp32",
        device: torch.device | str = "cpu",
        clock: Clock = time.perf_counter,
        least_seconds: float = 0.004,
    ) -> None:
        self.dtype, self.device, self.clock = resolve_dtype(dtype, device), device, clock
        self._resize(256)
        while self.seconds() < least_seconds and self.n < 16_384:
            self._resize(2 * self.n)
            self.seconds()  # the first product of a size sets up its kernel

    def _resize(self, n: int) -> None:
        self.n = n
        self.factors = torch.ones(2, n, n, dtype=self.dtype, device=self.device)

    @torch.inference_mode()
    def seconds(self) -> float:
        """Seconds of one product."""
        synchronise(self.device)
        start = self.clock()
        F.linear(self.factors[0], self.factors[1])
        synchronise(self.device)
        return self.clock() - start

    def rate(self) -> float:
        """FLOP/s of one product, a multiplication and an addition being 2 FLOP."""
        return 2 * self.n**3 / self.seconds()


@dataclass(frozen=True)
class Rates:
    """What one number format reaches with one number of threads, in every round of a measurement.

    bandwidths: bytes/s of weights streamed for one token. matrix_rates: FLOP/s of a large matrix product.
    """

    dtype: str
    threads: int
    bandwidths: tuple[float, ...]
    matrix_rates: tuple[float, ...]

    @property
    def bandwidth(self) -> float:
        """The best round: what the machine can do, since whatever disturbs it only takes away."""
        return max(self.bandwidths)

    @property
    def matrix_rate(self) -> float:
        """The best round."""
        return max(self.matrix_rates)

    @property
    def ridge(self) -> float:
        """FLOP/byte at which work in this format stops being bound by memory."""
        return self.matrix_rate / self.bandwidth

    @property
    def steadiness(self) -> float:
        """Median bandwidth over the best: near 1 on a quiet machine."""
        return statistics.median(self.bandwidths) / self.bandwidth


@dataclass(frozen=True)
class Machine:
    """A machine as measured: its rates by format and threads, and its memory in bytes."""

    name: str
    capacity: int
    rates: tuple[Rates, ...]

    def best(self, dtype: str, threads: int | None = None) -> Rates:
        """The rates of `dtype` with `threads`, or with the number that streams weights fastest. Raises ValueError."""
        own = [r for r in self.rates if r.dtype == dtype and threads in (None, r.threads)]
        if not own:
            known = ", ".join(f"{r.dtype} with {r.threads}" for r in self.rates)
            wanted = dtype if threads is None else f"{dtype} with {threads}"
            raise ValueError(f"{wanted} was not measured, only {known} threads")
        return max(own, key=lambda r: r.bandwidth)

    def accelerator(self, dtype: str | None = None, threads: int | None = None) -> Accelerator:
        """The machine as a row like those of the datasheets, so that it goes onto the same roofline.

        Its bandwidth is what weights in `dtype` reach, or the highest of any format; `threads` None takes the best.
        """
        some = [r for r in self.rates if threads in (None, r.threads)]
        formats = [dtype] if dtype else {r.dtype for r in some}
        return Accelerator(
            name="this machine",
            bandwidth=max(self.best(d, threads).bandwidth for d in formats),
            capacity=self.capacity,
            rates={r.dtype: max(s.matrix_rate for s in some if s.dtype == r.dtype) for r in some},
            label=self.name,
            source="measured here",
            date=datetime.date.today().isoformat(),
        )


def measure_machine(
    device: torch.device | str = "cpu",
    dtypes: Sequence[str] = ("fp32", "bf16"),
    threads: Sequence[int] = (),
    seconds: float = 20,
    clock: Clock = time.perf_counter,
    nbytes: int | None = None,
    progress: Progress = silently,
) -> Machine:
    """Bandwidth and matrix rate by number format and threads, in about `seconds`.

    Two methods, `WeightStream` and `SquareProduct`, for each format and number of threads (1 and all that PyTorch
    uses, by default), in turns until the time is up, three rounds at least. `nbytes` is what each stream goes through.
    """
    torch_dtypes = {SHORT_NAMES[resolve_dtype(d, device)]: resolve_dtype(d, device) for d in dtypes}
    on_cpu = torch.device(device).type == "cpu"
    counts = sorted(set(threads or (1, torch.get_num_threads()))) if on_cpu else [1]
    begin = clock()
    streams = {name: WeightStream(d, nbytes=nbytes, device=device, clock=clock) for name, d in torch_dtypes.items()}
    arms = [(name, count) for name in torch_dtypes for count in counts]
    found: dict[tuple[str, int], list[tuple[float, float]]] = {arm: [] for arm in arms}
    products: dict[tuple[str, int], SquareProduct] = {}
    for name, count in arms:
        with using_threads(count):
            products[name, count] = SquareProduct(torch_dtypes[name], device, clock)
    for second in progress(range(max(1, math.ceil(seconds))), "seconds of measuring"):
        while clock() - begin < min(second + 1, seconds) or min(map(len, found.values())) < 3:
            for name, count in arms:
                with using_threads(count):
                    found[name, count].append((streams[name].bandwidth(), products[name, count].rate()))
    rates = (Rates(name, count, *zip(*pairs, strict=True)) for (name, count), pairs in found.items())
    return Machine(_device_name(device), memory_bytes(device), tuple(rates))


def memory_bytes(device: torch.device | str = "cpu") -> int:
    """Memory of the device in bytes."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total


def _device_name(device: torch.device | str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()} cores"
