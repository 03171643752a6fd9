"""A server's cache memory: who holds which slot over time, shares of use, and what a block size costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from specdec_course.pictures.plots import BLUE, GREEN, LIGHT_GREY, ORANGE, RED, SKY, new_figure
from specdec_course.progress_line import progress
from specdec_course.simulate import Holding, Lengths, Policy, Waste, block_utilisation, serve_contiguous, serve_paged
from specdec_ref.cache import BlockPool
from specdec_ref.kernels.attention import paged_attention

_WASTE = (
    ("token_states", "holds a token", GREEN, ""),
    ("reserved", "reserved, for later", SKY, "//"),
    ("internal", "reserved, never used", RED, "xx"),
    ("external", "free, but in pieces (or rounded up)", ORANGE, ".."),
    ("free", "free, too little for a request", LIGHT_GREY, ""),
)
_FREE, _TOKEN, _LATER, _NEVER = range(4)
_LEGEND = (
    (_TOKEN, "holds a token (one shade per request)", GREEN),
    (_LATER, "reserved, for later", SKY),
    (_NEVER, "reserved, never used", RED),
    (_FREE, "free", LIGHT_GREY),
)
_GRAIN = 16  # slots in a row of the map


class _SeenEnough(Exception):
    """Ends a simulation whose rest nobody looks at."""


@dataclass(frozen=True)
class MemoryMap:
    """Memory over time, in stretches of 16 slots.

    kind: of each stretch at each step, `[rows, steps]`: 0 free, 1 holds a token, 2 reserved and will hold one, 3
        reserved and never will. request: who holds it, -1 for nobody. first: the first step.
    """

    kind: NDArray[np.int64]
    request: NDArray[np.int64]
    first: int

    def share(self, kind: int) -> float:
        """Share of the map that is of this kind."""
        return float((self.kind == kind).mean())


def memory_map(
    system: Policy | Literal["paged"],
    prompts: Lengths,
    outputs: Lengths,
    first: int = 600,
    steps: int = 400,
    capacity: int = 15_700,
) -> MemoryMap:
    """Who holds which slots, over `steps` decode steps of a simulated server from step `first` on.

    system: as in `serve_contiguous`, or "paged": blocks of 16, of which a fifth is kept back when requests start.
    Raises ValueError if the simulation ends before.
    """
    rows = capacity // _GRAIN
    kind, request = np.full((rows, steps), _FREE), np.full((rows, steps), -1)
    step = -1

    def watch(held: Iterator[Holding]) -> None:
        nonlocal step
        step += 1
        if step == first + steps:
            raise _SeenEnough
        for h in held if step >= first else ():
            pieces = np.array(h.pieces)
            if len(pieces) == 1:  # one reservation: the rows that it touches
                row = np.arange(-(-pieces[0, 0] // _GRAIN), min(rows, -(-pieces[0].sum() // _GRAIN)))
                token = row * _GRAIN - pieces[0, 0]  # position in the sequence
            else:  # blocks as large as a row
                row, token = pieces[:, 0] // _GRAIN, np.arange(len(pieces)) * _GRAIN
            kind[row, step - first] = np.where(token < h.length, _TOKEN, np.where(token < h.final, _LATER, _NEVER))
            request[row, step - first] = h.request

    try:
        if system == "paged":
            serve_paged(prompts, outputs, _GRAIN, capacity, watermark=0.2, watch=watch)
        else:
            serve_contiguous(prompts, outputs, system, capacity, watch=watch)
    except _SeenEnough:
        return MemoryMap(kind, request, first)
    raise ValueError(f"the server was done after {step + 1} steps: give more requests, or a lower first step")


def memory_figure(maps: Mapping[str, MemoryMap]) -> Figure:
    """Memory over time, one panel per system: each request is a band of slots from its start to its end."""
    figure, axes = new_figure(9.5, 4.6, columns=len(maps))
    for ax, (name, m) in zip(axes, maps.items(), strict=True):
        rows, steps = m.kind.shape
        ax.imshow(
            _colours(m), aspect="auto", origin="lower", extent=(m.first, m.first + steps, 0, rows * _GRAIN / 1000)
        )
        ax.set(title=name, xlabel="decode step")
        ax.grid(visible=False)
    axes[0].set_ylabel("slot, thousands")
    patches = [Patch(color=colour, label=label) for _, label, colour in _LEGEND]
    figure.legend(handles=patches, loc="outside upper center", ncols=2, frameon=False, fontsize=10)
    return figure


def _colours(m: MemoryMap) -> NDArray[np.float64]:
    """A colour for each cell: that of its kind; where it holds a token, lighter or darker by request."""
    colours = np.zeros((*m.kind.shape, 3))
    for kind, _, colour in _LEGEND:
        colours[m.kind == kind] = to_rgb(colour)
    lift = np.array([0.0, 0.3, 0.55])[m.request % 3][..., None]
    colours += (1 - colours) * lift * (m.kind == _TOKEN)[..., None]
    return colours


def memory_words(maps: Mapping[str, MemoryMap]) -> str:
    """What `memory_figure` shows, in words."""
    return " ".join(
        f"{name}: " + ", ".join(f"{m.share(kind):.0%} {label.split(' (')[0]}" for kind, label, _ in _LEGEND) + "."
        for name, m in maps.items()
    )


def waste_figure(runs: Mapping[str, Waste]) -> Figure:
    """What the memory of each system is used for; beside each bar, requests at a time and preemptions."""
    figure, (ax,) = new_figure(9.5, 1.5 + 0.55 * len(runs))
    left = [0.0] * len(runs)
    for field, label, colour, hatch in _WASTE:
        shares = [100 * getattr(w, field) for w in runs.values()]
        ax.barh(list(runs), shares, 0.65, left, color=colour, hatch=hatch, edgecolor="white", label=label)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    for y, w in enumerate(runs.values()):
        ax.text(101, y, f"{w.batch:.1f} requests\n{w.preemptions} preemptions", va="center", fontsize=10)
    ax.set(xlim=(0, 100), xlabel="share of the slots, %")
    ax.grid(axis="y", visible=False)
    ax.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def waste_words(runs: Mapping[str, Waste]) -> str:
    """What `waste_figure` shows, in words."""
    return " ".join(
        f"{name}: "
        + ", ".join(f"{100 * getattr(w, field):.1f}% {label}" for field, label, *_ in _WASTE)
        + f"; {w.batch:.1f} requests at a time, {w.preemptions} preemptions."
        for name, w in runs.items()
    )


@dataclass(frozen=True)
class BlockCost:
    """What one block size costs.

    read: seconds per token of context to attend through a table, in one layer. hash: seconds per token to hash its
        blocks. empty: share of the allocated slots that hold no token.
    """

    read: float
    hash: float
    empty: float


def block_costs(
    sizes: Sequence[int], lengths: Lengths, context: int = 2048, heads: tuple[int, int] = (3, 64), repeats: int = 9
) -> dict[int, BlockCost]:
    """Measure here what a block size costs: attention of one token over a scattered table, and hashing a prompt.

    sizes: block sizes; each divides `context`, in tokens. lengths: of sequences, for the share of empty slots. heads:
    key heads and their width. The sizes take turns; the best of `repeats` counts, other programs can only slow it down.
    """
    tasks = {size: _block_tasks(size, context, *heads) for size in sizes}
    best = {size: [np.inf, np.inf] for size in sizes}
    for _ in progress(range(repeats), "rounds"):
        for size, pair in tasks.items():
            for i, task in enumerate(pair):
                start = time.perf_counter()
                task()
                best[size][i] = min(best[size][i], (time.perf_counter() - start) / context)
    return {
        size: BlockCost(read, hashing, 1 - block_utilisation(lengths, size)) for size, (read, hashing) in best.items()
    }


def _block_tasks(size: int, context: int, n_heads: int, width: int) -> tuple[Callable[[], object], ...]:
    """Attend through a scattered table of `context` tokens; register their blocks in a fresh pool."""
    n_blocks = context // size
    keys, values = torch.randn(2, n_heads, 2 * n_blocks, size, width)
    table = torch.randperm(2 * n_blocks)[:n_blocks]
    q, tokens = torch.randn(n_heads, 3, width), list(range(context))

    def register() -> None:
        pool = BlockPool(n_blocks, size)
        pool.register(pool.allocate(n_blocks), tokens)

    return lambda: paged_attention(q, keys, values, table, context), register


def block_cost_figure(costs: Mapping[int, BlockCost]) -> Figure:
    """Two panels against the block size: time per token of context, and slots that are allocated and empty."""
    figure, (left, right) = new_figure(9, 3.5, columns=2)
    sizes = list(costs)
    read, hashing = [1e6 * c.read for c in costs.values()], [1e6 * c.hash for c in costs.values()]
    left.plot(sizes, read, color=BLUE, marker="o", linestyle="-", label="attend through the table, one layer")
    left.plot(sizes, hashing, color=ORANGE, marker="s", linestyle="--", label="hash the blocks")
    left.set(ylabel="µs per token of context", ylim=(0, 1.3 * max(read + hashing)), title="time")
    left.legend(fontsize=9)
    right.plot(sizes, [100 * c.empty for c in costs.values()], color=RED, marker="s", linestyle="--")
    right.set(ylabel="allocated slots that stay empty, %", title="memory")
    right.set_ylim(bottom=0)
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes, [str(s) for s in sizes])
        ax.set_xlabel("block size, tokens")
    return figure


def block_cost_words(costs: Mapping[int, BlockCost]) -> str:
    """What `block_cost_figure` shows, in words."""
    return "; ".join(
        f"blocks of {size}: {1e6 * c.read:.2f} µs to attend and {1e6 * c.hash:.2f} µs to hash per token of context, "
        f"{c.empty:.1%} of the slots empty"
        for size, c in costs.items()
    )
