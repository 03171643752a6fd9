"""The key-value cache: its size by kind of attention, the time it saves, and the users that fit."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets
import numpy as np
import torch
from matplotlib.figure import Figure

from specdec_course.pictures.plots import BLACK, BLUE, GREEN, ORANGE, RED, SKY, new_figure, show, table_html
from specdec_course.pictures.widgets import choice, explorer, steps_slider
from specdec_course.progress_line import progress
from specdec_course.simulate import draw_lengths, reservation
from specdec_ref.arithmetic import (
    Attention,
    LatentAttention,
    ModelShape,
    accelerator,
    accelerators,
    fit,
    kv_bytes,
    kv_bytes_per_token,
    model_shape,
    shape_from_config,
    size_text,
)
from specdec_ref.interfaces import CausalLM
from specdec_ref.measure import Clock

MODELS = (
    "smollm2-135m",
    "llama-2-7b",
    "llama-3-8b",
    "llama-3-70b",
    "mistral-7b-v0.1",
    "qwen3-4b",
    "gemma-3-27b",
    "gpt-oss-120b",
    "deepseek-v3",
)
WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1}
KV_FORMATS = ("bf16", "fp8", "int8", "int4-g64")


@torch.inference_mode()
def step_seconds(
    model: CausalLM, lengths: Sequence[int], repeats: int = 4, clock: Clock = time.perf_counter
) -> dict[int, tuple[float, float]]:
    """Seconds for one more token after each of `lengths`, (with a cache, without one): medians, measured in turns.

    With a cache the pass is fed one token, without one all of them again.
    """
    ids = torch.arange(max(lengths) + 1, device=model.device) % model.vocab_size
    caches = {n: model.new_cache(n + 1) for n in lengths}
    for n, cache in caches.items():
        model.forward(ids[:n], cache, slice(0))
    found: dict[int, list[tuple[float, float]]] = {n: [] for n in lengths}
    for _ in progress(range(repeats + 1), "rounds"):  # the first warms up
        for n, cache in caches.items():
            start = clock()
            model.forward(ids[n : n + 1], cache)
            middle = clock()
            model.forward(ids[: n + 1], model.new_cache(n + 1), slice(-1, None))
            found[n].append((middle - start, clock() - middle))
            cache.truncate(n)
    return {
        n: (statistics.median(a for a, _ in pairs[1:]), statistics.median(b for _, b in pairs[1:]))
        for n, pairs in found.items()
    }


def step_time_figure(seconds: Mapping[int, tuple[float, float]]) -> Figure:
    """Time for one more token against the length of the text, with and without a cache."""
    figure, (ax,) = new_figure(7.5, 3.8)
    n = sorted(seconds)
    ax.plot(
        n, [1e3 * seconds[i][1] for i in n], color=RED, marker="s", ls="--", label="without a cache: all tokens again"
    )
    ax.plot(n, [1e3 * seconds[i][0] for i in n], color=BLUE, marker="o", ls="-", label="with a cache: one token")
    ax.set(xlabel="tokens so far", ylabel="ms for one more token", ylim=(0, None))
    ax.set_xticks(n)
    ax.legend()
    return figure


def step_time_words(seconds: Mapping[int, tuple[float, float]]) -> str:
    """What the cache saved at the shortest and at the longest text, and from where on it halves the time."""
    ratios = {n: without / with_cache for n, (with_cache, without) in sorted(seconds.items())}
    short, long = min(ratios), max(ratios)
    words = f"After {short:,} tokens, the next one takes {ratios[short]:.1f} times as long without the cache; "
    words += f"after {long:,}, {ratios[long]:.1f} times."
    halved = next((n for n, ratio in ratios.items() if ratio >= 2), None)
    if halved is None:
        return f"{words}\nThe cache does not halve the time of any of these: try longer texts."
    return f"{words}\nFrom {halved:,} tokens on, the cache halves the time or does better."


def attention_variants(shape: ModelShape) -> dict[str, ModelShape]:
    """The same model as MHA (a key/value head for every query head), as it is, and as MQA (a single one).

    Raises ValueError for a model with latent attention, which caches no heads.
    """
    if any(isinstance(layer.attention, LatentAttention) for layer in shape.layers):
        raise ValueError(f"{shape.name} caches a latent, not heads: choose a model with MHA, GQA or MQA")

    def with_heads(count: int | None) -> ModelShape:
        layers = []
        for layer in shape.layers:
            attention = layer.attention
            assert isinstance(attention, Attention)
            heads = attention.n_heads if count is None else count
            layers.append(dataclasses.replace(layer, attention=dataclasses.replace(attention, n_kv_heads=heads)))
        return dataclasses.replace(shape, layers=tuple(layers))

    own = shape.layers[0].attention
    assert isinstance(own, Attention)
    variants = {f"MHA, {own.n_heads} heads": with_heads(None)}
    if own.kind == "GQA":
        variants[f"GQA, {own.n_kv_heads} heads (as it is)"] = shape
    return variants | {"MQA, 1 head": with_heads(1)}


def attention_figure(sizes: Mapping[str, int]) -> Figure:
    """Bytes in the cache per token, for each kind of attention: lengths are sizes."""
    figure, (ax,) = new_figure(9, 1.0 + 0.45 * len(sizes))
    by_kind = {"MHA": RED, "GQA": BLUE, "MQA": ORANGE, "MLA": GREEN}
    colours = [next((colour for kind, colour in by_kind.items() if kind in name), SKY) for name in sizes]
    ax.barh(range(len(sizes)), [size / 1e6 for size in sizes.values()], color=colours, height=0.6)
    for y, size in enumerate(sizes.values()):
        ax.annotate(f" {size:,} bytes", (size / 1e6, y), va="center", fontsize=10)
    ax.set_yticks(range(len(sizes)), list(sizes))
    ax.invert_yaxis()
    ax.set(xlabel="MB per token, 16-bit", xlim=(0, 1.3 * max(sizes.values()) / 1e6))
    ax.grid(axis="y", visible=False)
    return figure


def growth_figure(models: Sequence[str], chip: str = "h100-sxm", batch: int = 1, kv: str = "bf16") -> Figure:
    """Size of the cache against the context, for several models, each line with its name, beside a chip's memory."""
    contexts = [2**i for i in range(9, 18)]
    figure, (ax,) = new_figure(9.5, 4.6)
    heights: list[float] = []
    for name in sorted(models, key=lambda name: kv_bytes(model_shape(name), contexts[-1], batch, kv)):
        sizes = [kv_bytes(model_shape(name), n, batch, kv) / 1e9 for n in contexts]
        (line,) = ax.plot(contexts, sizes, marker="", lw=2, label=name)
        # Names of lines that end close together are moved apart: 0.16 decades are about a line of text.
        heights.append(max([np.log10(sizes[-1]), *(h + 0.16 for h in heights[-1:])]))
        place = (contexts[-1] * 1.12, 10 ** heights[-1])
        ax.annotate(f"{name}: {sizes[-1]:,.1f} GB", place, va="center", fontsize=10, color=line.get_color(), bbox=WHITE)
    capacity = accelerator(chip).capacity / 1e9
    ax.plot(contexts, [capacity] * len(contexts), color=BLACK, lw=1, ls=":", marker="")
    ax.annotate(f"memory of one {chip}: {capacity:g} GB", (contexts[0], capacity * 1.15), fontsize=9)
    ax.set_xscale("log", base=2)
    ax.set(yscale="log", xlabel="tokens per sequence", ylabel="GB of cache", xlim=(contexts[0], contexts[-1] * 8))
    ax.set_xticks(contexts[::2], [f"{n:,}" for n in contexts[::2]])
    return figure


