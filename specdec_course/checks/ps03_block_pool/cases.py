"""Pools and calls to try, drawn at random, of at most so many blocks."""

from __future__ import annotations

from random import Random
from typing import Any

from specdec_course.checks.ps03_block_pool.pools import Prefix, Scene


def _text(rng: Random) -> Prefix:
    """Tokens 1 and 2, so that beginnings are often equal."""
    return tuple(rng.choices((1, 2), k=12))


def scene(rng: Random, most: int, shared: bool = False, hashed: bool = False) -> Scene:
    """Tables a, b and at times c; they hold blocks together where `shared`; full and free blocks may have a hash."""
    size, ids = rng.choice((1, 2, 2, 3, 4)), rng.sample(range(most), most)
    a, own, queue = ids[: (i := rng.randint(0, 3))], ids[i : (j := i + rng.randint(0, 2))], ids[j:]
    both = rng.randint(0, len(a)) if shared else 0
    tables = {"a": a, "b": a[:both] + own} | ({"c": list(a)} if shared and rng.random() < 0.5 else {})
    lengths = {x: len(table) * size - (rng.randrange(size) if table else 0) for x, table in tables.items()}
    drawn, one, other = Scene(size, tables, lengths, queue, {}, {}), _text(rng), _text(rng)
    for block in rng.sample(ids, most if hashed else 0):
        if block in queue:
            text, end = rng.choice((one, other)), rng.randint(0, 3)
        else:
            x, text = ("a", one) if block in a else ("b", one[: both * size] + other[both * size :])
            end = tables[x].index(block) + 1
            end *= end * size <= lengths[x] and rng.random() < 0.7
        if end:
            drawn.holds[block] = text[: end * size]
    return drawn


def call(rng: Random, most: int, operation: str, part: str, **kind: bool) -> tuple[Any, ...]:
    """A scene, and what the operation is called with after the pool; the name of a table stands for the table.

    In the parts of these names it is at times one to be refused, such as a block named "twice".
    """
    drawn = scene(rng, most, **kind)
    x, table = rng.choice(list(drawn.tables.items()))
    free, size, length = len(drawn.queue), drawn.size, drawn.lengths[x]
    if operation == "allocate":
        return drawn, rng.randint(0, free + 2 * (part == "refused"))
    if operation in ("append", "append_cow"):
        counts = [n for n in range((free + 2) * size) if part == "refused" or drawn.needed(x, n) <= free]
        return drawn, x, length, rng.choice(counts)
    if operation == "truncate":
        return drawn, x, rng.randint(0, max(0, len(table) - 2) * size if part == "leaks nothing" else length)
    if operation == "register":  # two sequences, which may share blocks, or have equal ones
        one, other = _text(rng), _text(rng)
        both = len(set(drawn.tables["a"]) & set(drawn.tables["b"])) * size
        texts = {"a": one, "b": one[:both] + rng.choice((one, other))[both:]}
        return (drawn._replace(texts={y: text[: drawn.lengths[y]] for y, text in texts.items()}),)
    if operation == "reuse_prefix":
        start = rng.choice(sorted(drawn.leads) or [()])
        return drawn, (*start, *_text(rng))[: rng.randint(1, len(start) + size + 1)]
    bad = {"again": drawn.queue, "twice": table, "unknown": [-1, most]}.get(part)
    if not bad or rng.random() < 0.3:
        return drawn, x
    at = rng.randint(0, len(table))
    return drawn, [*table[:at], rng.choice(bad), *table[at:]]
