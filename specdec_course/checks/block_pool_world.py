"""A pool that is driven by operations, and the plain bookkeeping that says what must be true of it."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

from specdec_course.checks.block_pool_moves import Functions, Pool

Op = tuple[Any, ...]  # ("append", "a", 3): operation, sequence, number
Setup = tuple[int, int, tuple[int, ...]]  # blocks, tokens a block, the queue of free blocks


class Bad(Exception):
    """Something that does not hold; `kind` says what sort of thing, so that shortening keeps to it."""

    def __init__(self, kind: str, what: str, got: Any = None, expected: Any = None, likely: str = "") -> None:
        super().__init__(what)
        self.kind, self.what, self.got, self.expected, self.likely = kind, what, got, expected, likely


class World:
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
            raise Bad(kind, what, got, expected, likely)

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
            result = list(result) if isinstance(result, Iterator) else result  # it can be read only once
        except NotImplementedError:
            raise
        except Exception as raised:  # whatever the learner's code raises
            error = raised
        self._plain_numbers(line)
        found = sorted(self.pool.cached.values()), [h is not None for h in self.pool.hashes]
        self.seen.append((type(error).__name__, plain(result), self.snapshot(), found))
        if not refuse:
            if error:
                self.fail("raised", f"`{line}` raised an error", told(error), "no error", self._why_raised(error))
                raise Stop
            return result
        due = f"{refuse.__name__}: {because}"
        likely = "compare the blocks that are needed with those that are free, before anything else"
        if refuse is ValueError:
            likely = "look at every block first: is it one of the pool's (none is negative), held, and named once?"
        if error is None:
            self.fail("refused", f"`{line}` went through", plain(result) or "no error", due, likely)
        elif not isinstance(error, refuse):
            self.fail("refused", f"`{line}` raised another error", told(error), due, likely)
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
        raise Stop

    def _plain_numbers(self, line: str) -> None:
        """Block numbers of numpy or torch become plain ones; they are as good as others."""
        for name, blocks in [("pool.free", self.pool.free), *self.tables.items()]:
            try:
                plain_ones = [int(b) for b in blocks]
            except (TypeError, ValueError):
                likely = "append puts the list itself in, as one element; use += or extend"
                raise Bad("raised", f"`{line}`: what is in {name}", list(blocks), "block numbers", likely) from None
            if isinstance(blocks, list) and name != "pool.free":
                blocks[:] = plain_ones
            else:
                self.pool.free = deque(plain_ones)

    def _why_raised(self, error: Exception) -> str:
        if isinstance(error, MemoryError):
            free = len(self.unheld())
            return (
                f"{some(free, 'block')} free: as many may be asked for (> or >=?), and none may have been lost before"
            )
        return ""

    def books(self) -> None:
        """Counts and queue agree with the tables."""
        if "books" not in self.look or not self.judge:
            return
        for block, count in enumerate(self.pool.refs):
            holders = self.holders(block)
            if count != holders:
                likely = "this block can never be free again" if count > holders else "it will be free while it is read"
                self.fail(
                    "books",
                    f"block {block} is held by {some(holders, 'table')}, and counts {count}",
                    count,
                    holders,
                    likely,
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
        if "text" not in self.look or not self.judge:
            return
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
                if name is None:
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
        with suppress(Stop):
            getattr(self, f"do_{op[0]}")(*op[1:])
        self.books()

    def do_allocate(self, x: str, n: int) -> None:
        free, line = self.unheld(), f"{x} = allocate(pool, {n})"
        if x in self.tables or (n > len(free) and "refused" not in self.look):
            return
        refuse = MemoryError if n > len(free) else None
        taken = as_blocks(
            self.call(line, "allocate", n, refuse=refuse, because=f"free: {some(len(free), 'block')}"), line
        )
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
            raise Stop
        old, refuse = list(table), MemoryError if need > len(free) else None
        because = f"it takes {some(need, 'block')}, {len(free)} free"
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
            self.fail("result", what, table, f"{old} and {some(total - len(old), 'new block')}")
        self.fresh(table[len(old) :], total - len(old), free, line)
        if len(table) >= total:
            slots = [table[i // size] * size + i % size for i in range(length, length + n)]
            got = as_numbers(result)
            if got != slots:
                what = f"`{line}` returned other slots than table {table} says, with blocks of {size}"
                self.fail("slots", what, result if got is None else got, slots)
        self._write(x, n)

    def do_append_cow(self, x: str, n: int) -> None:
        must = x in self.tables and self._must_copy(x, n)
        result, old, _ = self._grow(x, n, "append_cow")
        length, table, size = len(self.tokens[x]), self.tables[x], self.pool.block_size
        pairs = as_copies(result, f"append_cow(pool, {x}, {length}, {n})")
        self.lines[-1] += f", copies {pairs}"
        kept = old[:-1] if must else old
        total = self.blocks_for(length + n)
        if len(table) != total or table[: len(kept)] != kept or (must and table[len(old) - 1] == old[-1]):
            what = f"table {old} of {some(length, 'token')} grew by {n}"
            what += f"; its last block, {old[-1]}, is shared" if must else ""
            copy = f", a new block in place of {old[-1]}" if must else ""
            self.fail("copies", what, table, f"{kept}{copy} and {some(total - len(old), 'new block')} behind")
        due = [(old[-1], table[len(old) - 1])] if must and len(table) >= len(old) else []
        if pairs != due:
            self.fail(
                "copies", f"what has to be copied before {some(n, 'token')} can be written behind {length}", pairs, due
            )
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
        new = table if result is table else as_blocks(result, line)
        self.tables[y], self.tokens[y] = new, list(self.tokens[x])
        if new != old or table != old:
            self.fail("result", f"`{line}`, where {x} was {old}: {x} is now {table}", new, f"{old}, and {x} as before")
        if not isinstance(result, list):
            likely = "tables grow and shrink, and a tuple cannot: return a list"
            self.fail("result", f"`{line}` returned no list", repr(result), "a list of its own", likely)
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

    def _find(self, x: str, tokens: list[int]) -> list[int]:
        line = f"{x} = reuse_prefix(pool, {tokens})"
        table = as_blocks(self.call(line, "reuse_prefix", list(tokens)), line)
        self.lines[-1] += f"  # {table}"
        self.tables[x], self.tokens[x] = table, tokens
        self._judge_hit(line, table, tokens)
        self.books()
        return table

    def do_find(self, x: str, prompt: tuple[int, ...]) -> None:
        """A prompt is looked up, and what is known of it is held; nothing is registered."""
        if x not in self.tables:
            known = len(self._find(x, list(prompt))) * self.pool.block_size
            del self.tokens[x][known:]

    def do_start(self, x: str, prompt: tuple[int, ...]) -> None:
        """A prompt comes: what is known is reused, the rest gets new blocks, full blocks are registered."""
        tokens, size = list(prompt), self.pool.block_size
        if x in self.tables or self.blocks_for(len(tokens)) > len(self.unheld()):
            return
        table = self._find(x, tokens)
        need = self.blocks_for(len(tokens)) - len(table)
        if need < 0:
            raise Stop
        line, free = f"{x} += allocate(pool, {need})", self.unheld()
        new = as_blocks(self.call(line, "allocate", need), line)
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
            self.fail("hits", what, table, some(most, "block"), likely)


def some(n: int, thing: str) -> str:
    """1 block, 2 blocks."""
    return f"{n} {thing}{'' if n == 1 else 's'}"


class Stop(Exception):
    """The operation has ended early, as it should or because an error was recorded."""


def plain(result: Any) -> Any:
    """A result that can be compared and shown."""
    pairs = as_pairs(result)
    return pairs if pairs else as_numbers(result)


def as_numbers(result: Any) -> list[int] | None:
    """A list, tuple, array or tensor of whole numbers as a plain list; None if it is none of these."""
    try:
        return [int(x) for x in result]
    except (TypeError, ValueError):
        return None


def as_blocks(result: Any, line: str) -> list[int]:
    """The block numbers that `line` returned. Raises Bad if there are none."""
    blocks = as_numbers(result)
    if blocks is None:
        raise Bad(
            "raised",
            f"`{line}` returned no list of blocks",
            repr(result),
            "a list of block numbers",
            "is there a return?",
        )
    return blocks


def as_pairs(result: Any) -> list[tuple[int, int]]:
    """Pairs of block numbers as plain tuples; none where something else came."""
    try:
        return [(int(a), int(b)) for a, b in (result if result is not None else [])]
    except (TypeError, ValueError):
        return []


def as_copies(result: Any, line: str) -> list[tuple[int, int]]:
    """The pairs of blocks that `line` returned. Raises Bad where it is no list of pairs; it may be empty."""
    pairs = as_pairs(result)
    if not pairs and as_numbers(result) != []:
        likely = "is there a return?" if result is None else "a list of pairs, also for a single one"
        due = "[(source, target)], or [] where nothing is to be copied"
        raise Bad("raised", f"`{line}` returned no list of pairs", repr(result), due, likely)
    return pairs


def told(error: Exception) -> str:
    """An error, and the line of the learner's code in which it was raised."""
    where = [f for f in traceback.extract_tb(error.__traceback__) if "specdec_ref" not in f.filename]
    line = f" (line {where[-1].lineno} of its cell: {where[-1].line})" if where and where[-1].line else ""
    return f"{type(error).__name__}: {error}{line}" if str(error) else f"{type(error).__name__}{line}"
