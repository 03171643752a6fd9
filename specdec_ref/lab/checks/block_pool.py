"""Checks of problem set 03, the block pool.

The learner's functions are driven with random operations. What is expected comes from plain dictionaries: which table
holds which blocks, which tokens a sequence must read. Operations that fail are shortened before they are shown.

Parts do not depend on each other: a part passes if it holds with the learner's other functions, or with the right ones
(BASE) in their place. Where it fails, known slips (SLIPS) are run on the same operations; the one that does exactly
what the learner's code did is named.
"""

from __future__ import annotations

import inspect
import random
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from specdec_ref.lab.checks import Check, CheckFailed, wrong

Op = tuple[Any, ...]  # ("append", "a", 3): operation, sequence, number
Setup = tuple[int, int, tuple[int, ...]]  # blocks, tokens a block, the queue of free blocks
Functions = dict[str, Callable[..., Any]]
NEXT_LINE = "\n            "  # under the values of a message


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


class _Bad(Exception):
    """Something that does not hold; `kind` says what sort of thing, so that shortening keeps to it."""

    def __init__(self, kind: str, what: str, got: Any = None, expected: Any = None, likely: str = "") -> None:
        super().__init__(what)
        self.kind, self.what, self.got, self.expected, self.likely = kind, what, got, expected, likely


