"""Pools to try the functions of problem set 03 on, and what a call leaves behind."""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from specdec_course.checks import CheckFailed, raised, wrong
from specdec_course.checks.numbers import as_items
from specdec_ref.cache.block_pool import BlockPool, OutOfBlocks

Prefix = tuple[int, ...]
NEXT_LINE = "\n            "


class Pool:
    """The state that all functions work on, as in the notebook."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.refs = [0] * num_blocks
        self.free: deque[int] = deque(range(num_blocks))
        self.hashes: list[Any] = [None] * num_blocks
        self.cached: dict[Any, int] = {}


def _by_reference(operation: Callable[..., Any]) -> Callable[..., Any]:
    """An operation of the package's own pool, as a function of a learner's, which it changes in place."""

    def on(pool: Pool, *arguments: Any) -> Any:
        reference = BlockPool(len(pool.refs), pool.block_size)
        reference.free_queue = OrderedDict.fromkeys(pool.free)
        for block, refs, name in zip(reference.blocks, pool.refs, pool.hashes):
            block.refs, block.hash = refs, name
            reference.cached.setdefault(name, {})[block.id] = None
        try:
            return operation(reference, *arguments)
        except OutOfBlocks as error:
            raise MemoryError(str(error)) from None
        finally:
            pool.free.clear()
            pool.free.extend(reference.free_queue)
            pool.refs[:] = [block.refs for block in reference.blocks]
            pool.hashes[:] = [block.hash for block in reference.blocks]
            for name in [name for name, block in pool.cached.items() if pool.hashes[block] != name]:
                del pool.cached[name]

    return on


def slots(table: Sequence[int], size: int, positions: Sequence[int]) -> list[int]:
    """Where the tokens at these positions lie."""
    return [table[i // size] * size + i % size for i in positions]


def _append(pool: BlockPool, table: list[int], length: int, n: int) -> list[int]:
    pool.extend(table, length, length + n)
    return slots(table, pool.block_size, range(length, length + n))


RIGHT: dict[str, Callable[..., Any]] = {
    "allocate": _by_reference(lambda pool, n: pool.allocate(max(n, 0))),
    "release": _by_reference(BlockPool.free),
    "append": _by_reference(_append),
    "truncate": _by_reference(BlockPool.truncate),
    "fork": _by_reference(BlockPool.share),
    "append_cow": _by_reference(lambda pool, table, length, n: pool.extend(table, length, length + n)),
    "block_hash": lambda parent, tokens: (parent, tuple(tokens)),
}
"""Right functions, for a learner's to call."""


def standing_on_right(function: Any) -> Any:
    """A copy of the learner's function that calls RIGHT by the notebook's names, and so do its helpers."""
    if not isinstance(function, FunctionType):
        return function
    space = dict(function.__globals__)

    def copied(f: FunctionType) -> FunctionType:
        copy = FunctionType(f.__code__, space, f.__name__, f.__defaults__, f.__closure__)
        copy.__kwdefaults__ = f.__kwdefaults__
        return copy

    helpers = {name: f for name, f in space.items() if getattr(f, "__globals__", None) is function.__globals__}
    space.update({name: copied(f) for name, f in helpers.items() if isinstance(f, FunctionType)} | RIGHT)
    space[function.__name__] = copied(function)  # it may call itself
    return space[function.__name__]


def named(block_hash: Callable[..., Any], prefix: Prefix, size: int) -> Any:
    """The hash of a prefix in whole blocks; None for none."""
    return block_hash(named(block_hash, prefix[:-size], size), list(prefix[-size:])) if prefix else None


