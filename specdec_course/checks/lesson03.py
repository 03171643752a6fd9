"""The blanks of lesson 03: slots, sharing, copy-on-write, rolling back, what a prefix cache may reuse."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from specdec_course.checks import Blank, Check
from specdec_course.checks.mistakes import Case, Judge, judged, mistakes
from specdec_course.checks.ps03_block_pool import BOOKS, part
from specdec_course.checks.ps03_block_pool.pools import Pool


def slot(pool: Any, table: list[int], i: int) -> int:
    """Where position i of a sequence lies in memory."""
    return table[i // pool.block_size] * pool.block_size + i % pool.block_size


def fork(pool: Any, table: list[int]) -> list[int]:
    """A second table over the same blocks: a list of its own. Each block has one holder more."""
    for block in table:
        pool.refs[block] += 1
    return list(table)


def append_cow(pool: Any, table: list[int], length: int, n: int) -> list[tuple[int, int]]:
    """Make room for n tokens; returns the (source, target) blocks to copy before writing."""
    needed = -(-(length + n) // pool.block_size) - len(table)
    shared = n > 0 and length % pool.block_size > 0 and pool.refs[table[-1]] > 1
    if needed + shared > len(pool.free):
        raise MemoryError(f"asked for {needed + shared} blocks, {len(pool.free)} are free")
    fresh = [pool.free.popleft() for _ in range(needed + shared)]
    for block in fresh:
        pool.refs[block] = 1
    if not shared:
        table += fresh
        return []
    source = table.pop()
    pool.refs[source] -= 1
    table += fresh
    return [(source, fresh[0])]


def truncate(pool: Any, table: list[int], length: int) -> None:
    """Keep the blocks of the first `length` tokens, let go of the others, the last one first; changes the table."""
    keep = -(-length // pool.block_size)
    for block in reversed(table[keep:]):
        pool.refs[block] -= 1
        if pool.refs[block] == 0:
            pool.free.append(block)
    del table[keep:]


def reusable(n_tokens: int, block_size: int) -> int:
    """The most blocks of a known prompt that may be reused: whole ones, and at least one token is left to compute."""
    return (n_tokens - 1) // block_size


def _with_slot(formula: Callable[[list[int], int, int], int]) -> Callable[..., int]:
    """A wrong `slot` from a formula of the table, the position and the block size."""
    return lambda pool, table, i: formula(table, i, pool.block_size)


_SLOT = Judge(
    "The slot",
    slot,
    mistakes(
        _with_slot,
        {
            "that is as if the sequence lay in one piece: look the block up in the table.": lambda t, i, size: i,
            "that is the first slot of the block: the offset in the block is missing.": (
                lambda t, i, size: t[i // size] * size
            ),
            "block b begins at slot b * block_size, not at slot b.": lambda t, i, size: t[i // size] + i % size,
            "that is the block's number: where does this block begin?": lambda t, i, size: t[i // size],
            "// and % are swapped: i // block_size is which block, i % block_size where in it.": (
                lambda t, i, size: t[i % size] * size + i // size
            ),
        },
    ),
    given=lambda pool, table, i: (
        f"pool = Pool({len(pool.refs)}, {pool.block_size}); table = {table}; slot(pool, table, {i})"
    ),
)


def _slots(rng: random.Random, sizes: tuple[int, ...]) -> list[Case]:
    cases: list[Case] = []
    for size in sizes:
        pool, table = Pool(9, size), rng.sample(range(1, 9), 4)
        cases += [(pool, table, i) for i in rng.sample(range(4 * size), 4)]
    return cases


_REUSABLE = Judge(
    "The number of blocks",
    reusable,
    mistakes(
        lambda formula: formula,
        {
            "then nothing of a wholly known prompt is computed, and nothing says what comes next: "
            "its last token must be left over.": lambda n, size: n // size,
            "that leaves a whole block too many to compute where the prompt does not end with a full block.": (
                lambda n, size: max(0, n // size - 1)
            ),
            "the last block is not full: it has no hash, and cannot be found.": lambda n, size: -(-n // size),
            "that is in tokens: how many whole blocks are in them?": lambda n, size: n - 1,
        },
    ),
)


def _prompts(rng: random.Random, past: Callable[[int], int]) -> list[Case]:
    """Prompts of a few whole blocks and so many tokens more, by block size; from the empty block count up."""
    return [(rng.randint(1, 6) * size + past(size), size) for size in rng.sample((2, 4, 8, 16), 3)]


_COW = (("reads", "reads"), ("copies", "pairs"), ("refused",))

BLANKS = {
    "slot": Blank(
        judged("slot", _SLOT, blocks=lambda rng: _slots(rng, (4, 16)), one_slot=lambda rng: _slots(rng, (1, 2))), slot
    ),
    "fork": Blank(Check("fork", [part("fork", "forks", shared=True)]), fork),
    "append_cow": Blank(
        Check(
            "append_cow",
            [
                part("append_cow", *look, shared=True)
                for look in (("reads", "reads"), ("copies", "pairs"), ("refused",))
            ],
        ),
        append_cow,
    ),
    "truncate": Blank(
        Check(
            "truncate",
            [
                part("truncate", "shortens", "order", shared=True),
                part("truncate", "leaks nothing", *BOOKS[1:], "shorter", books=False),
            ],
        ),
        truncate,
    ),
    "reusable": Blank(
        judged(
            "reusable",
            _REUSABLE,
            whole_blocks=lambda rng: _prompts(rng, lambda size: 0),
            one_more=lambda rng: _prompts(rng, lambda size: 1),
            a_rest=lambda rng: _prompts(rng, lambda size: size - 1),
            short=lambda rng: [(rng.randint(1, 4), 4)],
        ),
        reusable,
    ),
}