class _World:
    """A pool, the sequences on it, and what must be true of them by plain bookkeeping.

    look: what is judged, of "result", "books", "slots", "refused", "text", "copies", "hashes", "hits", "left over".
    judge: False only records what happens, to compare two sets of functions.
    """

    def __init__(self, functions: Functions, setup: Setup, look: Collection[str], judge: bool = True) -> None:
        blocks, size, queue = setup
        self.functions, self.look, self.judge = functions, look, judge
        self.pool = Pool(blocks, size)
        self.pool.free = deque(queue)
        self.tables: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = {}  # what each sequence must read
        self.gone: dict[str, list[int]] = {}  # tables that were released
        self.memory: dict[int, int] = {}  # what lies in each slot
        self.prefix: dict[int, tuple[int, ...]] = {}  # hashed blocks: all tokens up to the block's end
        self.doubtful: set[tuple[int, ...]] = set()  # two blocks held this, one is gone: found or not, both are right
        self.written = 0
        self.lines = [f"pool = Pool({blocks}, {size})"]
        if list(queue) != list(range(blocks)):
            self.lines.append(f"pool.free = deque({list(queue)})")
        self.seen: list[Any] = []

    # Bookkeeping

    def holders(self, block: int) -> int:
        return sum(block in table for table in self.tables.values())

    def unheld(self) -> set[int]:
        return set(range(len(self.pool.refs))) - {b for t in self.tables.values() for b in t}

    def blocks_for(self, length: int) -> int:
        return -(-length // self.pool.block_size)

    def fail(self, kind: str, what: str, got: Any = None, expected: Any = None, likely: str = "") -> None:
        if self.judge and (kind in self.look or kind == "raised"):
            raise _Bad(kind, what, got, expected, likely)

    def snapshot(self) -> Any:
        return list(self.pool.refs), sorted(self.pool.free), {x: list(t) for x, t in self.tables.items()}

    def call(
        self, line: str, name: str, *arguments: Any, refuse: type[Exception] | None = None, because: str = ""
    ) -> Any:
        """Call a function on the pool. refuse: the error that is due, if one is; then the operation ends here."""
        self.lines.append(line)
        before, error, result = self.snapshot(), None, None
        try:
            result = self.functions[name](self.pool, *arguments)
        except NotImplementedError:
            raise
        except Exception as raised:  # whatever the learner's code raises
            error = raised
        self.pool.free = deque(self.pool.free)
        found = sorted(self.pool.cached.values()), [h is not None for h in self.pool.hashes]
        self.seen.append((type(error).__name__, _plain(result), self.snapshot(), found))
        if not refuse:
            if error:
                self.fail("raised", f"`{line}` raised an error", _told(error), "no error", self._why_raised(error))
                raise _Stop
            return result
        if error is None:
            self.fail(
                "refused", f"`{line}` went through", _plain(result) or "no error", f"{refuse.__name__}: {because}"
            )
        elif not isinstance(error, refuse):
            self.fail("refused", f"`{line}` raised another error", _told(error), f"{refuse.__name__}: {because}")
        elif self.snapshot() != before:
            changed = [
                f"{n} {list(a) if isinstance(a, tuple) else a} -> {b}"
                for n, a, b in zip(("counts", "free", "tables"), before, self.snapshot())
                if a != b
            ]
            self.fail(
                "refused",
                f"`{line}` was refused, as it should be, but not all is as it was before",
                "; ".join(changed),
                "nothing has changed",
                "all or nothing: check everything first, then change; or blocks are lost",
            )
        raise _Stop

    def _why_raised(self, error: Exception) -> str:
        if isinstance(error, MemoryError):
            free = len(self.unheld())
            return f"{free} blocks are held by no table: as many as are free may be asked for (> or >=?), and none lost"
        return ""

    def books(self) -> None:
        """Counts and queue agree with the tables."""
        for block, count in enumerate(self.pool.refs):
            holders = self.holders(block)
            if count != holders:
                likely = "this block can never be free again" if count > holders else "it will be free while it is read"
                self.fail(
                    "books", f"block {block} is held by {holders} tables, and counts {count}", count, holders, likely
                )
        queue = list(self.pool.free)
        twice = sorted({b for b in queue if queue.count(b) > 1})
        if twice:
            likely = "it will be handed out to two sequences"
            self.fail("books", f"block {twice[0]} is in pool.free more than once", queue, sorted(self.unheld()), likely)
        for block in sorted(set(queue) ^ self.unheld()):
            held = block not in self.unheld()
            what = "is held, and in pool.free as well" if held else "is held by nobody, and missing in pool.free"
            likely = "it will be handed out a second time" if held else "it can never be handed out again: a leak"
            self.fail("books", f"block {block} {what}", queue, sorted(self.unheld()), likely)

    def reads(self) -> None:
        """Every sequence reads what was written to it."""
        for x, tokens in self.tokens.items():
            size, table = self.pool.block_size, self.tables[x]
            got = [
                self.memory.get(table[i // size] * size + i % size)
                for i in range(len(tokens))
                if i // size < len(table)
            ]
            if got != tokens:
                likely = (
                    "it reads what another sequence wrote into a block that both hold"
                    if len(got) == len(tokens)
                    else ""
                )
                self.fail(
                    "text", f"sequence {x} (table {table}) does not read what was written to it", got, tokens, likely
                )

    def hashed(self) -> None:
        """Full, registered blocks have a hash that leads to such a block; all others have none."""
        pool, entries = self.pool, set(self.pool.cached.values())
        for block in range(len(pool.refs)):
            prefix = self.prefix.get(block)
            if prefix is None and (pool.hashes[block] is not None or block in entries):
                where = "pool.cached leads to it" if block in entries else f"pool.hashes[{block}] is not None"
                likely = "only full blocks get a hash, and one that is handed out again loses its old one"
                self.fail(
                    "hashes", f"block {block} holds nothing that may be found, and has a hash", where, "none", likely
                )
            if prefix is not None and prefix not in self.doubtful:
                twins = [b for b, p in self.prefix.items() if p == prefix]
                name = pool.hashes[block]
                if len(twins) == 1 and name is None:
                    likely = "set it together with the entry in pool.cached"
                    self.fail(
                        "hashes",
                        f"block {block} is full and registered: pool.hashes[{block}]",
                        "None",
                        "its hash",
                        likely,
                    )
                if name is not None and pool.cached.get(name) not in twins:
                    what = (
                        f"block {block} holds the end of {list(prefix)}; pool.cached does not lead from its hash to it"
                    )
                    self.fail("hashes", what, f"block {pool.cached.get(name)}", f"block {block}")

    def handed_out(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            prefix = self.prefix.pop(block, None)
            if prefix is not None:
                twin = prefix in self.prefix.values()
                (self.doubtful.add if twin else self.doubtful.discard)(prefix)

    def fresh(self, blocks: list[Any], n: int, free: set[int], line: str) -> None:
        """`blocks` are n different ones that were free."""
        if len(blocks) != n or len(set(blocks)) != n or not set(blocks) <= free:
            self.fail("result", f"`{line}` took {blocks}", blocks, f"{n} different blocks of {sorted(free)}")

    # Operations; one that does not apply to the state does nothing

    def do(self, op: Op) -> None:
        with suppress(_Stop):
            getattr(self, f"do_{op[0]}")(*op[1:])
        self.books()

    def do_allocate(self, x: str, n: int) -> None:
        free, line = self.unheld(), f"{x} = allocate(pool, {n})"
        if x in self.tables or (n > len(free) and "refused" not in self.look):
            return
        refuse = MemoryError if n > len(free) else None
        taken = _blocks(self.call(line, "allocate", n, refuse=refuse, because=f"only {len(free)} are free"), line)
        self.lines[-1] += f"  # {taken}"
        self.tables[x], self.tokens[x] = taken, []
        self.fresh(taken, n, free, line)

    def do_release(self, x: str) -> None:
        if x in self.tables:
            table = self.gone[x] = self.tables.pop(x)
            del self.tokens[x]
            self.call(f"release(pool, {table})", "release", list(table))

    def do_wrongly(self, x: str, how: str, where: str) -> None:
        """A release that has to be refused; what is wrong stands in front or behind."""
        held, free = self.tables.get(x), sorted(self.unheld())
        if how == "again" and held is None and set(free) & set(self.gone.get(x, [])):
            table = list(self.gone[x])
            because = f"{[b for b in table if b in free]} are free already"
        elif how == "mixed" and held and free:
            table, because = [*held, free[0]], f"block {free[0]} is free already"
        elif how == "twice" and held:
            table, because = [*held, held[0]], f"block {held[0]} is named twice"
        elif how == "unknown" and held:
            number = len(self.pool.refs) if len(held) % 2 else -1
            table, because = [*held, number], f"there is no block {number}"
        else:
            return
        if where == "front" and how != "again":
            table = [table[-1], *table[:-1]]
        self.call(f"release(pool, {table})", "release", table, refuse=ValueError, because=because)

    def _grow(self, x: str, n: int, name: str) -> tuple[Any, list[int], set[int]]:
        """Call append or append_cow; its result, the table before, the blocks that were free."""
        if x not in self.tables:
            self.tables[x], self.tokens[x] = [], []
            self.lines.append(f"{x} = []")
        table, length, free = self.tables[x], len(self.tokens[x]), self.unheld()
        need = self.blocks_for(length + n) - len(table) + self._must_copy(x, n)
        if need > len(free) and "refused" not in self.look:
            raise _Stop
        old, refuse = list(table), MemoryError if need > len(free) else None
        because = f"it takes {need} blocks, {len(free)} are free"
        line = f"{name}(pool, {x}, {length}, {n})"
        result = self.call(line, name, table, length, n, refuse=refuse, because=because)
        self.lines[-1] += f"  # {x} is {table}"
        self.tables[x] = table
        return result, old, free

    def _must_copy(self, x: str, n: int) -> bool:
        table = self.tables[x]
        return bool(n and table) and len(self.tokens[x]) % self.pool.block_size > 0 and self.holders(table[-1]) > 1

    def _write(self, x: str, n: int) -> None:
        size, table = self.pool.block_size, self.tables[x]
        for i in range(len(self.tokens[x]), len(self.tokens[x]) + n):
            self.written += 1
            self.tokens[x].append(self.written)
            if i // size < len(table):
                self.memory[table[i // size] * size + i % size] = self.written

    def do_append(self, x: str, n: int) -> None:
        if x in self.tables and self._must_copy(x, n):
            return
        result, old, free = self._grow(x, n, "append")
        size, table, length = self.pool.block_size, self.tables[x], len(self.tokens[x])
        line = f"append(pool, {x}, {length}, {n})"
        total = self.blocks_for(length + n)
        if len(table) != total or table[: len(old)] != old:
            what = f"the table for {length + n} tokens in blocks of {size} was {old}"
            self.fail("result", what, f"{len(table)} blocks: {table}", f"{total} blocks that begin with {old}")
        self.fresh(table[len(old) :], total - len(old), free, line)
        if len(table) >= total:
            slots = [table[i // size] * size + i % size for i in range(length, length + n)]
            got = _numbers(result)
            if got != slots:
                what = f"`{line}` returned other slots than table {table} says, with blocks of {size}"
                self.fail("slots", what, result if got is None else got, slots)
        self._write(x, n)

    def do_append_cow(self, x: str, n: int) -> None:
        must = x in self.tables and self._must_copy(x, n)
        result, old, _ = self._grow(x, n, "append_cow")
        length, table, size = len(self.tokens[x]), self.tables[x], self.pool.block_size
        pairs = _pairs(result)
        self.lines[-1] += f", copies {pairs}"
        kept = old[:-1] if must else old
        total = self.blocks_for(length + n)
        if len(table) != total or table[: len(kept)] != kept or (must and table[len(old) - 1] == old[-1]):
            what = f"table {old} of {length} tokens grew by {n}" + (
                f"; its last block, {old[-1]}, is shared" if must else ""
            )
            shape = f"{total} blocks that begin with {kept}" + (", then the copy's block" if must else "")
            self.fail("copies", what, f"{len(table)} blocks: {table}", shape)
        due = [(old[-1], table[len(old) - 1])] if must and len(table) >= len(old) else []
        if pairs != due:
            self.fail("copies", f"what has to be copied before {n} tokens are written behind {length}", pairs, due)
        for source, target in pairs:
            for offset in range(size):
                self.memory[target * size + offset] = self.memory.get(source * size + offset, 0)
        self._write(x, n)
        self.reads()

    def do_fork(self, x: str, y: str) -> None:
        if x not in self.tables or y in self.tables:
            return
        table, line = self.tables[x], f"{y} = fork(pool, {x})"
        old = list(table)
        result = self.call(line, "fork", table)
        new = result if isinstance(result, list) else _blocks(result, line)
        self.tables[y], self.tokens[y] = new, list(self.tokens[x])
        if new != old or table != old:
            self.fail("result", f"`{line}`, where {x} was {old}: {x} is now {table}", new, f"{old}, and {x} as before")
        if new is table:
            likely = "return a copy: when one of them grows, both would"
            self.fail("result", f"`{line}` returned the same list", f"{y} is {x}", "a list of its own", likely)

    def do_truncate(self, x: str, length: int) -> None:
        if x not in self.tables or length > len(self.tokens[x]):
            return
        table, line = self.tables[x], f"truncate(pool, {x}, {length})"
        old = list(table)
        self.call(line, "truncate", table, length)
        self.lines[-1] += f"  # {x} is {table}"
        del self.tokens[x][length:]
        due = old[: self.blocks_for(length)]
        if table != due:
            self.fail("result", f"`{line}`, blocks of {self.pool.block_size}, where {x} was {old}", table, due)

    def do_parents_first(self) -> None:
        """As if the first blocks of each sequence had been freed first."""
        queue = sorted(self.pool.free, key=lambda b: (b not in self.prefix, len(self.prefix.get(b, ()))))
        self.pool.free = deque(queue)
        self.lines.append(f"pool.free = deque({queue})")

    def do_start(self, x: str, prompt: tuple[int, ...]) -> None:
        """A prompt comes: what is known is reused, the rest gets new blocks, full blocks are registered."""
        tokens, size = list(prompt), self.pool.block_size
        if x in self.tables or self.blocks_for(len(tokens)) > len(self.unheld()):
            return
        line = f"{x} = reuse_prefix(pool, {tokens})"
        table = _blocks(self.call(line, "reuse_prefix", list(tokens)), line)
        self.lines[-1] += f"  # {table}"
        self.tables[x], self.tokens[x] = table, tokens
        self._judge_hit(line, table, tokens)
        self.books()
        need = self.blocks_for(len(tokens)) - len(table)
        if need < 0:
            raise _Stop
        line, free = f"{x} += allocate(pool, {need})", self.unheld()
        new = _blocks(self.call(line, "allocate", need), line)
        self.lines[-1] += f"  # {new}"
        self.handed_out(new)
        table += new
        self.fresh(new, need, free, line)
        self.hashed()
        self.call(f"register(pool, {x}, {tokens})", "register", list(table), list(tokens))
        for i, block in enumerate(table[: len(tokens) // size]):
            self.prefix[block] = tuple(tokens[: (i + 1) * size])
        self.hashed()

    def _judge_hit(self, line: str, table: list[int], tokens: list[int]) -> None:
        size, known = self.pool.block_size, set(self.prefix.values())
        for i, block in enumerate(table):
            prefix = tuple(tokens[: (i + 1) * size])
            if len(prefix) == (i + 1) * size and self.prefix.get(block) != prefix:
                holds = list(self.prefix.get(block, ()))
                got = f"block {block}, which holds " + (
                    f"the end of {holds}" if holds else "nothing that is registered"
                )
                likely = "its keys and values were computed behind other tokens: another user's text"
                what = f"`{line}`: what is found for the end of {list(prefix)}"
                self.fail("hits", what, got, "a block that was computed behind exactly these tokens", likely)
        most, sure = 0, 0
        while (most + 1) * size < len(tokens) and tuple(tokens[: (most + 1) * size]) in known:
            most += 1
            if sure == most - 1 and tuple(tokens[: most * size]) not in self.doubtful:
                sure = most
        if len(table) * size >= len(tokens):
            self.fail(
                "left over",
                f"`{line}`: nothing is left to compute of {len(tokens)} tokens",
                table,
                f"{most} blocks of {size}",
            )
        if len(table) < sure:
            prefixes = {tuple(tokens[: (i + 1) * size]) for i in range(sure)}
            held = any(self.holders(b) for b, p in self.prefix.items() if p in prefixes)
            likely = "a block that another table holds can be shared" if held else "a free block can still be found"
            what = f"`{line}` found too little: {tokens[: most * size]} is known"
            self.fail("hits", what, table, f"{most} blocks", likely)


class _Stop(Exception):
    """The operation has ended early, as it should or because an error was recorded."""


def _plain(result: Any) -> Any:
    """A result that can be compared and shown."""
    pairs = _pairs(result)
    return pairs if pairs else _numbers(result)


def _numbers(result: Any) -> list[int] | None:
    try:
        return [int(x) for x in result]
    except (TypeError, ValueError):
        return None


def _blocks(result: Any, line: str) -> list[int]:
    blocks = _numbers(result)
    if blocks is None:
        raise _Bad(
            "raised",
            f"`{line}` returned no list of blocks",
            repr(result),
            "a list of block numbers",
            "is there a return?",
        )
    return blocks


def _pairs(result: Any) -> list[tuple[int, int]]:
    try:
        return [(int(a), int(b)) for a, b in (result if result is not None else [])]
    except (TypeError, ValueError):
        return []


def _told(error: Exception) -> str:
    where = [f for f in traceback.extract_tb(error.__traceback__) if "specdec_ref" not in f.filename]
    line = f" (line {where[-1].lineno} of its cell: {where[-1].line})" if where and where[-1].line else ""
    return f"{type(error).__name__}: {error}{line}" if str(error) else f"{type(error).__name__}{line}"


# Play, shorten, name the mistake


def _play(functions: Functions, setup: Setup, ops: Sequence[Op], look: Collection[str]) -> tuple[_World, _Bad | None]:
    world = _World(functions, setup, look)
    for op in ops:
        try:
            world.do(op)
        except _Bad as bad:
            return world, bad
        except (NotImplementedError, CheckFailed):
            raise
        except Exception as error:  # the state is such that the operation cannot be tried
            return world, _Bad("raised", f"after this the pool is beyond use ({type(error).__name__})")
    return world, None


def _trace(functions: Functions, setup: Setup, ops: Sequence[Op], look: Collection[str]) -> list[Any]:
    """What a set of functions does, right or not."""
    world = _World(functions, setup, look, judge=False)
    for op in ops:
        try:
            world.do(op)
        except Exception as error:
            world.seen.append(type(error).__name__)
    return world.seen


def _shorten(ops: list[Op], fails: Callable[[list[Op]], bool]) -> list[Op]:
    """Leave operations out, and make numbers and prompts smaller, as long as it still fails."""
    going = True
    while going:
        going = False
        for i in reversed(range(len(ops))):
            options = [ops[:i] + ops[i + 1 :]]
            last = ops[i][-1]
            if isinstance(last, int) and last > 1:
                options += [ops[:i] + [(*ops[i][:-1], n)] + ops[i + 1 :] for n in (last // 2, last - 1)]
            elif isinstance(last, tuple) and len(last) > 1:
                options += [ops[:i] + [(*ops[i][:-1], last[:-1])] + ops[i + 1 :]]
            shorter = next((o for o in options if fails(o)), None)
            if shorter is not None:
                ops, going = shorter, True
    return ops


@cache
def _slipped(name: str, old: str, new: str) -> Callable[..., Any]:
    """The right function `name` with a piece of its text replaced."""
    source = inspect.getsource(BASE[name])
    if old not in source:
        raise ValueError(f"{name} has no {old!r}")
    namespace = dict(globals())
    exec(source.replace(old, new), namespace)
    return namespace[f"_{name}"]


def _likely(
    names: Sequence[str], functions: Functions, stories: Sequence[tuple[Setup, list[Op]]], look: Collection[str]
) -> str:
    """The slip that fails in all stories, doing what the learner's functions do, in words; or nothing."""
    others = {n: f for n, f in BASE.items() if n not in names}
    done = [_trace({**functions, **others}, *story, look) for story in stories]
    for name, old, new, words in SLIPS:
        if name in names:
            slipped = {**BASE, name: _slipped(name, old, new)}
            if all(
                _play(slipped, *story, look)[1] and _trace(slipped, *story, look) == seen
                for story, seen in zip(stories, done)
            ):
                return words
    return ""


def _given(what: str, lines: Sequence[str], most: int = 24) -> str:
    """What is wrong, and below it the operations as code to paste; where there are too many, the last ones."""
    lines = [lines[0], "...", *lines[1 - most :]] if len(lines) > most else list(lines)
    return f"{what}\n  given     {NEXT_LINE.join(lines)}"


def _drive(names: Sequence[str], functions: Functions, setup: Setup, ops: list[Op], look: Collection[str]) -> None:
    """Raise CheckFailed, with few operations, if something does not hold."""
    _, first = _play(functions, setup, ops, look)
    if first is None:
        return

    def fails(fewer: list[Op], setup: Setup = setup) -> bool:
        bad = _play(functions, setup, fewer, look)[1]
        return bad is not None and bad.kind == first.kind

    whole = (setup, ops)
    ops = _shorten(ops, fails)
    plain = (setup[0], setup[1], tuple(range(setup[0])))
    short = (plain if fails(ops, plain) else setup, ops)
    world, bad = _play(functions, *short, look)
    assert bad is not None
    # On a short story several slips may look alike; the long one tells them apart.
    mistake = _likely(names, functions, [short, whole], look) or bad.likely or _likely(names, functions, [short], look)
    raise wrong(_given(bad.what, world.lines), got=bad.got, expected=bad.expected, mistake=mistake)


@contextmanager
def _standing_on(functions: Functions, learners: Sequence[Any]) -> Iterator[None]:
    """While it lasts, the learners' functions call `functions` where they call one of the notebook's by name."""
    spaces = {id(g): g for f in learners if isinstance(g := getattr(f, "__globals__", None), dict)}.values()
    before = [(space, {n: space[n] for n in functions if n in space}) for space in spaces]
    try:
        for space in spaces:
            space.update(functions)
        yield
    finally:
        for space, old in before:
            for name in functions:
                space.pop(name, None)
            space.update(old)


def _part(
    title: str,
    names: Sequence[str],
    story: Callable[[random.Random, Collection[str]], tuple[Setup, list[Op]]],
    look: Collection[str],
    rounds: int = 60,
) -> Callable[..., None]:
    """A part that drives the functions `names` with random operations and judges what is in `look`."""

    def look_at(functions: Functions, rng: random.Random) -> None:
        for _ in range(rounds):
            _drive(names, functions, *story(rng, look), look)

    return _either(title, names, look_at)


def _failure(error: Exception) -> Exception:
    """What a part raises, for what went wrong in it."""
    if isinstance(error, _Bad):
        return wrong(error.what, got=error.got, expected=error.expected, mistake=error.likely)
    return error


def _either(
    title: str, names: Sequence[str], look_at: Callable[[Functions, random.Random], Any]
) -> Callable[..., None]:
    """A part that holds with the learner's other functions, or else with the right ones in their place."""

    def part(*arguments: Any) -> None:
        *learners, rng = arguments
        theirs, state = dict(zip(names, learners)), rng.getstate()
        others: Functions = {}
        for space in (getattr(f, "__globals__", {}) for f in learners):
            others |= {n: space[n] for n in BASE if n not in names and callable(space.get(n))}
        try:
            return look_at({**BASE, **others, **theirs}, rng)
        except Exception as error:
            own = _failure(error)
        rng.setstate(state)
        try:
            with _standing_on({n: f for n, f in BASE.items() if n not in names}, learners):
                return look_at({**BASE, **theirs}, rng)
        except Exception as error:
            right = _failure(error)
        # A signature of the learner's own: then the right functions do not fit theirs.
        raise own if "TypeError" in str(right) and "TypeError" not in str(own) else right from None

    part.__name__ = title
    return part


# Random operations for each of the functions


def _mixed(kinds: str, steps: int = 20) -> Callable[[random.Random, Collection[str]], tuple[Setup, list[Op]]]:
    """Operations of these kinds, a word each, repeated where they shall come more often."""

    def story(rng: random.Random, look: Collection[str]) -> tuple[Setup, list[Op]]:
        blocks, size = rng.randint(4, 12), rng.randint(2, 4)
        ops: list[Op] = []
        alive: list[str] = []
        for _ in range(steps):
            kind, x = rng.choice(kinds.split()), rng.choice(alive or ["a"])
            new = next((name for name in "abcdef" if name not in alive), x)
            if kind == "allocate":
                ops.append((kind, new, rng.choice((0, 1, 1, 2, 3, blocks // 2 + 1))))
                alive.append(new)
            elif kind in ("append", "append_cow"):
                x = rng.choice((x, x, new)) if len(alive) < 4 else x
                ops.append((kind, x, rng.choice((0, 1, 1, 2, size, size + 1, rng.randint(1, 3 * size)))))
                alive.append(x)
            elif kind == "truncate":
                ops.append((kind, x, rng.randint(0, 3 * size)))
            elif kind == "fork":
                ops.append((kind, x, new))
                alive.append(new)
            elif kind == "release":
                ops.append((kind, x))
                alive = [name for name in alive if name != x]
            else:
                ops.append(("wrongly", x if kind != "again" else new, kind, rng.choice(("front", "back"))))
            alive = sorted(set(alive))
        return (blocks, size, tuple(rng.sample(range(blocks), blocks))), ops

    return story


def _prompts(rng: random.Random, look: Collection[str]) -> tuple[Setup, list[Op]]:
    """Prompts over two tokens, so that beginnings are often equal, and releases."""
    blocks, size = rng.randint(4, 10), rng.choice((2, 2, 3))
    texts = [[rng.choice((1, 2)) for _ in range(4 * size)] for _ in range(2)]
    ops: list[Op] = []
    if rng.random() < 0.2:  # the first block is forgotten, those behind it are not
        known = ("start", "a", tuple(texts[0][: 3 * size + 1]))
        ops = [known, ("release", "a"), ("parents_first",), ("start", "b", (3,) * size), known]
    while len(ops) < 16:
        x = rng.choice("abc")
        if rng.random() < 0.1:
            ops.append(("parents_first",))
        elif rng.random() < 0.6:
            text = rng.choice([texts[0], texts[0], texts[1], [rng.choice((1, 2)) for _ in range(4 * size)]])
            length = rng.randint(1, 3) * size + rng.choice((0, 0, 1, rng.randint(1 - size, size - 1)))
            ops.append(("start", x, tuple(text[:length])))
        else:
            ops.append(("release", x))
    return (blocks, size, tuple(rng.sample(range(blocks), blocks))), ops


# Parts of another kind


def _no_leak(f: Functions, rng: random.Random) -> None:
    """Thousands of requests: append drafts, roll back, go on, end. Nothing may stay behind."""
    blocks, size = 12, rng.choice((4, 16))
    pool = Pool(blocks, size)
    for cycle in range(1, 2001):
        table: list[int] = []
        length, lines = 0, [f"pool = Pool({blocks}, {size})", "table = []"]
        for _ in range(3):
            grown = rng.randint(1, 2 * size)
            f["append"](pool, table, length, grown)
            kept = rng.choice((length, length + grown, rng.randint(length, length + grown)))
            lines += [f"append(pool, table, {length}, {grown})", f"truncate(pool, table, {kept})"]
            f["truncate"](pool, table, kept)
            pool.free = deque(pool.free)
            length = kept
        f["release"](pool, list(table))
        pool.free = deque(pool.free)
        if sorted(pool.free) != list(range(blocks)) or any(pool.refs):
            got = f"free: {sorted(pool.free)}, counts: {pool.refs}"
            likely = "a block cut off by truncate is to be let go of once, and to leave the table; others stay"
            what = f"after {cycle} request{'s' if cycle > 1 else ''} not all blocks are free again"
            what = _given(what, [*lines, "release(pool, table)"])
            raise wrong(what, got=got, expected=f"all {blocks} free, all counts 0", mistake=likely)


def _no_leak_part(f: Functions, rng: random.Random) -> None:
    state = rng.getstate()
    try:
        _no_leak(f, rng)
    except CheckFailed as failure:
        failed = str(failure)
    else:
        return
    for name, old, new, words in SLIPS:
        if name == "truncate":
            rng.setstate(state)
            try:
                _no_leak({**BASE, name: _slipped(name, old, new)}, rng)
            except CheckFailed as failure:
                if str(failure) == failed:
                    raise CheckFailed(failed.split("\n  likely")[0] + f"\n  likely    {words}") from None
            except Exception:
                continue
    raise CheckFailed(failed)


def _tells_blocks_apart(f: Functions, rng: random.Random) -> None:
    """Equal blocks have equal hashes, different ones different hashes: tokens, their order, and what came before."""
    hashed, tokens = f["block_hash"], [1, 3, 12, 23, rng.randint(24, 49_151)]
    parents: list[tuple[list[list[int]], Any]] = [([], None)]
    found: dict[Any, list[list[int]]] = {}
    for _ in range(2):
        following = []
        for before, parent in parents:
            for a in tokens:
                for b in tokens:
                    name, blocks = hashed(parent, [a, b]), [*before, [a, b]]
                    try:
                        known = found.setdefault(name, blocks)
                    except TypeError:
                        raise wrong(
                            "a hash has to serve as the key of a dictionary",
                            given=f"block_hash({parent!r}, {[a, b]})",
                            got=repr(name),
                            expected="something hashable, such as a number, bytes or a tuple",
                        ) from None
                    if name is None:
                        raise wrong("no hash", given=f"block_hash({parent!r}, {[a, b]})", expected="a hash, not None")
                    if known != blocks:
                        raise wrong(
                            "two different prefixes have the same hash",
                            given=f"blocks {known} and blocks {blocks}",
                            got=f"both {name!r}",
                            expected="different hashes",
                            mistake=_why_equal(known, blocks),
                        )
                    if hashed(parent, [a, b]) != name:
                        raise wrong("the same block has another hash when asked again", given=f"{[a, b]}, same parent")
                    following.append((blocks, name))
        parents = rng.sample(following, 6)


def _why_equal(one: list[list[int]], other: list[list[int]]) -> str:
    if one[-1] == other[-1]:
        return "the last blocks are equal, what came before is not: take in the parent's hash"
    if len(one) == len(other) and one[:-1] == other[:-1] and sorted(one[-1]) == sorted(other[-1]):
        return "the order of the tokens counts: hash the tuple of them"
    if "".join(map(str, one[-1])) == "".join(map(str, other[-1])):
        return "digits run together: [1, 23] and [12, 3] must differ; hash the tuple of tokens"
    return "sums and the like are equal too often: hash (parent, tuple(tokens))"


def _tells_why(call: str, pool: Pool) -> str:
    return NEXT_LINE.join([f"free {list(pool.free)}, counts {pool.refs}", call])


def _longest_free_first(f: Functions, rng: random.Random) -> None:
    for _ in range(20):
        pool = Pool(8, 4)
        queue = rng.sample(range(8), rng.randint(2, 8))
        pool.free, pool.refs = deque(queue), [int(b not in queue) for b in range(8)]
        n = rng.randint(1, len(queue) - 1)
        given = _tells_why(f"allocate(pool, {n})", pool)
        got, rest = _blocks(f["allocate"](pool, n), f"allocate(pool, {n})"), list(pool.free)
        if got != queue[:n]:
            newest = set(got) == set(queue[-n:])
            likely = "taken from the end of the queue: pop takes the newest, popleft the oldest" if newest else ""
            raise wrong(
                "who has been free longest goes first", given=given, got=got, expected=queue[:n], mistake=likely
            )
        if rest != queue[n:]:
            raise wrong("the others keep their places in the queue", given=given, got=rest, expected=queue[n:])


def _last_block_first(f: Functions, rng: random.Random) -> None:
    for _ in range(20):
        pool = Pool(8, 4)
        blocks = rng.sample(range(8), 8)
        table, queue = blocks[: rng.randint(2, 5)], blocks[5:]
        shared = set(rng.sample(table, 1)) if len(table) > 2 else set()
        pool.free = deque(queue)
        pool.refs = [0 if b in queue else 2 if b in shared else 1 for b in range(8)]
        given = _tells_why(f"release(pool, {table})", pool)
        f["release"](pool, list(table))
        got, expected = list(pool.free), queue + [b for b in reversed(table) if b not in shared]
        if got != expected:
            likely = ""
            if got == queue + [b for b in table if b not in shared]:
                likely = "the first block was freed first, so it is evicted first, and nothing behind it can be found"
            elif len(got) == len(expected) and got[-len(queue) :] == queue:
                likely = "put in front of the queue: a block that was freed just now has to wait longest (append)"
            raise wrong(
                "the queue after a release: the last block first",
                given=given,
                got=got,
                expected=expected,
                mistake=likely,
            )


def _keeps_other_hashes(f: Functions, rng: random.Random) -> None:
    """Only the block that is handed out loses its hash, and only its own entry goes."""
    for _ in range(20):
        pool = Pool(6, 4)
        queue = rng.sample(range(6), 6)
        pool.free = deque(queue)
        names: list[Any] = ["x", "x", "y", "z", None, "w"]  # the first two in the queue hold the same
        for block, name in zip(queue, names):
            pool.hashes[block] = name
        pool.cached = {name: block for block, name in zip(queue, names) if name is not None}
        n = rng.randint(1, 4)
        given = NEXT_LINE.join([f"free {queue}, hashes {pool.hashes}", f"cached {pool.cached}", f"allocate(pool, {n})"])
        before = dict(pool.cached)
        taken = _blocks(f["allocate"](pool, n), f"allocate(pool, {n})")
        expected = {name: block for name, block in before.items() if block not in taken}
        got = {name: block for name, block in pool.cached.items() if block not in taken}
        if got != expected:
            likely = "entries of blocks that were not handed out went, too"
            if expected.keys() - got.keys() == {"x"}:
                likely = (
                    "two blocks had the same hash, one was handed out, and the entry of the other went: compare first"
                )
            raise wrong(
                "pool.cached without the blocks handed out", given=given, got=got, expected=expected, mistake=likely
            )
        for block, name in zip(queue, names):
            if block not in taken and pool.hashes[block] != name:
                what = f"block {block} was not handed out: pool.hashes[{block}]"
                raise wrong(what, given=given, got=repr(pool.hashes[block]), expected=repr(name))


# The bug in given code


class ServerPool(Pool):
    """The pool of the part in which a bug is found: it also knows the tokens of each block."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.tokens: list[tuple[int, ...]] = [()] * num_blocks


def _given_start(pool: ServerPool, prompt: Sequence[int]) -> tuple[list[int], int]:
    """The given code, bug included: entries of `cached` stay when their block is used for something else."""
    size, known = pool.block_size, 0
    table: list[int] = []
    parent: Any = None
    for i in range(0, len(prompt), size):
        tokens = tuple(prompt[i : i + size])
        parent = (parent, tokens)
        block = pool.cached.get(parent, -1)
        same = block >= 0 and pool.tokens[block] == tokens
        if same and known == i and i + size < len(prompt):
            known += size
            if pool.refs[block] == 0:
                pool.free.remove(block)
        else:
            block = pool.free.popleft()
            pool.tokens[block] = tokens
            if len(tokens) == size:
                pool.cached[parent] = block
        pool.refs[block] += 1
        table.append(block)
    return table, known


class _Server:
    """Serves prompts one after the other and knows what each block was computed behind."""

    def __init__(self, start: Callable[..., Any], num_blocks: int, block_size: int) -> None:
        self.start, self.pool = start, ServerPool(num_blocks, block_size)
        self.prefix: dict[int, tuple[int, ...]] = {}
        self.doubtful: set[tuple[int, ...]] = set()
        self.lines = [f"pool = ServerPool({num_blocks}, {block_size})"]

    def serve(self, prompt: Sequence[int], keep: bool = False) -> None:
        """Start a prompt and, unless `keep`, end it. Raises _Bad if the table is wrong."""
        pool, size, prompt = self.pool, self.pool.block_size, list(prompt)
        free = {b for b, count in enumerate(pool.refs) if count == 0}
        line = f"start(pool, {prompt})"
        self.lines.append(line)
        try:
            result = self.start(pool, list(prompt))
        except NotImplementedError:
            raise
        except Exception as error:
            raise _Bad("raised", f"`{line}` raised an error", _told(error), "no error") from None
        try:
            table, known = [int(b) for b in result[0]], int(result[1])
        except (TypeError, ValueError, IndexError):
            raise _Bad("result", f"`{line}`", repr(result), "(table, number of known tokens)") from None
        self.lines[-1] += f"  # {table}, {known} known"
        if len(table) != -(-len(prompt) // size) or known % size or not 0 <= known < len(prompt):
            raise _Bad(
                "result",
                f"`{line}`: table and number of known tokens",
                (table, known),
                "one block per begun piece, and less known than given",
            )
        likely_known = 0
        for i, block in enumerate(table):
            prefix = tuple(prompt[: (i + 1) * size])
            if i * size < known:
                if self.prefix.get(block) != prefix:
                    holds = list(self.prefix.get(block, ()))
                    what = f"`{line}`: block {block} is taken as known for the end of {list(prefix)}"
                    raise _Bad(
                        "hit", what, f"it was computed as the end of {holds}", "a block computed behind these tokens"
                    )
            elif block not in free:
                raise _Bad("result", f"`{line}`: a new block", block, f"one that was free: {sorted(free)}")
        sure = set(self.prefix.values()) - self.doubtful
        while likely_known + size < len(prompt) and tuple(prompt[: likely_known + size]) in sure:
            likely_known += size
        new = table[known // size :]
        for i, block in enumerate(new, start=known // size):
            old = self.prefix.pop(block, None)
            if old is not None:
                (self.doubtful.add if old in self.prefix.values() else self.doubtful.discard)(old)
            if (i + 1) * size <= len(prompt):
                self.prefix[block] = tuple(prompt[: (i + 1) * size])
        if known < likely_known:
            raise _Bad("missed", f"`{line}`: tokens that are known", known, likely_known)
        if any(pool.refs[b] < 1 or b in pool.free for b in table):
            raise _Bad(
                "result",
                f"`{line}`: counts, and the free queue",
                (list(pool.refs), list(pool.free)),
                f"{table} held, and not free",
            )
        if not keep:
            for block in reversed(table):
                pool.refs[block] -= 1
                if pool.refs[block] == 0:
                    pool.free.append(block)
            self.lines[-1] += ", ended"


def _goes_wrong(story: Callable[[], Any], rng: random.Random) -> None:
    """The prompts of `story` lead the given code to a block that was computed behind other tokens."""
    told = story()
    try:
        prompts = [[int(t) for t in prompt] for prompt in told]
        assert all(prompts)
    except (TypeError, ValueError, AssertionError):
        raise wrong(
            "the story is a list of prompts, each a list of tokens", got=repr(told), expected="[[1, 2, 3], [4, 5]]"
        ) from None
    server = _Server(_given_start, 4, 2)
    for number, prompt in enumerate(prompts, start=1):
        if len(prompt) > 8:
            what = f"prompt {number} has {len(prompt)} tokens: 4 blocks of 2 hold 8"
            raise wrong(what, got=prompt, expected="at most 8 tokens")
        try:
            server.serve(prompt)
        except _Bad as bad:
            if bad.kind == "hit":
                return
    hits = sum(", 0 known" not in line for line in server.lines[1:])
    used = [[tuple(p[i : i + 2]) for i in range(0, len(p), 2)] for p in prompts]
    seen = {(piece, tuple(p[:i])) for p in used for i, piece in enumerate(p)}
    pieces = [piece for piece, _ in seen]
    if len(prompts) < 2:
        likely = "one prompt has to leave a hash behind, one to use its block again, one to ask for the first"
    elif len(set(pieces)) == len(pieces):
        likely = (
            "the tokens are compared, so a block with other tokens is not taken: the same tokens must come to lie in "
            "the same block, behind another beginning"
        )
    elif not hits:
        likely = "no prompt found anything: the last one has to ask for what was there, and have a token left over"
    else:
        likely = (
            "same tokens behind another beginning, yes; but they must come to lie in the very block of the old entry"
        )
    what = _given("all went well in this story", server.lines)
    raise wrong(what, got="no such hit", expected="a hit on a block of another text", mistake=likely)


def _mended(start: Callable[..., Any], rng: random.Random) -> None:
    """Never a block of other tokens, and still a hit wherever there is one."""
    for _ in range(150):
        blocks, size = rng.randint(3, 6), rng.choice((1, 2, 2, 3))
        prompts = [
            tuple(rng.choice((1, 2)) for _ in range(rng.randint(1, blocks * size))) for _ in range(rng.randint(3, 9))
        ]

        def fails(ops: list[Op]) -> bool:
            return _served(start, blocks, size, ops)[1] is not None  # noqa: B023

        ops: list[Op] = [("serve", p) for p in prompts]
        if not fails(ops):
            continue
        server, bad = _served(start, blocks, size, _shorten(ops, fails))
        assert bad is not None
        likely = {
            "hit": "the entry of a block that was used for other text is still there; comparing tokens is not enough",
            "missed": "what is still there must be found: only entries of blocks that were handed out are out of date",
        }.get(bad.kind, "")
        raise wrong(_given(bad.what, server.lines), got=bad.got, expected=bad.expected, mistake=likely)


def _served(start: Callable[..., Any], blocks: int, size: int, ops: Sequence[Op]) -> tuple[_Server, _Bad | None]:
    server = _Server(start, blocks, size)
    for _, prompt in ops:
        try:
            server.serve(prompt)
        except _Bad as bad:
            return server, bad
    return server, None


# What the notebook calls

allocate = Check(
    "allocate",
    [
        _part("gives", ["allocate"], _mixed("allocate allocate release"), {"result", "books"}),
        _part("refuses", ["allocate"], _mixed("allocate allocate release"), {"refused"}),
    ],
)
release = Check(
    "release",
    [
        _part("counts", ["release"], _mixed("allocate allocate fork fork release release"), {"books"}),
        _part("again", ["release"], _mixed("allocate allocate fork release again mixed"), {"refused"}),
        _part("twice", ["release"], _mixed("allocate allocate fork release twice"), {"refused"}),
        _part("unknown", ["release"], _mixed("allocate allocate fork release unknown"), {"refused"}),
    ],
)
append = Check(
    "append",
    [
        _part("grows", ["append"], _mixed("append append append release"), {"result", "books"}),
        _part("slots", ["append"], _mixed("append append append release"), {"slots"}),
        _part("refused", ["append"], _mixed("append append append release"), {"refused", "books"}),
    ],
)
truncate = Check(
    "truncate",
    [
        _part("shortens", ["truncate"], _mixed("append_cow append_cow truncate fork"), {"result", "books"}),
        _either("leaks nothing", ["truncate"], _no_leak_part),
    ],
)
fork = Check("fork", [_part("forks", ["fork"], _mixed("append_cow append_cow fork fork release"), {"result", "books"})])
append_cow = Check(
    "append_cow",
    [
        _part("reads", ["append_cow"], _mixed("append_cow append_cow append_cow fork release"), {"text"}),
        _part("copies", ["append_cow"], _mixed("append_cow append_cow append_cow fork release"), {"copies", "books"}),
        _part("refused", ["append_cow"], _mixed("append_cow append_cow append_cow fork release"), {"refused"}),
    ],
)
block_hash = Check("block_hash", [_either("differs", ["block_hash"], _tells_blocks_apart)])
register = Check("register", [_part("registers", ["register"], _prompts, {"hashes"})])
reuse_prefix = Check(
    "reuse_prefix",
    [
        _part("finds", ["reuse_prefix"], _prompts, {"hits"}),
        _part("leaves one", ["reuse_prefix"], _prompts, {"left over"}),
        _part("counts", ["reuse_prefix"], _prompts, {"books"}),
    ],
)
evict = Check(
    "evict",
    [
        _either("longest free first", ["allocate", "release"], _longest_free_first),
        _either("last block first", ["allocate", "release"], _last_block_first),
        _part("forgets", ["allocate", "release"], _prompts, {"hits", "hashes"}),
        _either("keeps others", ["allocate", "release"], _keeps_other_hashes),
    ],
)
story = Check("story", [_goes_wrong])
repair = Check("repair", [_mended])
