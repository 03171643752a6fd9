"""What a key-value cache keeps, drawn: who attends to whom, tokens by layers, what one token changes, shared heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from specdec_course.pictures.plots import BLACK, BLUE, GREY, LIGHT_GREY, ORANGE, SKY, new_figure
from specdec_course.progress_line import progress
from specdec_ref.arithmetic import ModelShape, decode
from specdec_ref.cache import DenseCache
from specdec_ref.models.llama import Llama


def cache_figure(n_tokens: int = 8, n_layers: int = 6) -> Figure:
    """Left: which query meets which key, a triangle. Right: the cache, tokens by layers, and a new column."""
    figure, (left, right) = new_figure(10, 3.9, 2)
    last = n_tokens - 1
    for query in range(n_tokens):
        for key in range(n_tokens):
            colour = "white" if key > query else ORANGE if query == last else SKY
            left.add_patch(Rectangle((key, query), 1, 1, facecolor=colour, edgecolor=LIGHT_GREY))
    left.text(n_tokens * 0.72, n_tokens * 0.25, "never met:\nthe future", ha="center", fontsize=10, color="#606060")
    left.annotate(
        "the new query meets\nall keys so far",
        (n_tokens + 0.1, last + 0.5),
        (n_tokens + 0.7, last - 0.9),
        fontsize=10,
        arrowprops={"arrowstyle": "->"},
    )
    left.set_title("attention is causal", fontsize=11)
    left.set(xlabel="key of token", ylabel="query of token", xlim=(0, n_tokens + 4.5), ylim=(n_tokens, 0))
    for token in range(n_tokens):
        for layer in range(n_layers):
            new = token == last
            right.add_patch(
                Rectangle((token, layer), 1, 1, facecolor=ORANGE if new else SKY, edgecolor="white", linewidth=1.5)
            )
            right.text(token + 0.5, layer + 0.5, "K V", ha="center", va="center", fontsize=7.5)
    right.annotate(
        "the new token adds\none column", (n_tokens + 0.05, 0.5), (n_tokens + 0.6, 1.6), fontsize=10,
        arrowprops={"arrowstyle": "->"},
    )  # fmt: skip
    right.text((n_tokens - 1) / 2, n_layers + 0.45, "kept, and never changed", ha="center", fontsize=10, color=BLUE)
    right.set_title("the cache: one key and one value per cell and head", fontsize=11)
    right.set(xlabel="token", ylabel="layer", xlim=(0, n_tokens + 4.5), ylim=(0, n_layers + 1.2))
    for ax, rows in ((left, n_tokens), (right, n_layers)):
        ax.set_xticks([i + 0.5 for i in range(n_tokens)], [str(i + 1) for i in range(n_tokens)])
        ax.set_yticks([i + 0.5 for i in range(rows)], [str(i + 1) for i in range(rows)])
        ax.grid(visible=False)
        ax.tick_params(length=0)
        ax.spines[["left", "bottom"]].set_visible(False)
    return figure


@torch.inference_mode()
def changed_keys(model: Llama, tokens: Sequence[int], place: int, other: int) -> list[list[float]]:
    """By how much each cached key moves if the token at `place` becomes `other`: [layer][token], in its lengths.

    The largest of its heads. Raises ValueError for a place outside the text.
    """
    if not 0 <= place < len(tokens):
        raise ValueError(f"there are {len(tokens)} tokens: give a place from 0 to {len(tokens) - 1}")
    changed = [*tokens[:place], other, *tokens[place + 1 :]]
    keys = []
    for text in progress((tokens, changed), "texts"):
        cache = model.new_cache(len(text))
        assert isinstance(cache, DenseCache)
        model.forward(torch.tensor(text, device=model.device), cache, slice(0))
        keys.append(cache.keys.float())
    moved = (keys[0] - keys[1]).norm(dim=-1) / keys[0].norm(dim=-1)
    return moved.amax(1).tolist()


def changed_figure(changes: Sequence[Sequence[float]], words: Sequence[str]) -> Figure:
    """`changed_keys` as a map, tokens by layers: white where nothing moved."""
    figure, (ax,) = new_figure(9, 4.2)
    moved = np.ma.masked_less(np.array(changes), 1e-3)  # what did not move stays white
    image = ax.imshow(moved, aspect="auto", origin="lower", cmap="YlOrBr", norm=PowerNorm(0.5, 0, 0.6))
    ax.set_xticks(range(len(words)), list(words), rotation=60, ha="right", fontsize=9)
    layers = [0, *range(4, len(changes), 5)]
    ax.set_yticks(layers, [str(i + 1) for i in layers])
    ax.set(xlabel="token", ylabel="layer")
    ax.grid(visible=False)
    figure.colorbar(image, ax=ax, label="change of the key,\nrelative to its length", extend="max")
    return figure


def heads_figure(n_heads: int = 8, groups: int = 2) -> Figure:
    """Query heads and the keys and values that they share: MHA, GQA, MQA, and the latent vector of MLA."""
    figure, axes = new_figure(11, 2.9, 4)
    kinds = (
        ("MHA", n_heads, "a key and a value\nfor each query head"),
        ("GQA", groups, f"one for {n_heads // groups} query heads"),
        ("MQA", 1, "one for all"),
    )
    for ax, (name, kept, words) in zip(axes, kinds, strict=False):
        _heads(ax, name, n_heads)
        width = n_heads / kept
        for i in range(kept):
            middle = (i + 0.5) * width
            for head in range(int(i * width), int((i + 1) * width)):
                ax.plot([head + 0.5, middle], [2.3, 1.35], color=GREY, lw=1, marker="", ls="-")
            _box(ax, middle - 0.36, 0.9, 0.32, 0.45, ORANGE, "K" if n_heads <= 8 else "")
            _box(ax, middle + 0.04, 0.9, 0.32, 0.45, ORANGE, "V" if n_heads <= 8 else "")
        ax.text(n_heads / 2, 0.55, words, ha="center", va="top", fontsize=10)
    ax = axes[-1]
    _heads(ax, "MLA", n_heads)
    for head in range(n_heads):
        ax.plot([head + 0.5, n_heads / 2], [2.3, 1.35], color=GREY, lw=1, ls=":", marker="")
    _box(ax, n_heads / 2 - 1.6, 0.9, 3.2, 0.45, ORANGE, "latent")
    ax.text(
        n_heads / 2,
        0.55,
        "one short vector, from which\nall keys and values are made",
        ha="center",
        va="top",
        fontsize=10,
    )
    axes[0].text(-0.3, 2.55, "query\nheads", ha="right", va="center", fontsize=9)
    axes[0].text(-0.3, 1.12, "in the\ncache", ha="right", va="center", fontsize=9)
    for ax in axes:
        ax.set(xlim=(-0.2, n_heads + 0.2), ylim=(-0.15, 3.3))
        ax.axis("off")
    axes[0].set_xlim(-1.6, n_heads + 0.2)
    return figure


def _heads(ax: Axes, name: str, count: int) -> None:
    ax.text(count / 2, 3.0, name, ha="center", fontsize=12, weight="bold")
    for i in range(count):
        _box(ax, i + 0.12, 2.3, 0.76, 0.45, SKY, "Q")


def _box(ax: Axes, x: float, y: float, width: float, height: float, colour: str, text: str) -> None:
    style = "round,pad=0,rounding_size=0.08"
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=colour, edgecolor="white"))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8)


def cache_shares(shape: ModelShape, batches: Sequence[int], contexts: Sequence[int]) -> list[list[float]]:
    """The share of the bytes of a decode pass that are keys and values: [batch][context]."""
    works = [[decode(shape, context, batch) for context in contexts] for batch in batches]
    return [[work.kv_read_bytes / work.bytes for work in row] for row in works]


def shares_figure(shares: Sequence[Sequence[float]], batches: Sequence[int], contexts: Sequence[int]) -> Figure:
    """`cache_shares` as a map with the percentages written in."""
    figure, (ax,) = new_figure(7.5, 3.4)
    ax.imshow(np.array(shares), aspect="auto", origin="lower", cmap="Blues", vmin=0, vmax=1)
    for y, row in enumerate(shares):
        for x, share in enumerate(row):
            ax.text(x, y, f"{100 * share:.0f}%", ha="center", va="center", color="white" if share > 0.6 else BLACK)
    ax.set_xticks(range(len(contexts)), [f"{n:,}" for n in contexts])
    ax.set_yticks(range(len(batches)), [str(b) for b in batches])
    ax.set(xlabel="tokens of context, each sequence", ylabel="batch")
    ax.grid(visible=False)
    ax.tick_params(length=0)
    return figure
