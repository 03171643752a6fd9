"""The functions of problem set 03 as they should be, and how they usually go wrong."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

Functions = dict[str, Callable[..., Any]]


class Pool:
    """The state that all functions work on, as in the notebook; who holds which block, no keys or values."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.refs = [0] * num_blocks
        self.free: deque[int] = deque(range(num_blocks))
        self.hashes: list[Any] = [None] * num_blocks
        self.cached: dict[Any, int] = {}


# The right functions. They stand in for those of the learner's that are not looked at.


def _allocate(pool: Pool, n: int) -> list[int]:
    if n > len(pool.free):
        raise MemoryError(f"asked for {n} blocks, {len(pool.free)} are free")
    taken = [pool.free.popleft() for _ in range(n)]
    for block in taken:
        pool.refs[block] = 1
        name, pool.hashes[block] = pool.hashes[block], None
        if name is not None and pool.cached.get(name) == block:
            del pool.cached[name]
    return taken


def _release(pool: Pool, table: list[int]) -> None:
    held = all(0 <= b < len(pool.refs) and pool.refs[b] > 0 for b in table)
    if not held or len(set(table)) < len(table):
        raise ValueError(f"of {table}, a block is unknown, free already, or named twice")
    for block in reversed(table):
        pool.refs[block] -= 1
        if pool.refs[block] == 0:
            pool.free.append(block)


