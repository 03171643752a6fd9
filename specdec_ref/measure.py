"""Time what this machine does: stream weights, multiply matrices, and pass tokens through a model.

Every function takes turns between the things it compares, so that a slow minute of the machine hits all alike, and
takes a `clock`: `time.perf_counter` by default. With one thread `time.thread_time` counts only what the thread itself
ran, and so hardly notices what else the machine is busy with.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from specdec_ref.arithmetic import Accelerator, ModelShape, Work, decode
from specdec_ref.models.base import CausalLM
from specdec_ref.models.dtype import resolve_dtype
from specdec_ref.models.linear import FourBitLinear, PackedLinear, can_pack
from specdec_ref.models.llama import Llama
from specdec_ref.models.weights import pack

Clock = Callable[[], float]
SHORT_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
"""The arithmetic's names of the formats that can be measured."""


def pass_seconds(
    model: CausalLM,
    n_tokens: Sequence[int] = (1, 2, 4, 8, 16),
    context: int = 64,
    repeats: int = 8,
    clock: Clock = time.perf_counter,
) -> dict[int, list[float]]:
    """Seconds of one forward pass over n tokens, with `context` tokens in the cache; `repeats` of each n.

    The sizes take turns, so that a slow minute of the machine hits all alike. Each pass returns the logits of all its
    tokens, as verification needs them. Raises ValueError where the context does not fit the model.
    """
    timed = _timed_pass(model, context, max(n_tokens), clock)
    seconds: dict[int, list[float]] = {n: [] for n in n_tokens}
    for n in n_tokens:
        timed(n)  # the first round warms up
    for _ in range(repeats):
        for n in n_tokens:
            seconds[n].append(timed(n))
    return seconds


def relative_cost(seconds: dict[int, list[float]]) -> dict[int, float]:
    """T(n) / T(1) from `pass_seconds`, medians over the repeats; v(gamma) = T(gamma + 1) / T(1).

    Raises ValueError where n = 1 was not measured.
    """
    if 1 not in seconds:
        raise ValueError("a pass over one token was not measured: include 1 in n_tokens")
    one = statistics.median(seconds[1])
    return {n: statistics.median(times) / one for n, times in seconds.items()}


def fastest_threads(
    model: CausalLM, candidates: Sequence[int] = (), repeats: int = 7, clock: Clock = time.perf_counter
) -> int:
    """The number of threads with which a pass over one token takes least here and now; PyTorch's setting is left alone.

    candidates: 1 and PyTorch's own number where none are given. They take turns. On an idle machine all threads win; on
    one where something else wants a core, threads that wait for each other can take ten times as long as one alone.
    """
    counts = sorted(set(candidates) or {1, torch.get_num_threads()})
    if len(counts) == 1:
        return counts[0]
    timed = _timed_pass(model, 16, 1, clock)
    seconds: dict[int, list[float]] = {n: [] for n in counts}
    for _ in range(repeats + 1):  # the first round warms up
        for n in counts:
            with _threads(n):
                seconds[n].append(timed(1))
    return min(counts, key=lambda n: statistics.median(seconds[n][1:]))


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
            _synchronise(self.device)
            start = self.clock()
            matrix(tokens)
            _synchronise(self.device)
            times.append(self.clock() - start)
        return statistics.median(times)

    def bandwidth(self, matrices: int = 32) -> float:
        """Bytes of weights a second for a single token."""
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
        _synchronise(self.device)
        start = self.clock()
        F.linear(self.factors[0], self.factors[1])
        _synchronise(self.device)
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
        with _threads(count):
            products[name, count] = SquareProduct(torch_dtypes[name], device, clock)
    while clock() - begin < seconds or min(map(len, found.values())) < 3:
        for name, count in arms:
            with _threads(count):
                found[name, count].append((streams[name].bandwidth(), products[name, count].rate()))
    rates = (Rates(name, count, *zip(*pairs, strict=True)) for (name, count), pairs in found.items())
    return Machine(_device_name(device), memory_bytes(device), tuple(rates))


