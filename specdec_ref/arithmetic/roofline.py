"""The roofline: how long a pass over a model takes at least, and whether memory or arithmetic sets that.

A pass moves its weights once for all its tokens, reads every sequence's cache once, and writes the new keys
and values. Activations stay on the chip in the ideal pass and are not counted, nor is any launch or
synchronisation: every time here is a lower bound. Source: Williams, Waterman, Patterson 2009; Pope et al.
2022 (arXiv 2211.05102).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specdec_ref.arithmetic.accelerators import Accelerator
from specdec_ref.arithmetic.attention import causal_pairs
from specdec_ref.arithmetic.formats import NumberFormat, WeightFormats
from specdec_ref.arithmetic.kvcache import layer_kv_bytes_per_token
from specdec_ref.arithmetic.shapes import ModelShape
from specdec_ref.arithmetic.speedup import Curve, time_ratio

Weights = str | WeightFormats
Kv = str | NumberFormat


@dataclass(frozen=True)
class Work:
    """What one pass computes (`flops`) and moves (bytes), and how many tokens it has in flight."""

    flops: int
    weight_bytes: int
    kv_read_bytes: int
    kv_write_bytes: int
    tokens: int

    @property
    def bytes(self) -> int:
        """All bytes moved."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP/byte."""
        return self.flops / self.bytes


def forward_work(
    shape: ModelShape,
    n_tokens: int = 1,
    context: int = 0,
    batch: int = 1,
    *,
    logits: int | None = None,
    absorbed: bool = True,
    weights: Weights = "bf16",
    kv: Kv = "bf16",
) -> Work:
    """The work of a pass over `n_tokens` new tokens of each of `batch` sequences with `context` cached ones.

    `logits`: positions of each sequence whose logits are computed (None: all; with 0 the head is not read).
    `absorbed`: how MLA attends, see `LatentAttention.flops_per_pair`. For one rank of a tensor-parallel run pass
    `shape.shard(tp)`.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    sizes = [(layer.attention.window, layer_kv_bytes_per_token(layer, kv)) for layer in shape.layers]

    def kept(tokens: int, window: int | None, own: int) -> int:
        return tokens if window is None else min(tokens, window - own)

    return Work(
        flops=batch * shape.flops(n_tokens, context, logits, absorbed),
        weight_bytes=shape.weight_bytes_read(batch * n_tokens, weights, head=logits != 0),
        # A window counts the token itself, so of the past it reaches back over one less.
        kv_read_bytes=batch * sum(kept(context, w, 1) * size for w, size in sizes),
        kv_write_bytes=batch * sum(kept(n_tokens, w, 0) * size for w, size in sizes),
        tokens=batch * n_tokens,
    )


def forward_kernels(
    shape: ModelShape,
    n_tokens: int = 1,
    context: int = 0,
    batch: int = 1,
    *,
    logits: int | None = None,
    absorbed: bool = True,
    weights: Weights = "bf16",
    kv: Kv = "bf16",
) -> tuple[Work, Work]:
    """`forward_work` divided into its two kinds of kernels: (linear layers, attention over the cache).

    They run one after the other, so the wait of one cannot hide the arithmetic of the other: a pass takes at least the
    sum of both times, and that is more than `step_time` of the whole says where one is bound by memory and the other by
    arithmetic. In a batch they often are: weights are shared by all sequences, caches are not.
    """
    whole = forward_work(shape, n_tokens, context, batch, logits=logits, absorbed=absorbed, weights=weights, kv=kv)
    pairs = [(causal_pairs(n_tokens, context, layer.attention.window), layer.attention) for layer in shape.layers]
    attention = batch * sum(count * kind.flops_per_pair(absorbed) for count, kind in pairs)
    return (
        replace(whole, flops=whole.flops - attention, kv_read_bytes=0, kv_write_bytes=0),
        replace(whole, flops=attention, weight_bytes=0),
    )


def prefill(shape: ModelShape, prompt: int, batch: int = 1, *, weights: Weights = "bf16", kv: Kv = "bf16") -> Work:
    """A pass over whole prompts of `prompt` tokens; only the last position's logits are wanted."""
    return forward_work(shape, prompt, 0, batch, logits=1, absorbed=False, weights=weights, kv=kv)


def decode(shape: ModelShape, context: int = 0, batch: int = 1, *, weights: Weights = "bf16", kv: Kv = "bf16") -> Work:
    """A pass over one new token of each sequence."""
    return forward_work(shape, 1, context, batch, weights=weights, kv=kv)


def verification(
    shape: ModelShape,
    gamma: int,
    context: int = 0,
    batch: int = 1,
    *,
    weights: Weights = "bf16",
    kv: Kv = "bf16",
) -> Work:
    """A target pass that checks `gamma` drafted tokens of each sequence: gamma + 1 tokens with logits."""
    if gamma < 0:
        raise ValueError(f"gamma must not be negative, got {gamma}")
    return forward_work(shape, gamma + 1, context, batch, weights=weights, kv=kv)