def _append(pool: Pool, table: list[int], length: int, n: int) -> list[int]:
    size = pool.block_size
    table += _allocate(pool, -(-(length + n) // size) - len(table))
    return [table[i // size] * size + i % size for i in range(length, length + n)]


def _truncate(pool: Pool, table: list[int], length: int) -> None:
    keep = -(-length // pool.block_size)
    _release(pool, table[keep:])
    del table[keep:]


def _fork(pool: Pool, table: list[int]) -> list[int]:
    for block in table:
        pool.refs[block] += 1
    return list(table)


def _append_cow(pool: Pool, table: list[int], length: int, n: int) -> list[tuple[int, int]]:
    half_full = n > 0 and length % pool.block_size > 0
    shared = half_full and pool.refs[table[-1]] > 1
    fresh = _allocate(pool, -(-(length + n) // pool.block_size) - len(table) + shared)
    copies = []
    if shared:
        copies = [(table.pop(), fresh[0])]
        pool.refs[copies[0][0]] -= 1
    table += fresh
    return copies


def _block_hash(parent: Any, tokens: Sequence[int]) -> Any:
    return (parent, tuple(tokens))


def _register(pool: Pool, table: list[int], tokens: Sequence[int]) -> None:
    size, parent = pool.block_size, None
    for i in range(len(tokens) // size):
        parent = _block_hash(parent, tokens[i * size : (i + 1) * size])
        pool.hashes[table[i]] = parent
        pool.cached[parent] = table[i]


def _reuse_prefix(pool: Pool, tokens: Sequence[int]) -> list[int]:
    size, parent, table = pool.block_size, None, []
    for i in range((len(tokens) - 1) // size):
        parent = _block_hash(parent, tokens[i * size : (i + 1) * size])
        if parent not in pool.cached:
            break
        table.append(pool.cached[parent])
    for block in table:
        if pool.refs[block] == 0:
            pool.free.remove(block)
        pool.refs[block] += 1
    return table


BASE: Functions = {
    "allocate": _allocate,
    "release": _release,
    "append": _append,
    "truncate": _truncate,
    "fork": _fork,
    "append_cow": _append_cow,
    "block_hash": _block_hash,
    "register": _register,
    "reuse_prefix": _reuse_prefix,
}

# What goes wrong most often, as a change of the right function, and how to say it.
SLIPS = [
    ("allocate", "pool.refs[block] = 1", "pass", "a block that is handed out has one holder: set its count to 1"),
    (
        "allocate",
        "[pool.free.popleft() for _ in range(n)]",
        "list(pool.free)[:n]",
        "the blocks are looked at and stay in pool.free: take them out (popleft)",
    ),
    (
        "release",
        "if pool.refs[block] == 0:",
        "if True:",
        "a block that another table still holds went into pool.free: only when its count has come down to 0",
    ),
    ("release", "pool.refs[block] -= 1", "pool.refs[block] = 0", "the count goes down by one, not to 0"),
    ("release", "pool.free.append(block)", "pass", "a block whose count is 0 has to go back into pool.free"),
    ("release", "pool.refs[block] -= 1", "pass", "the counts do not go down"),
    (
        "append",
        "-(-(length + n) // size) - len(table)",
        "-(-n // size)",
        "the room left in the last block is not used: count the blocks of length + n tokens, less those in the table",
    ),
    (
        "append",
        "-(-(length + n) // size) - len(table)",
        "(length + n) // size + 1 - len(table)",
        "one block too many where the tokens end at a block border: round up, do not add 1",
    ),
    (
        "append",
        "-(-(length + n) // size) - len(table)",
        "(length + n) // size - len(table)",
        "rounded down: a block that is begun is needed as well",
    ),
    (
        "append",
        "table += _allocate(pool,",
        "table = table + _allocate(pool,",
        "`table = ...` makes a new list: change it",
    ),
    ("append", "for i in range(length, length + n)", "for i in range(n)", "positions start at length, not at 0"),
    (
        "append",
        "table[i // size] * size + i % size for",
        "table[length // size] * size + length % size + i - length for",
        "blocks need not lie side by side: look up table[i // block_size] for each position",
    ),
    (
        "append",
        "table[i // size] * size + i % size for",
        "i for",
        "position i is not slot i: the table says which block",
    ),
    (
        "append",
        "table[i // size] * size + i % size for",
        "table[-1] * size + i % size for",
        "not every token lies in the last block: look up table[i // block_size] for each position",
    ),
    (
        "append",
        "table[i // size] * size + i % size for",
        "table[i // size] + i % size for",
        "block b begins at slot b * block_size",
    ),
    (
        "truncate",
        "-(-length // pool.block_size)",
        "length // pool.block_size",
        "rounded down: a block that still holds some of the kept tokens stays",
    ),
    (
        "truncate",
        "-(-length // pool.block_size)",
        "length // pool.block_size + 1",
        "one block too many is kept where length is at a block border: round up, do not add 1",
    ),
    ("truncate", "del table[keep:]", "pass", "the table still names blocks that were given back: shorten it in place"),
    ("truncate", "_release(pool, table[keep:])", "pass", "the blocks that were cut off are not given back: a leak"),
    (
        "truncate",
        "_release(pool, table[keep:])\n    del table[keep:]",
        "drop = len(table) - keep\n    _release(pool, table[-drop:])\n    del table[-drop:]",
        "table[-0:] is the whole table: a negative slice goes wrong where nothing is to be dropped",
    ),
    ("fork", "return list(table)", "return table", "both names mean one list: return a copy, list(table)"),
    ("fork", "pool.refs[block] += 1", "pass", "a second table holds each block now: its count goes up by one"),
    (
        "append_cow",
        "half_full and pool.refs[table[-1]] > 1",
        "False",
        "a shared, half-full block was written without a copy",
    ),
    (
        "append_cow",
        "n > 0 and length % pool.block_size > 0",
        "n > 0 and length > 0",
        "a full block is not written any more, so it is not copied: look at length % block_size",
    ),
    (
        "append_cow",
        "half_full and pool.refs[table[-1]] > 1",
        "half_full",
        "who holds the block alone writes in place: copy only where its count is above 1",
    ),
    ("append_cow", "n > 0 and length", "length", "where nothing is appended (n = 0), nothing is copied"),
    (
        "append_cow",
        "pool.refs[copies[0][0]] -= 1",
        "pass",
        "the table let go of the shared block, but the count of that block did not go down: a leak",
    ),
    (
        "append_cow",
        "return copies",
        "return [(target, source) for source, target in copies]",
        "a pair is (source, target): from the shared block",
    ),
    (
        "append_cow",
        "(table.pop(), fresh[0])",
        "(table[-1], fresh[0])",
        "the shared block is still in the table: the copy takes its place",
    ),
    (
        "append_cow",
        "(table.pop(), fresh[0])",
        "(table.pop(), fresh[-1])",
        "the copy has to stand where the shared block stood: before the other new blocks",
    ),
    ("append_cow", "return copies", "return []", "the block was replaced, but its content not copied: return the pair"),
    (
        "register",
        "_block_hash(parent,",
        "_block_hash(None,",
        "each block was hashed as if it were the first: hand on the parent's hash",
    ),
    (
        "register",
        "len(tokens) // size)",
        "-(-len(tokens) // size))",
        "the last block is not full and may still be written: no hash",
    ),
    (
        "register",
        "pool.hashes[table[i]] = parent",
        "pass",
        "pool.hashes must tell a block's hash too: allocate needs it",
    ),
    (
        "register",
        "        pool.hashes[table[i]] = parent\n        pool.cached[parent] = table[i]",
        "        if parent not in pool.cached:\n"
        "            pool.hashes[table[i]], pool.cached[parent] = parent, table[i]",
        "a second block with the same content gets its hash, too; only its entry in pool.cached may be left out",
    ),
    ("register", "pool.cached[parent] = table[i]", "pass", "pool.cached must lead from the hash to the block"),
    (
        "reuse_prefix",
        "(len(tokens) - 1) // size",
        "len(tokens) // size",
        "the whole prompt came from the cache: one token must be left over, or nothing gives the logits for the next",
    ),
    (
        "reuse_prefix",
        "(len(tokens) - 1) // size",
        "len(tokens) // size - 1",
        "only the last *token* must be left over; where the prompt ends inside a block, all full blocks may be found",
    ),
    (
        "reuse_prefix",
        "break",
        "continue",
        "behind a block that is not known nothing may be used: stop at the first miss",
    ),
    (
        "reuse_prefix",
        "if parent not in pool.cached:",
        "if not pool.cached.get(parent):",
        "block 0 is a block like any other, and `not 0` is true: test `is None`",
    ),
    (
        "reuse_prefix",
        "pool.free.remove(block)",
        "pool.free.remove(block)\n            pool.cached.pop(pool.hashes[block], None)\n"
        "            pool.hashes[block] = None",
        "a block that was found can be found again: its hash goes only when allocate hands it out",
    ),
    ("reuse_prefix", "pool.refs[block] += 1", "pass", "a block that is found has one more holder: its count goes up"),
    (
        "reuse_prefix",
        "if pool.refs[block] == 0:\n            pool.free.remove(block)",
        "pass",
        "a block that is found and was free must leave pool.free, or it is handed out a second time",
    ),
    (
        "reuse_prefix",
        "if pool.refs[block] == 0:",
        "if True:",
        "a block that is found may be held by others: only one that nobody held is in pool.free",
    ),
    (
        "reuse_prefix",
        "_block_hash(parent,",
        "_block_hash(None,",
        "each block was looked up as if it were the first: hand on the parent's hash",
    ),
    (
        "allocate",
        "if name is not None and pool.cached.get(name) == block:",
        "if False:",
        "a block that is handed out is still found under its old hash: delete its entry in pool.cached",
    ),
    (
        "allocate",
        "name, pool.hashes[block] = pool.hashes[block], None",
        "name = None",
        "a block that is handed out is still found under its old hash: delete it from pool.cached and pool.hashes",
    ),
]


@cache
def slipped(name: str, old: str, new: str) -> Callable[..., Any]:
    """The right function `name` with a piece of its text replaced."""
    source = inspect.getsource(BASE[name])
    if old not in source:
        raise ValueError(f"{name} has no {old!r}")
    namespace = dict(globals())
    exec(source.replace(old, new), namespace)
    return namespace[f"_{name}"]
