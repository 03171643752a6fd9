"""The size of the key-value cache, and the work that it saves.

For grouped-query attention one token takes 2 L n_kv d_head P bytes (L layers, n_kv key/value heads of d_head,
P bytes per value, and 2 for keys and values). A layer with a sliding window stops growing at its window.
"""

from __future__ import annotations

from dataclasses import dataclass

from specdec_ref.arithmetic.accelerators import Accelerator
from specdec_ref.arithmetic.attention import causal_pairs
from specdec_ref.arithmetic.formats import NumberFormat, WeightFormats, number_format
from specdec_ref.arithmetic.shapes import LayerShape, ModelShape


def layer_kv_bytes_per_token(layer: LayerShape, kv: str | NumberFormat = "bf16", latent: bool = True) -> int:
    """Bytes that one token leaves in the cache of one layer, scales included."""
    fmt = number_format(kv)
    return sum(fmt.nbytes(length, count) for count, length in layer.attention.cached(latent))


def kv_bytes_per_token(shape: ModelShape, kv: str | NumberFormat = "bf16", latent: bool = True) -> int:
    """Bytes that one token adds to the cache while no window is full: 2 L n_kv d_head P for GQA.

    `kv` is the format of keys and values. `latent` False: MLA in an implementation
    that caches the expanded keys and values. For tensor parallelism pass one rank's part, `shape.shard(tp)`.
    """
    return sum(layer_kv_bytes_per_token(layer, kv, latent) for layer in shape.layers)


def tokens_held(context: int, window: int | None = None, block_size: int = 1) -> int:
    """Token slots that a layer keeps for a sequence of `context` tokens: every block that the last `window` touch.

    A window seldom starts where a block does, so it may touch one block more than its size alone would fill.
    A window counts the token being computed, so transformers' DynamicCache holds one token fewer than this
    between two steps, once the window is full; its StaticCache holds exactly this.
    """
    if context < 0 or block_size < 1:
        raise ValueError(f"need context >= 0 and block_size >= 1, got {context} and {block_size}")
    if window is not None and window < 1:
        raise ValueError(f"a window holds at least the token itself, got {window}: give None for no window")
    first = 0 if window is None else max(0, context - window)
    return (-(-context // block_size) - first // block_size) * block_size


def kv_bytes(
    shape: ModelShape,
    context: int,
    batch: int = 1,
    kv: str | NumberFormat = "bf16",
    *,
    block_size: int = 1,
    latent: bool = True,
    keep_all: bool = False,
) -> int:
    """Bytes of the cache of `batch` sequences of `context` tokens each, scales included.

    `block_size` > 1 counts whole blocks, as a paged cache allocates them. `keep_all` True gives a cache that keeps
    every token in layers with a sliding window, too, as this package's Hugging Face adapter does.
    """
    if batch < 0:
        raise ValueError(f"batch must not be negative, got {batch}")
    return batch * sum(
        tokens_held(context, None if keep_all else layer.attention.window, block_size)
        * layer_kv_bytes_per_token(layer, kv, latent)
        for layer in shape.layers
    )


@dataclass(frozen=True)
class Fit:
    """How a chip's memory divides: all in bytes, on one rank."""

    usable_bytes: int
    weight_bytes: int
    kv_bytes_per_sequence: int

    @property
    def free_bytes(self) -> int:
        """What the weights leave for caches; negative if they do not fit."""
        return self.usable_bytes - self.weight_bytes

    @property
    def weights_fit(self) -> bool:
        """Whether the weights alone fit."""
        return self.free_bytes >= 0

    @property
    def sequences(self) -> int:
        """Whole sequences whose caches fit beside the weights."""
        return max(0, self.free_bytes // self.kv_bytes_per_sequence)


def fit(
    shape: ModelShape,
    chip: Accelerator,
    context: int,
    *,
    weights: str | WeightFormats = "bf16",
    kv: str | NumberFormat = "bf16",
    tp: int = 1,
    usable: float = 0.9,
    block_size: int = 16,
    keep_all: bool = False,
) -> Fit:
    """How many sequences of `context` tokens fit beside the weights, on each of `tp` chips.

    `usable` is the share of the memory that weights and caches may take; the rest is for activations and the
    runtime (vLLM's `gpu_memory_utilization`). `block_size`, `keep_all`: as for `kv_bytes`.
    """
    if not 0 < usable <= 1:
        raise ValueError(f"usable is a share of the memory in (0, 1], got {usable}")
    if context < 1:
        raise ValueError(f"a sequence needs at least one token, got {context}")
    rank = shape.shard(tp)
    per_sequence = kv_bytes(rank, context, kv=kv, block_size=block_size, keep_all=keep_all)
    return Fit(int(usable * chip.capacity), rank.weight_bytes(weights), per_sequence)


def token_passes(prompt: int, new_tokens: int, cached: bool) -> int:
    """Tokens pushed through the linear layers to generate `new_tokens` after `prompt`.

    With a cache each token passes once. Without one every step runs the whole prefix again.
    """
    if prompt < 1 or new_tokens < 0:
        raise ValueError(f"need prompt >= 1 and new_tokens >= 0, got {prompt} and {new_tokens}")
    if new_tokens == 0:
        return 0
    if cached:
        return prompt + new_tokens - 1
    return sum(range(prompt, prompt + new_tokens))


def attention_pairs(prompt: int, new_tokens: int, cached: bool) -> int:
    """Query-key pairs of one full-attention head over the same generation: O(L^2) cached, O(L^3) without."""
    if cached:
        return causal_pairs(token_passes(prompt, new_tokens, cached=True))
    return sum(causal_pairs(length) for length in range(prompt, prompt + new_tokens))
