"""Checks of problem set 03, the block pool.

The learner's functions are driven with random operations, and judged by plain dictionaries: which table holds which
blocks, which tokens a sequence must read, which prefix a block was computed for.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from specdec_course.checks import Check, CheckFailed, guard, wrong
from specdec_course.checks.block_pool_bug import goes_wrong, mended
from specdec_course.checks.block_pool_moves import BASE, SLIPS, Functions, Pool, slipped
from specdec_course.checks.block_pool_parts import (
    FOUND_TWICE,
    NEXT_LINE,
    NO_ROOM,
    TWINS,
    either,
    mixed,
    part,
    prompts,
    with_lines,
)
from specdec_course.checks.block_pool_world import as_blocks


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
            what = with_lines(what, [*lines, "release(pool, table)"])
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
                _no_leak({**BASE, name: slipped(name, old, new)}, rng)
            except CheckFailed as failure:
                if str(failure) == failed:
                    raise CheckFailed(failed.split("\n  likely")[0] + f"\n  likely    {words}") from None
            except Exception:
                continue
    raise CheckFailed(failed)


def _tells_blocks_apart(f: Functions, rng: random.Random) -> None:
    """Equal blocks have equal hashes, different ones different hashes: tokens, their order, and what came before.

    Every block over a few tokens, and every such block behind every other. Many of them are equal to each other for a
    hash that sums or mixes without order, writes digits side by side, or keeps a byte of each token.
    """
    hashed, tokens = f["block_hash"], [1, 2, 3, 12, 23, 257, rng.randint(258, 49_151)]
    found: dict[Any, list[list[int]]] = {}

    def name_of(block: list[int], parent: Any = None, before: Sequence[list[int]] = ()) -> Any:
        given, blocks = f"block_hash({parent!r}, {block})", [*before, block]
        with guard(given):
            name, again = hashed(parent, list(block)), hashed(parent, list(block))
        try:
            known = found.setdefault(name, blocks)
        except TypeError:
            raise wrong(
                "a hash has to serve as the key of a dictionary",
                given=given,
                got=repr(name),
                expected="something hashable, such as a number, bytes or a tuple",
            ) from None
        if name is None:
            raise wrong("no hash", given=given, expected="a hash, not None")
        if known != blocks:
            raise wrong(
                "two different prefixes have the same hash",
                given=f"blocks {known} and blocks {blocks}",
                got=f"both {name!r}",
                expected="different hashes",
                mistake=_why_equal(known, blocks),
            )
        if name != again:
            raise wrong("the same block has another hash when asked again", given=given)
        return name

    blocks = [[a, b] for a in tokens for b in tokens]
    names = [name_of(block) for block in blocks]
    for before, parent in zip(blocks, names):
        for block in blocks:
            name_of(block, parent, [before])
    # Where one more of the first token adds as much as a few more of the second, the hash is a sum.
    one, first, second = (name_of(block) for block in ([1, 1], [2, 1], [1, 2]))
    if all(isinstance(name, int) for name in (one, first, second)):
        few, rest = divmod(first - one, second - one)
        if rest == 0 and 0 < few < 10**6:
            name_of([1, 1 + few])


def _why_equal(one: list[list[int]], other: list[list[int]]) -> str:
    if len(one) == len(other) and sorted(one) == sorted(other):
        return "the order of the blocks counts, and + and ^ do not see it: hash the pair of parent and tokens"
    if one[-1] == other[-1]:
        return "the last blocks are equal, what came before is not: take in the parent's hash"
    if len(one) == len(other) and one[:-1] == other[:-1] and sorted(one[-1]) == sorted(other[-1]):
        return "the order of the tokens counts: hash the tuple of them"
    pairs = list(zip([t for block in one for t in block], [t for block in other for t in block]))
    if len(one) == len(other) and all(a % 256 == b % 256 for a, b in pairs):
        return "a byte holds 0 to 255, and there are more tokens than that"
    if _digits(one) == _digits(other):
        return "digits run together: [1, 23] and [12, 3] must differ; hash the tuple of tokens"
    return "sums and the like are equal too often: hash (parent, tuple(tokens))"


def _digits(blocks: list[list[int]]) -> str:
    return "".join(str(token) for block in blocks for token in block)


def _tells_why(call: str, pool: Pool) -> str:
    return NEXT_LINE.join([f"free {list(pool.free)}, counts {pool.refs}", call])


def _longest_free_first(f: Functions, rng: random.Random) -> None:
    for _ in range(20):
        pool = Pool(8, 4)
        queue = rng.sample(range(8), rng.randint(2, 8))
        pool.free, pool.refs = deque(queue), [int(b not in queue) for b in range(8)]
        n = rng.randint(1, len(queue) - 1)
        given = _tells_why(f"allocate(pool, {n})", pool)
        with guard(given):
            taken = f["allocate"](pool, n)
        got, rest = as_blocks(taken, f"allocate(pool, {n})"), list(pool.free)
        if sorted(got) != sorted(queue[:n]):
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
        with guard(given):
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
        with guard(given):
            result = f["allocate"](pool, n)
        taken = as_blocks(result, f"allocate(pool, {n})")
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


allocate = Check(
    "allocate",
    [
        part("gives", ["allocate"], mixed("allocate allocate release"), {"result", "books"}),
        part("refuses", ["allocate"], mixed("allocate allocate release"), {"refused"}),
    ],
)
release = Check(
    "release",
    [
        part("counts", ["release"], mixed("allocate allocate fork fork release release"), {"books"}),
        part("again", ["release"], mixed("allocate allocate fork release again mixed"), {"refused"}),
        part("twice", ["release"], mixed("allocate allocate fork release twice"), {"refused"}),
        part("unknown", ["release"], mixed("allocate allocate fork release unknown"), {"refused"}),
    ],
)
append = Check(
    "append",
    [
        part("grows", ["append"], mixed("append append append release"), {"result", "books"}),
        part("slots", ["append"], mixed("append append append release"), {"slots"}),
        part("refused", ["append"], mixed("append append append release"), {"refused", "books"}),
    ],
)
truncate = Check(
    "truncate",
    [
        part("shortens", ["truncate"], mixed("append_cow append_cow truncate fork"), {"result", "books"}),
        either("leaks nothing", ["truncate"], _no_leak_part),
    ],
)
fork = Check("fork", [part("forks", ["fork"], mixed("append_cow append_cow fork fork release"), {"result", "books"})])
append_cow = Check(
    "append_cow",
    [
        part("reads", ["append_cow"], mixed("append_cow append_cow append_cow fork release"), {"text"}),
        part("copies", ["append_cow"], mixed("append_cow append_cow append_cow fork release"), {"copies", "books"}),
        part(
            "refused",
            ["append_cow"],
            mixed("append_cow append_cow append_cow fork release"),
            {"refused"},
            fixed=[NO_ROOM],
        ),
    ],
)
block_hash = Check("block_hash", [either("differs", ["block_hash"], _tells_blocks_apart)])
register = Check("register", [part("registers", ["register"], prompts, {"hashes"}, fixed=[TWINS])])
reuse_prefix = Check(
    "reuse_prefix",
    [
        part("finds", ["reuse_prefix"], prompts, {"hits"}, fixed=[FOUND_TWICE]),
        part("leaves one", ["reuse_prefix"], prompts, {"left over"}),
        part("counts", ["reuse_prefix"], prompts, {"books"}),
    ],
)
evict = Check(
    "evict",
    [
        either("longest free first", ["allocate", "release"], _longest_free_first),
        either("last block first", ["allocate", "release"], _last_block_first),
        part("forgets", ["allocate", "release"], prompts, {"hits", "hashes"}),
        either("keeps others", ["allocate", "release"], _keeps_other_hashes),
    ],
)
story = Check("story", [goes_wrong])
repair = Check("repair", [mended])
