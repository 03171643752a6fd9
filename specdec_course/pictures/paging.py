"""Pictures of a block pool: tables, blocks, counts and the free queue, recorded step by step.

`pool_figure` and `pool_words` are pure functions of a pool, its tables and the contents of its slots; the stepper only
chooses among recorded states.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import ipywidgets
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from specdec_course.pictures.plots import (
    BLACK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    YELLOW,
    new_figure,
    show,
)
from specdec_course.pictures.widgets import explorer, slider
from specdec_ref.cache import BlockPool, OutOfBlocks

SEQUENCE_COLOURS = (SKY, ORANGE, GREEN, PURPLE, YELLOW)
EMPTY = "·"
_PER_ROW, _WIDTH = 8, 34.6  # blocks in a row of the picture; its width, in slots


class PlainPool(Protocol):
    """A pool as the lesson builds it."""

    block_size: int
    refs: list[int]
    free: deque[int]


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
    pool: BlockPool | PlainPool,
    tables: Mapping[str, Sequence[int]],
    lengths: Mapping[str, int],
    slots: Sequence[Sequence[str]] | None = None,
    colours: Mapping[str, str] | None = None,
    title: str = "",
) -> Figure:
    """Block tables with an arrow from each entry to its block, the blocks in their holders' colours, the free queue.

    tables: the block table of each sequence. lengths: its length in tokens; slots past it are stale, and grey.
    slots: the letter in each slot of each block; None marks the slots in use instead.
    colours: by sequence; None assigns them. A # marks a block that can be found by its hash.
    """
    shades, books = colours or sequence_colours([tables]), _books(pool)
    size = pool.block_size
    live = {table[i // size] * size + i % size for name, table in tables.items() for i in range(lengths[name])}
    n_blocks = len(books.refs)
    contents = slots or [["■" if b * size + i in live else EMPTY for i in range(size)] for b in range(n_blocks)]
    entries, below = _table_places(tables)
    rows = -(-n_blocks // _PER_ROW)
    top = below + (2.0 if tables else 0.3)
    height = top + 5.0 * rows + 2.4
    figure, (ax,) = new_figure(9.5, 0.265 * height + 0.4)
    ax.set(xlim=(0, _WIDTH), ylim=(height, 0))
    ax.set_title(title, fontsize=11)
    ax.axis("off")
    pitch = _WIDTH / min(_PER_ROW, max(n_blocks, 4))
    wide = pitch - 0.4
    corner = [(0.2 + pitch * (b % _PER_ROW), top + 5.0 * (b // _PER_ROW)) for b in range(n_blocks)]
    for name, table in tables.items():
        x, y = entries[name][0]
        ax.text(x - 0.4, y + 0.75, f"table of {name}", ha="right", va="center")
        for number, (x, y) in zip(table, entries[name][1:], strict=True):
            holders = owners(tables, number)
            share = (holders.index(name) + 1) / (len(holders) + 1)
            tip = corner[number][0] + wide * share, corner[number][1] + 1.3
            _box(ax, x, y, 1.5, 1.5, [shades[name]], str(number))
            dark = tuple(0.75 * part for part in to_rgb(shades[name]))
            ax.annotate("", tip, (x + 0.75, y + 1.5), arrowprops={"arrowstyle": "-|>", "color": dark, "linewidth": 1.5})
    for block, (x, y) in enumerate(corner):
        refs = books.refs[block]
        label = f"block {block}{' #' if block in books.hashed else ''}\n{refs} ref{'' if refs == 1 else 's'}"
        ax.text(x + wide / 2, y + 4.2, label, ha="center", va="center", fontsize=10)
        _box(ax, x, y + 1.3, wide, 1.8, [shades[h] for h in owners(tables, block)])
        step = wide / size
        for i, letter in enumerate(contents[block]):
            colour = BLACK if block * size + i in live else GREY
            shown, at = "␣" if letter == " " else letter, (x + step * (i + 0.5), y + 2.2)
            ax.text(*at, shown, ha="center", va="center", color=colour, family="DejaVu Sans Mono")
            if i:
                ax.plot([x + step * i] * 2, [y + 1.3, y + 3.1], color="white", linewidth=1, linestyle="-", marker="")
    y = top + 5.0 * rows + 0.4
    note = "free queue, next block to be allocated first:" if books.queue else "free queue: empty"
    ax.text(0.2, y + 0.9, note, va="center")
    for i, free in enumerate(books.queue):
        _box(ax, 14.6 + 2.4 * i, y + 0.1, 2.1, 1.6, [], f"{free} #" if free in books.hashed else str(free))
    return figure


def pool_words(pool: BlockPool | PlainPool, tables: Mapping[str, Sequence[int]], title: str = "") -> str:
    """What `pool_figure` shows, in words."""
    lines = [f"{title}." if title else ""]
    lines += [f"Table of {name}: {', '.join(map(str, table)) or 'empty'}." for name, table in tables.items()]
    books = _books(pool)
    shared = [f"{b} by {' and '.join(owners(tables, b))}" for b, refs in enumerate(books.refs) if refs > 1]
    hashed = [str(b) for b in sorted(books.hashed)]
    lines.append(f"Shared blocks: {', '.join(shared) or 'none'}.")
    lines.append(f"Found by hash: {', '.join(hashed) or 'none'}.")
    lines.append(f"Free, in order: {', '.join(map(str, books.queue)) or 'none'}.")
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


def pool_stepper(snapshots: Sequence[PoolSnapshot], step: int = 1) -> ipywidgets.VBox:
    """Move through recorded states with a slider, from `step` on, counted from 1."""
    return explorer(lambda step: snapshot_html(snapshots, step), step=slider("step", step, 1, len(snapshots)))


class _Books(NamedTuple):
    """What a picture needs of a pool: counts by block, the blocks with a hash, the free queue."""

    refs: Sequence[int]
    hashed: frozenset[int]
    queue: Sequence[int]


def _books(pool: BlockPool | PlainPool) -> _Books:
    if isinstance(pool, BlockPool):
        hashed = frozenset(block.id for block in pool.blocks if block.hash)
        return _Books([block.refs for block in pool.blocks], hashed, list(pool.free_queue))
    return _Books(list(pool.refs), frozenset(), list(pool.free))


def _table_places(tables: Mapping[str, Sequence[int]]) -> tuple[dict[str, list[tuple[float, float]]], float]:
    """Where each table's label ends and its entries stand, side by side as far as they go; and the height of it all."""
    places, x, y = {}, 0.2, 0.3
    for name, table in tables.items():
        label, wide = 0.45 * len(f"table of {name}") + 0.8, 1.65 * max(1, len(table))
        if x > 0.2 and x + label + wide > _WIDTH:
            x, y = 0.2, y + 2.3
        x += label
        places[name] = [(x, y), *((x + 1.65 * i, y) for i in range(len(table)))]
        x += wide + 1.4
    return places, y + 1.5 if tables else 0.3


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