class Scene(NamedTuple):
    """A pool and the tables on it."""

    size: int
    tables: dict[str, list[int]]
    lengths: dict[str, int]
    queue: list[int]  # free blocks, the longest free first
    holds: dict[int, Prefix]  # blocks with a hash: all tokens up to their end; of equal ones the last is found
    texts: dict[str, Prefix]  # the tokens of the tables, where they matter

    @property
    def refs(self) -> list[int]:
        held = Counter(block for table in self.tables.values() for block in table)
        return [held[block] for block in range(len(held.keys() | set(self.queue)))]

    @property
    def leads(self) -> dict[Prefix, int]:
        return {prefix: block for block, prefix in self.holds.items()}

    @property
    def prefixes(self) -> list[Prefix]:
        """Of whole blocks, of all that is in the pool or may be, the shortest first."""
        texts = [*self.texts.values(), *self.holds.values()]
        found = {text[:end] for text in texts for end in range(self.size, len(text) + 1, self.size)}
        return sorted(found, key=lambda prefix: (len(prefix), prefix))

    def needed(self, x: str, n: int) -> int:
        """Blocks that n more tokens of table x take, one for a copy included."""
        table, length = self.tables[x], self.lengths[x]
        shared = n > 0 and length % self.size > 0 and self.refs[table[-1]] > 1
        return -(-(length + n) // self.size) - len(table) + shared

    def known(self, tokens: Sequence[int]) -> list[int]:
        """The blocks of the longest known prefix that leaves a token over."""
        table: list[int] = []
        while (end := (len(table) + 1) * self.size) < len(tokens) and tuple(tokens[:end]) in self.leads:
            table.append(self.leads[tuple(tokens[:end])])
        return table

    def text(self, operation: str, *arguments: Any) -> str:
        """A call on this pool as code."""
        lines = [f"pool = Pool({len(self.refs)}, {self.size})"]
        if any(self.refs) or self.queue != sorted(self.queue):
            lines.append(f"pool.refs, pool.free = {self.refs}, deque({self.queue})")
        lines += [f"{x} = {table}" for x, table in self.tables.items() if table or x in arguments or x in self.texts]
        if self.holds:
            names: dict[Prefix, str] = {(): "None"}
            for prefix in self.prefixes:
                names[prefix] = f"h{len(names)}"
                parent, tokens = names[prefix[: -self.size]], list(prefix[-self.size :])
                lines.append(f"{names[prefix]} = block_hash({parent}, {tokens})")
            hashes = ", ".join(names[self.holds.get(block, ())] for block in range(len(self.refs)))
            entries = ", ".join(f"{names[prefix]}: {block}" for prefix, block in self.leads.items())
            lines.append(f"pool.hashes, pool.cached = [{hashes}], {{{entries}}}")
        if operation == "register":
            return NEXT_LINE.join(lines + [f"register(pool, {x}, {list(text)})" for x, text in self.texts.items()])
        given = ", ".join(str(list(a) if isinstance(a, tuple) else a) for a in arguments)
        new = "new = " * (operation in ("allocate", "fork", "reuse_prefix"))
        return NEXT_LINE.join([*lines, f"{new}{operation}(pool, {given})"])


def _exact(value: Any) -> Any:
    """Whole numbers, and lists of them, in built-in types: read once, so that comparisons can be trusted."""
    items = as_items(value)
    if items is not None:
        return [_exact(item) for item in items]
    return operator.index(value) if hasattr(type(value), "__index__") else None if value is None else repr(value)


def numbers(value: Any, what: str) -> list[int]:
    """A list of whole numbers. Raises CheckFailed for anything else."""
    found = _exact(value)
    if not isinstance(found, list) or any(type(number) is not int for number in found):
        raise wrong(f"{what} is no list of whole numbers: {found}")
    return found


def plain_hash(name: Any) -> Any:
    """A hash in built-in types. Raises CheckFailed for others, whose equality cannot be trusted."""
    if isinstance(name, tuple):
        return tuple(map(plain_hash, tuple.__iter__(name)))
    if type(name) in (str, bytes, float, type(None)):
        return name
    if hasattr(type(name), "__index__"):
        return operator.index(name)
    raise wrong(f"a hash is a number, a string, bytes, or a tuple of these, not a {type(name).__name__}")


def act(
    operation: str, function: Callable[..., Any], scene: Scene, *arguments: Any, hashing: Any = RIGHT["block_hash"]
) -> dict[str, Any]:
    """Call a function on the pool of a scene; all that is to be seen of it afterwards, in built-in types.

    arguments: after the pool; the name of a table stands for the table. hashing: the block_hash that it calls.
    """
    labels = {plain_hash(named(hashing, prefix, scene.size)): prefix for prefix in scene.prefixes}
    if len(labels) < len(scene.prefixes) or None in labels:
        raise CheckFailed("block_hash does not tell blocks apart")
    pool, tables = Pool(len(scene.refs), scene.size), {x: list(table) for x, table in scene.tables.items()}
    pool.refs, pool.free = scene.refs, deque(scene.queue)
    for block, prefix in scene.holds.items():
        pool.hashes[block] = named(hashing, prefix, scene.size)
        pool.cached[pool.hashes[block]] = block
    error, shown = "", ""
    result: Any = None
    try:
        if operation == "register":
            for x, text in scene.texts.items():
                function(pool, tables[x], list(text))
        else:
            copies = [list(a) if isinstance(a, (list, tuple)) else a for a in arguments]
            result = function(pool, *(tables[a] if isinstance(a, str) else a for a in copies))
    except NotImplementedError:
        raise
    except Exception as caught:  # whatever the learner's code raises
        error = next((e.__name__ for e in (MemoryError, ValueError) if isinstance(caught, e)), "another error")
        shown = str(raised(caught)).removeprefix("your code raised ")
    own_list = type(result) is list and all(result is not table for table in tables.values())
    result = _exact(result)
    try:
        refs, free = numbers(pool.refs, "pool.refs"), numbers(pool.free, "pool.free")
        tables = {x: numbers(table, f"table {x}") for x, table in tables.items()}
        hashes = [None if h is None else labels.get(plain_hash(h), "unknown") for h in pool.hashes]
        blocks = numbers(pool.cached.values(), "pool.cached.values()")
        cached = {labels.get(plain_hash(h), "unknown"): block for h, block in zip(pool.cached, blocks)}
        if error:
            same = (refs, sorted(free), tables) == (scene.refs, sorted(scene.queue), scene.tables)
            shown += "" if same else f"; counts {refs}, free {free}, tables {tables}"
            return {"error": error, "untouched": same, "shown": shown}
        if operation in ("allocate", "fork", "reuse_prefix"):
            tables["new"] = numbers(result, "what was returned")
        if operation == "fork" and not own_list:
            raise wrong("what was returned is no list of its own: return a copy, list(table)")
    except CheckFailed as failed:
        return {"error": "odd", "shown": f"{shown} {failed}".strip(), "result": result}
    tables = {x: table for x, table in tables.items() if (operation, x) != ("release", arguments and arguments[0])}
    # Which of the free blocks was taken does not matter, so they are named by their places.
    size, taken, spot = scene.size, tables.get("new", []), dict(enumerate(hashes)).get
    new = {
        block: f"number {i} of the new ones"
        for i, block in enumerate(b for t in tables.values() for b in t if b in scene.queue)
    }
    held = Counter(block for table in tables.values() for block in table)
    idle = {block for block in range(len(refs)) if not held[block]}
    items = result if isinstance(result, list) else [None]
    pairs: Any = items if all(isinstance(p, list) and list(map(type, p)) == [int, int] for p in items) else None
    copied = {target: source for source, target in pairs or ()}
    prompt = arguments[0] if arguments and isinstance(arguments[0], tuple) else ()
    first = scene.leads.get(tuple(prompt[:size]), 0)
    easy = first != 0 and scene.refs[first] == 0 and len(prompt) > 2 * size
    lines = [f"{x} {table}" for x, table in tables.items() if table or scene.tables.get(x)] + [
        f"counts {refs}",
        f"free {free}",
    ]
    if scene.holds or scene.texts:
        lines += [f"block {b} has the hash of {list(p) if p != 'unknown' else '?'}" for b, p in enumerate(hashes) if p]
        lines += [f"cached leads to {sorted(cached.values())}"]
    return {
        "error": "",
        "result": result,
        "shown": ", ".join(lines + [f"returned {result}"] * (result is not None and not taken)),
        "tables": {x: [new.get(block, block) for block in table] for x, table in tables.items()},
        "counts": {new.get(b, b): (held[b], count) for b, count in enumerate(refs) if count != held[b]},
        "queue": {new.get(b, b): n for b in sorted({*free, *idle}) if (n := free.count(b) - (b in idle))},
        "order": free,
        "taken": sorted(taken),
        "many": len(taken),
        "some": taken != [] or not easy,
        "left": not taken or len(taken) * size < len(prompt),
        "finds": [scene.holds.get(block) for block in taken],
        "shorter": {x: len(table) < len(scene.tables[x]) for x, table in tables.items() if x != "new"},
        "slots": [(new.get(s // size, s // size), s % size) if type(s) is int else None for s in items],
        "pairs": None if pairs is None else [[new.get(block, block) for block in pair] for pair in pairs],
        "reads": [[copied.get(b, b) for b in tables[x][: len(t)]] for x, t in scene.tables.items() if x in tables],
        "forgets": [spot(b) for b in taken] + [prefix for prefix, block in cached.items() if block in taken],
        "keeps": {b: p for b, p in scene.holds.items() if b not in taken and spot(b) != p},
        "entries": {p: b for p, b in scene.leads.items() if b not in taken and cached.get(p) != b},
        "hashes": hashes,
        "leads": {(prefix, spot(block)) for prefix, block in cached.items()},
    }