def memory_bytes(device: torch.device | str = "cpu") -> int:
    """Memory of the device in bytes. Raises ValueError where the system does not tell."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        raise ValueError("this system does not tell how much memory it has") from None


def shape_of(model: Llama) -> ModelShape:
    """The arithmetic's view of a reference model's sizes."""
    c = model.config
    return ModelShape.from_config(
        {
            "model_type": "llama",
            "vocab_size": c.vocab_size,
            "hidden_size": c.hidden_size,
            "intermediate_size": c.intermediate_size,
            "num_hidden_layers": c.n_layers,
            "num_attention_heads": c.n_heads,
            "num_key_value_heads": c.n_kv_heads,
            "head_dim": c.head_dim,
            "tie_word_embeddings": c.tied_head,
        },
        name="model",
    )


def narrowed(model: Llama) -> Llama:
    """A model of the same graph, layer for layer and operation for operation, with hardly any weights, packed as it is.

    What a pass of it takes is the framework's own time: Python, dispatch, small kernels, threads that wait.
    """
    small = dataclasses.replace(model.config, hidden_size=64, intermediate_size=64, vocab_size=64, head_dim=8)
    narrow = Llama(small, model.dtype).to(model.device).eval()
    return pack(narrow) if isinstance(model.layers[0].qkv, PackedLinear) else narrow


@dataclass(frozen=True)
class DecodeTimes:
    """A decode step as predicted and as measured, in seconds, in each round of one interleaved run.

    work: what the step computes and moves, by arithmetic alone.
    bandwidths: bytes/s at which weights as wide as the model's stream.
    overheads: the framework's own time, from a narrow model.
    measured: the step itself. It is used nowhere in the prediction.
    """

    work: Work
    bandwidths: tuple[float, ...]
    overheads: tuple[float, ...]
    measured: tuple[float, ...]

    @property
    def predicted(self) -> tuple[float, ...]:
        """bytes / bandwidth + overhead, for each round."""
        return tuple(self.work.bytes / b + o for b, o in zip(self.bandwidths, self.overheads, strict=True))

    @property
    def ratios(self) -> tuple[float, ...]:
        """Predicted over measured, round by round: above 1 where the step was faster than predicted."""
        return tuple(p / m for p, m in zip(self.predicted, self.measured, strict=True))

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)

    def __str__(self) -> str:
        return f"{self.ratio:.2f} of what was measured ({min(self.ratios):.2f} to {max(self.ratios):.2f})"

    def within(self, tolerance: float = 0.3) -> bool:
        """Whether the median prediction is off by at most `tolerance` of the measured time."""
        return abs(self.ratio - 1) <= tolerance


def decode_times(model: Llama, context: int = 64, rounds: int = 12, clock: Clock = time.perf_counter) -> DecodeTimes:
    """Predict a decode step from bytes, bandwidth and overhead, and measure it, in turns; about two seconds here.

    Bandwidth: `WeightStream` with matrices as wide as the model and as large as one of its layers, and as many bytes
    as it has, so that a model which fits into a cache is not charged for memory. Overhead: a `narrowed` model, with one
    matrix of the stream read before each of its layers, in time that is not counted: in the real model, too, each
    layer's weights push the framework's code and data out of the caches.
    Raises ValueError for a model whose graph cannot be rebuilt narrower, or in a format that is not measured.
    """
    if not isinstance(model, Llama) or model.dtype not in SHORT_NAMES:
        raise ValueError(f"need a reference Llama in {' or '.join(SHORT_NAMES.values())}, got {type(model).__name__}")
    if any(isinstance(m, FourBitLinear) for m in model.modules()):
        raise ValueError("the model's weights are in 4 bits, which are not predicted here: load it with weights='full'")
    name = SHORT_NAMES[model.dtype]
    work = decode(shape_of(model), context, weights=name, kv=name)
    n_layers, width = model.config.n_layers, model.config.hidden_size
    stream = WeightStream(model.dtype, width, work.bytes, model.device, clock, work.bytes // max(2, n_layers))
    narrow = narrowed(model)
    reads: list[float] = []

    def read_a_matrix(*_: Any) -> None:
        start = clock()
        stream.seconds(matrices=1)
        reads.append(clock() - start)

    for layer in narrow.layers:
        layer.register_forward_pre_hook(read_a_matrix)
    narrow_step, step = _timed_pass(narrow, context, 1, clock), _timed_pass(model, context, 1, clock)
    found = []
    for _ in range(rounds + 1):  # the first round warms up
        bandwidth = stream.bandwidth(n_layers)
        reads.clear()
        overhead = narrow_step(1) - sum(reads)
        found.append((bandwidth, overhead, step(1)))
    return DecodeTimes(work, *zip(*found[1:], strict=True))


def _timed_pass(model: CausalLM, context: int, largest: int, clock: Clock) -> Callable[[int], float]:
    """A function that passes its number of tokens, `largest` at most, behind `context` cached ones; its seconds."""
    if model.max_context is not None and context + largest > model.max_context:
        raise ValueError(f"{context} + {largest} tokens exceed the model's context of {model.max_context}")
    cache = model.new_cache(context + largest)
    ids = torch.arange(context + largest, device=model.device) % model.vocab_size

    @torch.inference_mode()
    def timed(n_tokens: int) -> float:
        if cache.length < context:
            model.forward(ids[:context], cache, slice(0))
        _synchronise(model.device)
        start = clock()
        model.forward(ids[context : context + n_tokens], cache)
        _synchronise(model.device)
        seconds = clock() - start
        cache.truncate(context)
        return seconds

    return timed


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _device_name(device: torch.device | str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()} cores"


def _synchronise(device: Any) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