def cache_bar_figure(weights: float, cache: float, usable: float) -> Figure:
    """Weights and caches beside the usable memory of the chips, all in bytes."""
    figure, (ax,) = new_figure(8, 1.7)
    ax.barh([0], [weights / 1e9], color=SKY, height=0.5, label="weights")
    ax.barh([0], [cache / 1e9], left=[weights / 1e9], color=ORANGE, height=0.5, hatch="//", label="caches")
    ax.axvline(usable / 1e9, color=BLACK, ls="--", label="usable memory")
    ax.set_yticks([])
    ax.set_xlabel("GB, all chips together")
    ax.set_xlim(0, 1.1 * max(usable, weights + cache) / 1e9)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=10)
    return figure


def cache_html(model: str, chip: str, chips: int, users: int, context: int, kv: str = "bf16") -> str:
    """Memory of `users` sequences of `context` tokens and 16-bit weights on `chips` chips, and how many users fit."""
    shape = model_shape(model)
    try:
        rank = shape.shard(chips)
    except ValueError as problem:
        return f"<p>{problem}.</p>"
    room = fit(shape, accelerator(chip), context, tp=chips, kv=kv, block_size=1)
    cache = chips * kv_bytes(rank, context, users, kv)
    weights = chips * room.weight_bytes
    fits = weights + cache <= chips * room.usable_bytes
    rows = [
        ("cache per token", f"{kv_bytes_per_token(shape, kv):,} bytes"),
        (f"cache of a user, {context:,} tokens", size_text(kv_bytes(shape, context, 1, kv))),
        (f"caches of {users:,} users", size_text(cache)),
        ("weights, with norms on every chip", size_text(weights)),
        ("users that fit", f"{room.sequences:,}" if room.weights_fit else "none: the weights do not fit"),
    ]
    if chips * kv_bytes_per_token(rank, kv) > kv_bytes_per_token(shape, kv):
        copies = chips * kv_bytes(rank, context, users, kv) // kv_bytes(shape, context, users, kv)
        rows.insert(3, ("copies of each key and value in that", f"{copies}: more chips than key/value heads"))
    verdict = "all fit" if fits else "they do not fit"
    alt = (
        f"{model} on {chips} {chip}: weights {weights / 1e9:,.1f} GB and caches {cache / 1e9:,.1f} GB of "
        f"{chips * room.usable_bytes / 1e9:,.1f} GB usable: {verdict}."
    )
    picture = show(cache_bar_figure(weights, cache, chips * room.usable_bytes), alt).data
    return f"{picture}{table_html((f'{model}, cache in {kv}', verdict), rows)}"


