"""Paging: pictures of a block pool, recorded step by step, and of what the memory is used for.

`pool_figure` and `pool_words` are pure functions of a pool, its tables and the contents of its slots; the stepper only
chooses among recorded states.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ipywidgets
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from specdec_course.pictures.plots import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT_GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    YELLOW,
    new_figure,
    show,
)
from specdec_course.pictures.widgets import explorer, slider
from specdec_course.simulate import Waste
from specdec_ref.cache import BlockPool, OutOfBlocks

SEQUENCE_COLOURS = (SKY, ORANGE, GREEN, PURPLE, YELLOW)
EMPTY = "·"
_PER_ROW = 4  # blocks in a row of the picture
_WASTE = (
    ("token_states", "hold a token", GREEN, ""),
    ("reserved", "will hold one later", SKY, "//"),
    ("internal", "never will", RED, "xx"),
    ("external", "lost to the allocator", ORANGE, ".."),
    ("free", "free, too few for the next request", LIGHT_GREY, ""),
)


@dataclass(frozen=True)
class PoolSnapshot:
    """A pool after one operation.

    title: the operation in words. tables: the block table of each live sequence, by name. lengths: its length in
        tokens. slots: the letter in each slot of each block, left over from a finished sequence or not; EMPTY if none.
    """

    title: str
    pool: BlockPool
    tables: dict[str, list[int]]
    lengths: dict[str, int]
    slots: list[list[str]]


class PoolRecorder:
    """Sequences of one-letter tokens in a `BlockPool`; each operation records a `PoolSnapshot`.

    A letter stands for the keys and values of its token. An operation that the pool refuses raises what the pool
    raises, changes nothing and records nothing.
    """

    def __init__(self, num_blocks: int = 8, block_size: int = 4) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.tables: dict[str, list[int]] = {}
        self.texts: dict[str, str] = {}
        self.slots = [[EMPTY] * block_size for _ in range(num_blocks)]
        self.snapshots: list[PoolSnapshot] = []
        self._record(f"the pool: {num_blocks} blocks of {block_size} slots, all free")

    def start(self, name: str, text: str) -> None:
        """Start a sequence: blocks of its prefix that the pool knows are reused, the rest is written.

        Raises ValueError if the name is taken.
        """
        if name in self.tables:
            raise ValueError(f"{name!r} is already in the pool: choose another name, or free it first")
        table = self.pool.reuse_prefix(_tokens(text))
        known = len(table) * self.pool.block_size
        try:
            note = self._write(table, text[:known], text[known:])
        except OutOfBlocks:
            self.pool.free(table)
            raise
        self.tables[name], self.texts[name] = table, text
        hit = f"; {known} tokens are known, {len(text) - known} are written" if known else ""
        self._record(f'start {name} with "{text}"{hit}{note}')

    def append(self, name: str, text: str) -> None:
        """Append tokens to a sequence; a shared block is copied before it is written."""
        note = self._write(self.tables[name], self.texts[name], text)
        self.texts[name] += text
        self._record(f'append "{text}" to {name}{note}')

    def fork(self, name: str, twin: str) -> None:
        """Start a second sequence on the same blocks. Raises ValueError if its name is taken."""
        if twin in self.tables:
            raise ValueError(f"{twin!r} is already in the pool: choose another name")
        self.tables[twin], self.texts[twin] = self.pool.share(self.tables[name]), self.texts[name]
        self._record(f"fork {name} as {twin}; no block is copied")

    def free(self, name: str) -> None:
        """End a sequence and release its blocks."""
        self.pool.free(self.tables.pop(name))
        del self.texts[name]
        self._record(f"free {name}")

    def _write(self, table: list[int], before: str, new: str) -> str:
        """Write `new` into the slots after `before`; returns a note on blocks copied or evicted for it."""
        size = self.pool.block_size
        hashed = [block.id for block in self.pool.blocks if block.hash is not None]
        copies = self.pool.extend(table, len(before), len(before) + len(new))
        evicted = [str(b) for b in hashed if self.pool.blocks[b].hash is None]
        for source, target in copies:
            self.slots[target] = list(self.slots[source])
        for i, letter in enumerate(new, start=len(before)):
            self.slots[table[i // size]][i % size] = letter
        self.pool.register(table, _tokens(before + new))
        note = "".join(f"; block {a} is shared: copied to {b} first" for a, b in copies)
        return note + (f"; forgotten: what blocks {', '.join(evicted)} held" if evicted else "")

    def _record(self, title: str) -> None:
        lengths = {name: len(text) for name, text in self.texts.items()}
        self.snapshots.append(PoolSnapshot(title, *copy.deepcopy((self.pool, self.tables, lengths, self.slots))))


def pool_tour() -> list[PoolSnapshot]:
    """Everything that can happen to a block, in a pool of eight blocks of four slots."""
    r = PoolRecorder()
    r.start("A", "once upon")
    r.append("A", " a")
    r.fork("A", "B")
    r.append("B", "n")
    r.append("A", " time")
    r.free("A")
    r.free("B")
    r.start("C", "once upon a tale")
    r.start("D", "in a land far")
    r.free("C")
    r.start("E", "once upon an owl")
    return r.snapshots


def owners(tables: Mapping[str, Sequence[int]], block: int) -> list[str]:
    """Names of the sequences whose block tables contain `block`."""
    return [name for name, table in tables.items() if block in table]


def pool_figure(
    pool: BlockPool,
    tables: Mapping[str, Sequence[int]],
    lengths: Mapping[str, int],
    slots: Sequence[Sequence[str]] | None = None,
    colours: Mapping[str, str] | None = None,
    title: str = "",
) -> Figure:
    """The block tables, the physical blocks in the colours of the sequences that hold them, and the free queue.

    tables: the block table of each sequence. lengths: its length in tokens; slots past it are stale, and grey.
    slots: the letter in each slot of each block; None marks the slots in use instead.
    colours: by sequence; None assigns them. A # marks a block that can be found by its hash.
    """
    shades = colours or sequence_colours([tables])
    size = pool.block_size
    live = {table[i // size] * size + i % size for name, table in tables.items() for i in range(lengths[name])}
    contents = slots or [["■" if b.id * size + i in live else EMPTY for i in range(size)] for b in pool.blocks]
    rows = -(-len(pool.blocks) // _PER_ROW)
    height = len(tables) + 2.1 * rows + 2.3
    figure, (ax,) = new_figure(8.5, 0.47 * height + 0.4)
    ax.set(xlim=(0, 17), ylim=(height, 0))
    ax.set_title(title, fontsize=11)
    ax.axis("off")
    y = 0.0
    for name, table in tables.items():
        ax.text(1.9, y + 0.45, f"table of {name}", ha="right", va="center")
        for i, number in enumerate(table):
            _box(ax, 2.2 + 0.95 * i, y + 0.05, 0.85, 0.8, [shades[name]], str(number))
        y += 1
    y += 0.3
    for block in pool.blocks:
        x, top = 0.3 + 4.2 * (block.id % _PER_ROW), y + 2.1 * (block.id // _PER_ROW)
        holders = owners(tables, block.id)
        tag = " #" if block.hash else ""
        ax.text(x, top + 0.3, f"block {block.id}: {block.refs} ref{'' if block.refs == 1 else 's'}{tag}", va="center")
        _box(ax, x, top + 0.6, 3.8, 1.0, [shades[h] for h in holders])
        step = 3.8 / size
        for i, letter in enumerate(contents[block.id]):
            colour = BLACK if block.id * size + i in live else GREY
            shown, at = "␣" if letter == " " else letter, (x + step * (i + 0.5), top + 1.1)
            ax.text(*at, shown, ha="center", va="center", color=colour, family="DejaVu Sans Mono")
            if i:
                ax.plot(
                    [x + step * i] * 2, [top + 0.6, top + 1.6], color="white", linewidth=1, linestyle="-", marker=""
                )
    y += 2.1 * rows + 0.2
    ax.text(0.3, y + 0.45, "free queue, next block to be allocated first:" if pool.num_free else "free queue: empty")
    for i, free in enumerate(pool.free_queue):
        label = f"{free} #" if pool.blocks[free].hash else str(free)
        _box(ax, 0.3 + 1.1 * i, y + 0.7, 1.0, 0.8, [], label)
    return figure


def pool_words(pool: BlockPool, tables: Mapping[str, Sequence[int]], title: str = "") -> str:
    """What `pool_figure` shows, in words."""
    lines = [f"{title}." if title else ""]
    lines += [f"Table of {name}: {', '.join(map(str, table)) or 'empty'}." for name, table in tables.items()]
    shared = [f"{b.id} by {' and '.join(owners(tables, b.id))}" for b in pool.blocks if b.refs > 1]
    hashed = [str(b.id) for b in pool.blocks if b.hash]
    lines.append(f"Shared blocks: {', '.join(shared) or 'none'}.")
    lines.append(f"Found by hash: {', '.join(hashed) or 'none'}.")
    lines.append(f"Free, in order: {', '.join(map(str, pool.free_queue)) or 'none'}.")
    return " ".join(line for line in lines if line)


def sequence_colours(tables: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, str]:
    """A colour for each sequence that occurs in any of several states, the same in all of them."""
    names = dict.fromkeys(name for state in tables for name in state)
    return {name: SEQUENCE_COLOURS[i % len(SEQUENCE_COLOURS)] for i, name in enumerate(names)}


def snapshot_html(snapshots: Sequence[PoolSnapshot], step: int) -> str:
    """Picture and words of one recorded step, counted from 1."""
    s = snapshots[step - 1]
    figure = pool_figure(s.pool, s.tables, s.lengths, s.slots, sequence_colours([x.tables for x in snapshots]), s.title)
    words = pool_words(s.pool, s.tables, s.title)
    counts = f"{s.pool.num_used} of {len(s.pool.blocks)} blocks in use"
    return f"<p><b>step {step} of {len(snapshots)}</b>: {counts}</p>{show(figure, words).data}"


def pool_stepper(snapshots: Sequence[PoolSnapshot]) -> ipywidgets.VBox:
    """Step through recorded states with a slider."""
    return explorer(lambda step: snapshot_html(snapshots, step), step=slider("step", 1, 1, len(snapshots)))


def waste_figure(runs: Mapping[str, Waste]) -> Figure:
    """What the memory of each system is used for; beside each bar, how many requests ran at a time."""
    figure, (ax,) = new_figure(9, 1.5 + 0.55 * len(runs))
    left = [0.0] * len(runs)
    for field, label, colour, hatch in _WASTE:
        shares = [100 * getattr(w, field) for w in runs.values()]
        ax.barh(list(runs), shares, 0.65, left, color=colour, hatch=hatch, edgecolor="white", label=label)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    for y, w in enumerate(runs.values()):
        ax.text(101, y, f"{w.batch:.1f} requests", va="center")
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
        + f"; {w.batch:.1f} requests at a time."
        for name, w in runs.items()
    )


def block_size_figure(used: Mapping[int, float], batch: Mapping[int, float]) -> Figure:
    """Two panels against the block size: utilisation of the blocks held, and requests that run at a time."""
    figure, (left, right) = new_figure(9, 3.3, columns=2)
    left.plot(list(used), [100 * u for u in used.values()], color=BLUE, marker="o", linestyle="-")
    left.set(ylabel="allocated slots that hold a token, %", ylim=(0, 102))
    right.plot(list(batch), list(batch.values()), color=RED, marker="s", linestyle="--")
    right.set(ylabel="requests that run at a time", ylim=(0, 1.1 * max(batch.values())))
    for ax, sizes in ((left, used), (right, batch)):
        ax.set_xscale("log", base=2)
        ax.set_xticks(list(sizes), [str(s) for s in sizes])
        ax.set_xlabel("block size, tokens")
    return figure


def _tokens(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def _box(ax: Axes, x: float, y: float, width: float, height: float, colours: Sequence[str], label: str = "") -> None:
    """A box striped in several colours, or empty with a dotted frame, with a label."""
    for i, colour in enumerate(colours):
        stripe = height / len(colours)
        ax.add_patch(Rectangle((x, y + i * stripe), width, stripe, facecolor=colour, edgecolor="none", alpha=0.75))
    dashed = "-" if colours else ":"
    ax.add_patch(Rectangle((x, y), width, height, facecolor="none", edgecolor=BLACK, linestyle=dashed))
    if label:
        ax.text(x + width / 2, y + height / 2, label, ha="center", va="center")
