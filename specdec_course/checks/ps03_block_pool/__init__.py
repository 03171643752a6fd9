"""Checks of problem set 03, the block pool.

Each function is called once on many small pools, and what it leaves behind is compared with what the reference pool,
`specdec_ref.cache.block_pool`, leaves there: tables, counts, queue, hashes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from typing import Any

from specdec_course.checks import Check, wrong
from specdec_course.checks.mistakes import Answer, Judge, Mistake
from specdec_course.checks.ps03_block_pool.cases import call
from specdec_course.checks.ps03_block_pool.pools import RIGHT, Pool, Scene, act, named, plain_hash, standing_on_right
from specdec_course.checks.ps03_block_pool.server import goes_wrong, mended
from specdec_course.checks.ps03_block_pool.slips import MISTAKES, hold

Seen = dict[str, Any]
BOOKS = ("tables", "counts", "queue")
REFUSE = {
    "MemoryError": "compare the blocks that are needed with those that are free, before anything else",
    "ValueError": "look at every block first: is it one of the pool's (none is negative), held, and named once?",
}
HINTS = {
    "order": "the queue: the longest free goes first, from the front (popleft takes the oldest, pop the newest); "
    "what a table lets go of comes to the back, its last block first",
    "slots": "position i lies in block table[i // block_size], and block b begins at slot b * block_size",
    "pairs": "a list of pairs (source, target), from the shared block to the one that takes its place; [] for none",
    "reads": "a list of pairs (source, target), from the shared block to the one in its place; or [] for none",
    "forgets": "a block that is handed out loses its hash: in pool.hashes, and no entry of pool.cached leads to it",
    "keeps": "a block that is not handed out keeps its hash",
    "entries": "only entries of blocks that were handed out go; another may have the same hash: compare first",
    "finds": "all known blocks from the start of the prompt, held by others or not, while a token is left over",
    "hashes": "a block that is found can be found again: its hash goes only when allocate hands it out",
}


def _hint(look: Sequence[str], got: Seen, right: Seen) -> str:
    """What to say of a difference that no known mistake explains."""
    if got["error"] == "odd":
        return "is there a return?" if got["result"] is None else ""
    if right["error"]:
        same = got["error"] == right["error"]
        return "all or nothing: check everything first, then change" if same else REFUSE[right["error"]]
    if got["error"]:
        return "as many blocks as are free may be asked for (> or >=?)" * (got["error"] == "MemoryError")
    for block, (held, count) in got["counts"].items():
        why = "it can never be free again: a leak" if count > held else "it will be free while it is read"
        return f"block {block} is held by {held} table{'s' * (held != 1)}, and counts {count}: {why}"
    for block, times in got["queue"].items():
        why = "missing in pool.free: a leak" if times < 0 else "in pool.free while it is held, or twice"
        return f"block {block} is {why}"
    return next((HINTS[side] for side in look if side in HINTS and got[side] != right[side]), "")


def _register(pool: Pool, table: list[int], tokens: Sequence[int]) -> None:
    size = pool.block_size
    for i in range(len(tokens) // size):
        name = named(RIGHT["block_hash"], tuple(tokens[: (i + 1) * size]), size)
        pool.hashes[table[i]], pool.cached[name] = name, table[i]


def _right(operation: str, scene: Scene, *arguments: Any) -> Seen:
    def reuse_prefix(pool: Pool, tokens: Sequence[int]) -> list[int]:
        return hold(pool, scene.known(tokens))

    known: dict[str, Callable[..., Any]] = {**RIGHT, "register": _register, "reuse_prefix": reuse_prefix}
    return act(operation, known[operation], scene, *arguments)


def part(
    operation: str, title: str, *look: str, which: int = 0, books: bool = True, **kind: bool
) -> Callable[..., None]:
    """A part that looks at these sides of what an operation leaves behind, and at the books.

    It holds if it does with the learner's other functions, or with right ones in their place.
    """

    def same(got: Seen, right: Seen) -> bool:
        return all(got.get(side) == right.get(side) for side in ("error", "untouched", *BOOKS * books, *look))

    judge = Judge(
        operation,
        partial(_right, operation),
        [Mistake(m.says, partial(act, operation, m.function)) for m in MISTAKES.get(operation, ())],
        Answer(lambda seen, what, given: seen, same, lambda seen: seen["shown"], partial(_hint, look)),
        lambda scene, *arguments: scene.text(operation, *arguments),
    )

    def tried(*arguments: Any) -> None:
        learner, failures = arguments[which], []
        cases = [call(arguments[-1], 1 + i // 10, operation, title, **kind) for i in range(80)]
        hashing = getattr(learner, "__globals__", {}).get("block_hash", RIGHT["block_hash"])
        for function, names in ((learner, hashing), (standing_on_right(learner), RIGHT["block_hash"])):
            try:
                with redirect_stdout(StringIO()):
                    return judge(partial(act, operation, function, hashing=names), cases)
            except Exception as error:
                failures.append(error)
        own, on_right = failures
        # Where the learner's functions have signatures of their own, the right ones do not fit them.
        raise own if "TypeError" in str(on_right) and "TypeError" not in str(own) else on_right

    tried.__name__ = title
    return tried


def _tells_blocks_apart(block_hash: Callable[..., Any], rng: random.Random) -> None:
    """Equal blocks have equal hashes, different ones different hashes: tokens, their order, and what came before.

    Of all prefixes of one or two blocks over a few tokens, many are equal to each other for a hash that sums or mixes
    without order, writes digits side by side, or keeps a byte of each token.
    """
    tokens = [1, 2, 3, 12, 23, 257, rng.randint(258, 49_151)]
    found: dict[Any, tuple[int, ...]] = {}

    def name_of(*prefix: int) -> Any:
        name, again = (plain_hash(named(block_hash, prefix, 2)) for _ in range(2))
        if name is None or name != again:
            raise wrong("No hash, or not the same when asked again.", given=list(prefix), got=f"{name}, then {again}")
        known = found.setdefault(name, prefix)
        if known != prefix:
            given = f"tokens {list(known)} and tokens {list(prefix)}, in blocks of 2"
            likely = "sums and the like are equal too often: hash (parent, tuple(tokens))"
            for mistake in reversed(MISTAKES["block_hash"]):
                if named(mistake.function, known, 2) == named(mistake.function, prefix, 2):
                    likely = str(mistake.says)
            raise wrong("Two different prefixes have the same hash.", given=given, got=repr(name), mistake=likely)
        return name

    blocks = [(a, b) for a in tokens for b in tokens]
    for prefix in [*blocks, *((*before, *block) for before in blocks for block in blocks)]:
        name_of(*prefix)
    # Where one more of the first token adds as much as a few more of the second, the hash is a sum.
    one, first, second = name_of(1, 1), name_of(2, 1), name_of(1, 2)
    if isinstance(one, int) and (first - one) % (second - one) == 0 and 0 < (first - one) // (second - one) < 10**6:
        name_of(1, 1 + (first - one) // (second - one))


def _forgets(allocate: Any, release: Any, rng: random.Random) -> None:
    """A block that is handed out loses its hash, one that is let go of keeps it."""
    part("allocate", "forgets", "forgets", hashed=True)(allocate, rng)
    part("release", "forgets", "keeps", "entries", hashed=True)(release, rng)


PREFIX = {"books": False, "shared": True, "hashed": True}
allocate = Check("allocate", [part("allocate", "gives"), part("allocate", "refused")])
release = Check("release", [part("release", name, shared=True) for name in ("counts", "again", "twice", "unknown")])
append = Check("append", [part("append", "grows"), part("append", "slots", "slots"), part("append", "refused")])
truncate = Check(
    "truncate",
    [part("truncate", "shortens", shared=True), part("truncate", "leaks nothing", *BOOKS[1:], "shorter", books=False)],
)
fork = Check("fork", [part("fork", "forks", shared=True)])
append_cow = Check(
    "append_cow",
    [part("append_cow", *look, shared=True) for look in (("reads", "reads"), ("copies", "pairs"), ("refused",))],
)
block_hash = Check("block_hash", [_tells_blocks_apart])
register = Check("register", [part("register", "registers", "hashes", "leads", shared=True)])
reuse_prefix = Check(
    "reuse_prefix",
    [
        part("reuse_prefix", "finds", "finds", "hashes", "leads", **PREFIX),
        part("reuse_prefix", "leaves one", "left", "some", **PREFIX),
        part("reuse_prefix", "counts", *BOOKS[1:], "some", **PREFIX),
    ],
)
evict = Check(
    "evict",
    [
        part("allocate", "longest free first", "order", "taken", books=False, hashed=True),
        part("release", "last block first", "order", which=1, **PREFIX),
        _forgets,
        part("allocate", "keeps others", "many", "keeps", "entries", books=False, hashed=True),
    ],
)
story = Check("story", [goes_wrong])
repair = Check("repair", [mended])
