"""The part of problem set 03 in which a bug is found in given code: a witness of it, and its repair."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from specdec_course.checks import wrong
from specdec_course.checks.block_pool_moves import Pool
from specdec_course.checks.block_pool_parts import quiet, shorten, with_lines
from specdec_course.checks.block_pool_world import Bad, Op, told


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

    def __init__(self, start: Callable[..., Any], num_blocks: int, block_size: int, name: str = "start") -> None:
        self.name, self.start, self.pool = name, start, ServerPool(num_blocks, block_size)
        self.prefix: dict[int, tuple[int, ...]] = {}
        self.newest: dict[tuple[int, ...], int] = {}  # where the entry of a prefix leads
        self.doubtful: set[tuple[int, ...]] = set()
        self.live: list[list[int]] = []  # tables that were not ended
        self.lines = [f"pool = ServerPool({num_blocks}, {block_size})"]

    def serve(self, prompt: Sequence[int], keep: bool = False) -> None:
        """Start a prompt and, unless `keep`, end it. Raises Bad if the table is wrong."""
        pool, size, prompt = self.pool, self.pool.block_size, list(prompt)
        free = set(range(len(pool.refs))) - {b for held in self.live for b in held}
        line = f"{self.name}(pool, {prompt})"
        self.lines.append(line)
        try:
            result = self.start(pool, list(prompt))
        except NotImplementedError:
            raise
        except Exception as error:
            raise Bad("raised", f"`{line}` raised an error", told(error), "no error") from None
        try:
            table, known = [int(b) for b in result[0]], int(result[1])
        except (TypeError, ValueError, IndexError):
            raise Bad("result", f"`{line}`", repr(result), "(table, number of known tokens)") from None
        self.lines[-1] += f"  # {table}, {known} known"
        if len(table) != -(-len(prompt) // size) or known % size or not 0 <= known < len(prompt):
            raise Bad(
                "result",
                f"`{line}`: table and number of known tokens",
                (table, known),
                "one block per begun piece, and less known than given",
            )
        least = 0
        for i, block in enumerate(table):
            prefix = tuple(prompt[: (i + 1) * size])
            if i * size < known:
                if self.prefix.get(block) != prefix:
                    holds = list(self.prefix.get(block, ()))
                    what = f"`{line}`: block {block} is taken as known for the end of {list(prefix)}"
                    raise Bad(
                        "hit", what, f"it was computed as the end of {holds}", "a block computed behind these tokens"
                    )
            elif block not in free:
                raise Bad("result", f"`{line}`: a new block", block, f"one that was free: {sorted(free)}")
        sure = set(self.prefix.values()) - self.doubtful
        while least + size < len(prompt) and tuple(prompt[: least + size]) in sure:
            least += size
        new = table[known // size :]
        for i, block in enumerate(new, start=known // size):
            old = self.prefix.pop(block, None)
            if old is not None:
                if old not in self.prefix.values():
                    self.doubtful.discard(old)
                elif self.newest[old] == block:
                    self.doubtful.add(old)
            if (i + 1) * size <= len(prompt):
                self.prefix[block] = prefix = tuple(prompt[: (i + 1) * size])
                self.newest[prefix] = block
        if known < least:
            raise Bad("missed", f"`{line}`: tokens that are known", known, least)
        counts = [sum(b in held for held in [*self.live, table]) for b in range(len(pool.refs))]
        got, due = (list(pool.refs), sorted(pool.free)), (counts, [b for b, count in enumerate(counts) if not count])
        if got != due:
            raise Bad("result", f"`{line}`: the counts, and the free blocks", got, due)
        if keep:
            self.live.append(table)
        else:
            for block in reversed(table):
                pool.refs[block] -= 1
                if pool.refs[block] == 0:
                    pool.free.append(block)
            self.lines[-1] += ", ended"


def goes_wrong(story: Callable[[], Any], rng: random.Random) -> None:
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
        except Bad as bad:
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
    what = with_lines("all went well in this story", server.lines)
    raise wrong(what, got="no such hit", expected="a hit on a block of another text", mistake=likely)


# Blocks 0 and 1 hold the same, and the entry leads to 1. Then 0 is handed out, and 1 must still be found.
TWO_WITH_ONE_ENTRY: tuple[int, int, list[Op]] = (
    4,
    2,
    [("serve", False, prompt) for prompt in ((1, 1), (1, 1), (2, 2, 3, 3, 4, 4), (1, 1, 5))],
)


def mended(start: Callable[..., Any], rng: random.Random) -> None:
    """Never a block of other tokens, and still a hit wherever there is one."""
    stories = [TWO_WITH_ONE_ENTRY]
    for _ in range(150):
        blocks, size = rng.randint(3, 6), rng.choice((1, 2, 2, 3))
        lengths = [rng.randint(1, blocks * size) for _ in range(rng.randint(3, 9))]
        served = [("serve", rng.random() < 0.2, tuple(rng.choice((1, 2)) for _ in range(length))) for length in lengths]
        stories.append((blocks, size, served))
    for blocks, size, ops in stories:

        def fails(ops: list[Op]) -> bool:
            return _served(start, blocks, size, ops)[1] is not None  # noqa: B023

        if not fails(ops):
            continue
        server, bad = _served(start, blocks, size, shorten(ops, fails))
        assert bad is not None
        likely = {
            "hit": "the entry of a block that was used for other text is still there; comparing tokens is not enough",
            "missed": "what is still there must be found: only entries of blocks that were handed out are out of date. "
            "Two blocks may hold the same, and the entry lead to the other one: compare before you delete it",
        }.get(bad.kind, "")
        raise wrong(with_lines(bad.what, server.lines), got=bad.got, expected=bad.expected, mistake=likely)


def _served(start: Callable[..., Any], blocks: int, size: int, ops: Sequence[Op]) -> tuple[_Server, Bad | None]:
    server = _Server(start, blocks, size, "mended_start")
    for _, keep, prompt in ops:
        if -(-len(prompt) // size) > blocks - len({b for table in server.live for b in table}):
            continue
        try:
            with quiet():
                server.serve(prompt, keep)
        except Bad as bad:
            return server, bad
    return server, None
