"""What goes wrong most often in problem set 03: what to say of it, and a wrong function that does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specdec_course.checks.mistakes import Mistake
from specdec_course.checks.ps03_block_pool.pools import RIGHT, Pool, slots

Wrong = Callable[..., Any]
allocate, append, truncate, block_hash = (RIGHT[name] for name in ("allocate", "append", "truncate", "block_hash"))


def _up(tokens: int, size: int) -> int:
    return -(-tokens // size)


def _grows(count: Callable[[int, int, int, int], int]) -> Wrong:
    """An append that takes so many blocks, by new tokens, tokens so far, block size, and blocks so far."""

    def wrong(pool: Pool, table: list[int], length: int, n: int) -> list[int]:
        table += allocate(pool, count(n, length, pool.block_size, len(table)))
        return slots(table, pool.block_size, range(length, length + n))

    return wrong


def _copies(when: Callable[[int, int, int, int], bool]) -> Wrong:
    """An append_cow that replaces the last block when this is so, by its count, new tokens, length, block size."""

    def wrong(pool: Pool, table: list[int], length: int, n: int) -> list[tuple[int, int]]:
        keep = len(table) - (bool(table) and when(pool.refs[table[-1]], n, length, pool.block_size))
        old, table[keep:] = table[keep:], allocate(pool, _up(length + n, pool.block_size) - keep)
        for block in old:
            pool.refs[block] -= 1
        return list(zip(old, table[keep:]))

    return wrong


def _registers(how: str) -> Wrong:
    def wrong(pool: Pool, table: list[int], tokens: Sequence[int]) -> None:
        parent, size = None, pool.block_size
        for i in range(_up(len(tokens), size) if how == "up" else len(tokens) // size):
            if how == "skip" and pool.hashes[table[i]] is not None:
                continue
            name = block_hash(parent, tokens[0 if how == "all" else i * size : (i + 1) * size])
            parent = None if how == "first" else name
            if how == "twin" and name in pool.cached:
                continue
            if how != "no hash":
                pool.hashes[table[i]] = name
            if how != "no entry":
                pool.cached[name] = table[i]

    return wrong


def _finds(
    prompt: Callable[[Pool, list[int]], list[int]] = lambda pool, tokens: tokens,
    take: Callable[[Pool, int], Any] = lambda pool, block: True,
    parents: bool = True,
    stop: bool = True,
    always: bool = False,
) -> Wrong:
    """A reuse_prefix that looks up another prompt, or in another way."""

    def wrong(pool: Pool, given: list[int]) -> list[int]:
        size, parent, table, tokens = pool.block_size, None, [], prompt(pool, given)
        for i in range((len(tokens) - 1) // size):
            parent = block_hash(parent if parents else None, tokens[i * size : (i + 1) * size])
            if parent in pool.cached and take(pool, pool.cached[parent]):
                table.append(pool.cached[parent])
            elif stop:
                break
        return hold(pool, table, always)

    return wrong


def hold(pool: Pool, table: list[int], always: bool = False) -> list[int]:
    """A table that was found takes hold of its blocks."""
    for block in table:
        if pool.refs[block] == 0 or always:
            pool.free.remove(block)
        pool.refs[block] += 1
    return table


WRONG: dict[str, dict[str, Wrong]] = {
    "append": {
        "the room left in the last block is not used": _grows(lambda n, length, size, have: _up(n, size)),
        "one block too many at a block border: round up": _grows(lambda n, at, size, have: (at + n) // size + 1 - have),
        "rounded down: a block that is begun is needed": _grows(lambda n, at, size, have: (at + n) // size - have),
        "`table = ...` makes a new list: change the old one": lambda pool, t, at, n: append(pool, list(t), at, n),
    },
    "truncate": {
        "a negative slice goes wrong where nothing is to be dropped: table[-0:] is the whole table": (
            lambda pool, t, at: truncate(pool, t, at if _up(at, pool.block_size) < len(t) else 0)
        ),
        "rounded down: a block that holds some of the kept tokens stays": (
            lambda pool, t, at: truncate(pool, t, at - at % pool.block_size)
        ),
        "one block too many is kept at a block border: round up": (
            lambda pool, t, at: truncate(pool, t, min(at + 1, len(t) * pool.block_size))
        ),
    },
    "append_cow": {
        "a shared, half-full block was written without a copy": _copies(lambda refs, n, at, size: False),
        "a full block is not written: look at length % block_size": _copies(
            lambda refs, n, at, size: n > 0 and refs > 1
        ),
        "a table that holds the block alone writes in place": _copies(
            lambda refs, n, at, size: n > 0 and at % size > 0
        ),
        "where n = 0 nothing is copied": _copies(lambda refs, n, at, size: at % size > 0 and refs > 1),
    },
    "block_hash": {
        "what came before counts: take in the parent's hash": lambda parent, tokens: tuple(tokens),
        "the order of the tokens counts: hash the tuple of them": lambda parent, tokens: (parent, *sorted(tokens)),
        "the order of the blocks counts, and + and ^ do not see it: hash the pair of parent and tokens": (
            lambda parent, tokens: tuple(sorted([*(parent or ()), tuple(tokens)]))
        ),
        "a byte holds 0 to 255, and there are more tokens": lambda parent, tokens: (parent, *(t % 256 for t in tokens)),
        "digits run together, as in [1, 23] and [12, 3]": lambda parent, tokens: (
            (parent or "") + "".join(map(str, tokens))
        ),
    },
    "register": {
        "each block was hashed as if it were the first: hand on the parent's hash": _registers("first"),
        "a block that has its hash is skipped, and so is not the parent of the next": _registers("skip"),
        "hash the tokens of this block alone: its parent's hash stands for those before": _registers("all"),
        "the last block is not full and may still be written: no hash": _registers("up"),
        "pool.hashes must hold a block's hash too: allocate needs it": _registers("no hash"),
        "pool.cached must lead from the hash to the block": _registers("no entry"),
        "a second block with the same content gets its hash, too; only its entry may be left out": _registers("twin"),
    },
    "reuse_prefix": {
        "one token must be left over, or nothing gives the logits for the next": _finds(lambda pool, t: [*t, 0]),
        "only the last *token* must be left over": _finds(lambda pool, t: t[: len(t) - pool.block_size + 1]),
        "after a block that is not known nothing may be used: stop at the first miss": _finds(stop=False),
        "a block that another table holds can be shared": _finds(take=lambda pool, block: pool.refs[block] == 0),
        "block 0 is a block like any other, and `not 0` is true: test `is None`": _finds(
            take=lambda pool, block: block
        ),
        "a block that is found may be held by others: only one that nobody held is in pool.free": _finds(always=True),
        "each block was looked up as if it were the first: hand on the parent's hash": _finds(parents=False),
    },
}
MISTAKES = {name: [Mistake(says, function) for says, function in wrong.items()] for name, wrong in WRONG.items()}