def cache_explorer(model: str = "llama-3-70b", chip: str = "h100-sxm", users: int = 256) -> ipywidgets.VBox:
    """Choose model, chips, users, context and cache format, and see what fits."""
    return explorer(
        cache_html,
        model=choice("model", MODELS, model),
        chip=choice("chip", list(accelerators()), chip),
        chips=choice("chips", (1, 2, 4, 8, 16), 8),
        users=steps_slider("users", users, [2**i for i in range(11)]),
        context=steps_slider("context (tokens per user)", 8192, [2**i for i in range(9, 18)]),
        kv=choice("cache format", KV_FORMATS, "bf16"),
    )


def users_rows(shape: ModelShape, chip: str, chips: int, contexts: Sequence[int]) -> list[tuple[str, ...]]:
    """How many users fit, as text: a row per context, a column per cache format."""
    return [
        (f"{n:,}", *(f"{fit(shape, accelerator(chip), n, tp=chips, kv=kv).sequences:,}" for kv in KV_FORMATS))
        for n in contexts
    ]


def reserved_shares(max_len: int = 2048, n: int = 2000, seed: int = 0) -> dict[str, float]:
    """Share of reserved slots that ever hold a token, for each way of reserving contiguously (Kwon et al. 2023).

    Lengths come from `draw_lengths`. "oracle" knows the length of each answer in advance.
    """
    prompts, outputs = draw_lengths(n, np.random.default_rng(seed), max_len=max_len)
    used = int(prompts.sum() + outputs.sum())
    shares = {}
    for policy in ("max", "pow2", "oracle"):
        slots = sum(reservation(int(p), int(o), policy, max_len) for p, o in zip(prompts, outputs, strict=True))
        shares[policy] = used / slots
    return shares


def allocated_bytes(kind: str, n_tokens: int = 10) -> tuple[int, int]:
    """(estimated, allocated) bytes of a tiny model's cache: the arithmetic estimates, transformers allocates.

    kind: MHA, GQA or MQA; anything else raises KeyError.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    heads = {"MHA": 8, "GQA": 2, "MQA": 1}
    sizes: dict[str, Any] = dict(vocab_size=96, hidden_size=64, intermediate_size=64, num_hidden_layers=3)
    sizes |= dict(num_attention_heads=8, num_key_value_heads=heads[kind])
    config = AutoConfig.for_model("llama", **sizes)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.inference_mode():
        cache = model(torch.zeros(1, n_tokens, dtype=torch.long), use_cache=True).past_key_values
    allocated = sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
    return kv_bytes(shape_from_config(config), n_tokens, 1, "fp32"), allocated
