"""The time of a decode step: predicted from bytes, bandwidth and overhead, and measured beside the prediction."""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass
from typing import Any

from specdec_ref.arithmetic import ModelShape, Work, decode, shape_from_config
from specdec_ref.kernels.linear import PackedLinear
from specdec_ref.kernels.stored import StoredLinear
from specdec_ref.measure.machine import SHORT_NAMES, WeightStream
from specdec_ref.measure.passes import Clock, Progress, fitting_context, silently, timed_pass
from specdec_ref.models.layout import pack
from specdec_ref.models.llama import Llama


def shape_of(model: Llama) -> ModelShape:
    """The arithmetic's view of a reference model's sizes."""
    c = model.config
    return shape_from_config(
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


def decode_times(
    model: Llama,
    context: int = 64,
    rounds: int = 12,
    clock: Clock = time.perf_counter,
    progress: Progress = silently,
) -> DecodeTimes:
    """Predict a decode step from bytes, bandwidth and overhead, and measure it, in turns; about two seconds here.

    Bandwidth: `WeightStream` with matrices as wide as the model and as large as one of its layers, and as many bytes
    as it has, so that a model which fits into a cache is not charged for memory. Overhead: a `narrowed` model, with one
    matrix of the stream read before each of its layers, in time that is not counted: in the real model, too, each
    layer's weights push the framework's code and data out of the caches.
    Raises ValueError for a model whose graph cannot be rebuilt narrower, or in a format that is not measured.
    """
    if not isinstance(model, Llama) or model.dtype not in SHORT_NAMES:
        raise ValueError(f"need a reference Llama in {' or '.join(SHORT_NAMES.values())}, got {type(model).__name__}")
    if any(isinstance(m, StoredLinear) for m in model.modules()):
        raise ValueError("the model's weights are in 4 bits, which are not predicted here: load it with weights='full'")
    name, context = SHORT_NAMES[model.dtype], fitting_context(model, context, 1)
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
    narrow_step, step = timed_pass(narrow, context, 1, clock), timed_pass(model, context, 1, clock)
    found = []
    for _ in progress(range(rounds + 1), "rounds"):  # the first warms up
        bandwidth = stream.bandwidth(n_layers)
        reads.clear()
        overhead = narrow_step(1) - sum(reads)
        found.append((bandwidth, overhead, step(1)))
    return DecodeTimes(work, *zip(*found[1:], strict=True))