def linear_intensity(n_tokens: int, d_in: int, d_out: int | None = None, nbytes: float = 2) -> float:
    """FLOP/byte of one d_in x d_out product over `n_tokens`, its inputs and outputs moved too.

    2 N d_in d_out / (P (d_in d_out + N d_in + N d_out)), with P = `nbytes` per value.
    """
    d_out = d_in if d_out is None else d_out
    return 2 * n_tokens * d_in * d_out / (nbytes * (d_in * d_out + n_tokens * (d_in + d_out)))


@dataclass(frozen=True)
class StepTime:
    """Seconds that a pass spends at least on memory and on arithmetic."""

    memory_s: float
    compute_s: float

    @property
    def overlapped_s(self) -> float:
        """The roofline's time: memory and arithmetic fully overlapped, so the larger one counts."""
        return max(self.memory_s, self.compute_s)

    @property
    def serial_s(self) -> float:
        """The sum: no overlap at all. A real pass with ideal kernels lies between this and `overlapped_s`.

        `forward_kernels` says how much of a pass can overlap.
        """
        return self.memory_s + self.compute_s

    @property
    def bound(self) -> str:
        """`memory`, `compute`, or `ridge` where both are equal."""
        if self.memory_s == self.compute_s:
            return "ridge"
        return "memory" if self.memory_s > self.compute_s else "compute"


def step_time(work: Work, chip: Accelerator, dtype: str | None = None) -> StepTime:
    """The time of `work` on `chip`: bytes / bandwidth and FLOP / rate.

    `dtype` is the format that the multipliers work in; None takes the chip's 16-bit one, as weight-only
    quantisation does. For a measured machine, pass an `Accelerator` made from its measurements.
    """
    return StepTime(work.bytes / chip.bandwidth, work.flops / chip.rate(dtype or chip.half_precision))


def attainable(intensity: float, chip: Accelerator, dtype: str | None = None) -> float:
    """FLOP/s under the roof at `intensity` FLOP/byte: min(rate, intensity x bandwidth)."""
    return min(chip.rate(dtype or chip.half_precision), intensity * chip.bandwidth)


def tokens_per_second(
    shape: ModelShape,
    chip: Accelerator,
    context: int = 0,
    batch: int = 1,
    *,
    weights: Weights = "bf16",
    kv: Kv = "bf16",
) -> float:
    """The cap on plain decoding: new tokens per second of all sequences together, on one chip."""
    return batch / step_time(decode(shape, context, batch, weights=weights, kv=kv), chip).overlapped_s


def compute_bound_batch(
    shape: ModelShape,
    chip: Accelerator,
    n_tokens: int = 1,
    context: int = 0,
    *,
    dtype: str | None = None,
    max_batch: int = 1 << 20,
    weights: Weights = "bf16",
    kv: Kv = "bf16",
) -> int | None:
    """The smallest batch at which a pass over `n_tokens` tokens per sequence is no longer bound by memory.

    None if no batch up to `max_batch` is: every sequence brings its own cache to read, and with a long
    context its bytes alone keep the pass left of the ridge. Near B n_tokens = ridge x bytes per weight / 2
    for short ones.
    """

    def computes(batch: int) -> bool:
        time = step_time(forward_work(shape, n_tokens, context, batch, weights=weights, kv=kv), chip, dtype)
        return time.compute_s >= time.memory_s

    # Intensity only rises with the batch (weights are shared, all else is in proportion), so bisect.
    low, high = 0, 1
    while not computes(high):
        if high >= max_batch:
            return None
        low, high = high, min(2 * high, max_batch)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if computes(middle) else (middle, high)
    return high


def verify_curve(
    shape: ModelShape,
    chip: Accelerator,
    context: int = 0,
    batch: int = 1,
    *,
    dtype: str | None = None,
    weights: Weights = "bf16",
    kv: Kv = "bf16",
) -> Curve:
    """v(gamma) = T(gamma + 1) / T(1) on the roofline: what a verify pass costs in plain decoding steps."""

    def seconds(n_tokens: int) -> float:
        work = forward_work(shape, n_tokens, context, batch, weights=weights, kv=kv)
        return step_time(work, chip, dtype).overlapped_s

    return time_ratio(seconds)


def draft_cost(
    draft: ModelShape,
    target: ModelShape,
    chip: Accelerator,
    context: int = 0,
    batch: int = 1,
    *,
    dtype: str | None = None,
    weights: Weights = "bf16",
    kv: Kv = "bf16",
) -> float:
    """c = T_draft / T_target for one decoding step each, on the roofline of the same chip."""

    def seconds(shape: ModelShape) -> float:
        return step_time(decode(shape, context, batch, weights=weights, kv=kv), chip, dtype).overlapped_s

    return seconds(draft) / seconds(target)


def all_reduces_per_token(
    target: ModelShape, tokens_per_round: float = 1, draft: ModelShape | None = None, gamma: int = 0
) -> float:
    """All-reduces a tensor-parallel run makes for each emitted token: two per layer and pass (arXiv 1909.08053).

    A round is one target pass and, where the draft is split over the ranks too, gamma draft passes.
    """
    if tokens_per_round < 1:
        raise ValueError(f"a round emits at least one token, got {tokens_per_round}")
    passes = 2 * len(target.layers) + (2 * len(draft.layers) * gamma if draft else 0)
    return passes / tokens_per_round
