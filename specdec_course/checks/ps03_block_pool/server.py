"""The bug of problem set 03 in given code: a witness of it, and its repair."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from specdec_course.checks import raised, wrong
from specdec_course.checks.numbers import as_items
from specdec_course.checks.ps03_block_pool.pools import NEXT_LINE, Pool, Prefix, numbers

Served = tuple[str, str, str]
"""What came of a prompt: the kind of mistake, "" where all went well; what came; what was expected."""
LIKELY = {
    "hit": "the entry of a block that was used for other text is still there; comparing tokens is not enough",
    "miss": "what is still there must be found: only entries of blocks that are handed out are out of date. Two blocks "
    "may hold the same, and the entry lead to the other one: compare before you delete it",
    "more": "less is known than given: a token has to be left over",
}


class ServerPool(Pool):
    """The pool of the given server: it also knows the tokens of each block."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.tokens: list[Prefix] = [()] * num_blocks


def _given_start(pool: ServerPool, prompt: Sequence[int]) -> tuple[list[int], int]:
    """The given code, bug included: entries of `cached` stay when their block is used for something else."""
    size, known = pool.block_size, 0
    table: list[int] = []
    for i in range(0, len(prompt), size):
        tokens, prefix = tuple(prompt[i : i + size]), tuple(prompt[: i + size])
        block = pool.cached.get(prefix, -1)
        if block >= 0 and pool.tokens[block] == tokens and known == i and i + size < len(prompt):
            known += size
            pool.free.remove(block)
        else:
            block = pool.free.popleft()
            pool.tokens[block] = tokens
            if len(tokens) == size:
                pool.cached[prefix] = block
        pool.refs[block] += 1
        table.append(block)
    return table, known


def _serve(start: Callable[..., Any], blocks: int, size: int, prompts: Sequence[Prefix], kept: int) -> Iterator[Served]:
    """Start the prompts one after the other, and end them, but for every `kept`-th."""
    pool = ServerPool(blocks, size)
    holds: dict[int, Prefix] = {}  # what each block was computed for
    live: list[list[int]] = []
    for number, prompt in enumerate(prompts, start=1):
        idle = set(range(blocks)) - {block for table in live for block in table}
        prefixes = [tuple(prompt[: i + size]) for i in range(0, len(prompt), size)]
        if len(prefixes) > len(idle):
            return
        try:
            answer = as_items(start(pool, list(prompt))) or [None]
            table, [known] = numbers(answer[0], "the table"), numbers(answer[1:], "the number of known tokens")
        except NotImplementedError:
            raise
        except Exception as error:  # whatever the learner's code raises
            yield "error", str(raised(error)), "(table, number of known tokens)"
            return
        found, new, due = table[: known // size], table[known // size :], 0
        while (due + 1) * size < len(prompt) and prefixes[due] in holds.values():
            due += 1
        got = f"table {table}, {known} tokens known"
        held = [list(holds.get(block, ())) for block in found]
        for block in new:
            holds.pop(block, None)
        holds |= {block: prefix for block, prefix in zip(table, prefixes) if len(prefix) % size == 0}
        live.append(table)
        counts = [sum(block in table for table in live) for block in range(blocks)]
        if len(table) != len(prefixes) or known % size or not set(new) <= idle - set(found) or len(set(new)) < len(new):
            yield "table", got, f"{len(prefixes)} blocks, known ones and then free ones of {sorted(idle)}"
        elif (list(pool.refs), sorted(pool.free)) != (counts, [b for b in range(blocks) if not counts[b]]):
            yield "books", f"{got}, the counts {list(pool.refs)}, free {sorted(pool.free)}", f"the counts {counts}"
        elif held != [list(prefix) for prefix in prefixes[: len(found)]]:
            yield "hit", f"{got}: the blocks were computed as the ends of {held}", f"{due * size} tokens known"
        else:
            kind = "miss" if known < due * size else "more" if known > due * size else ""
            yield kind, got, f"{due * size} tokens known"
        if number % kept:
            for block in reversed(live.pop()):
                pool.refs[block] -= 1
                if pool.refs[block] == 0:
                    pool.free.append(block)


def goes_wrong(story: Callable[[], Any], rng: random.Random) -> None:
    """The prompts of `story` lead the given code to a block that was computed after other tokens."""
    answer = as_items(story()) or []
    if not answer or not all(as_items(prompt) for prompt in answer):
        raise wrong("A story is a list of prompts.", got=repr(answer), expected="lists of tokens: [[1, 2, 3], [4, 5]]")
    prompts = [tuple(numbers(prompt, "a prompt")) for prompt in answer]
    if max(map(len, prompts)) > 8:
        raise wrong("4 blocks of 2 hold 8 tokens.", got=max(prompts, key=len), expected="at most 8 tokens")
    served = list(_serve(_given_start, 4, 2, prompts, kept=len(prompts) + 1))
    if all(kind != "hit" for kind, _, _ in served):
        raise wrong(
            "All goes well in this story.",
            given=NEXT_LINE.join(f"{list(prompt)}: {got}" for prompt, (_, got, _) in zip(prompts, served)),
            got="no such hit",
            expected="a hit on a block of another text",
            mistake="tokens are compared, so the *same* tokens must come to lie in the very block of the old entry, "
            "after another beginning; then a prompt has to ask for what was there, with a token left over",
        )


# Blocks 0 and 1 hold the same, and the entry leads to 1. Then 0 is handed out, and 1 must still be found.
TWO_WITH_ONE_ENTRY: list[Prefix] = [(1, 1), (1, 1), (2, 2, 3, 3, 4, 4), (1, 1, 5)]


def mended(start: Callable[..., Any], rng: random.Random) -> None:
    """Never a block of other tokens, and still a hit wherever there is one."""
    stories = [(4, 2, TWO_WITH_ONE_ENTRY, 9)]
    for i in range(150):
        blocks, size, count = rng.randint(3, 4 + i // 50), rng.choice((1, 2, 2, 3)), rng.randint(3, 4 + i // 30)
        # The last tokens differ, so no two blocks hold the same.
        drawn = [(*rng.choices((1, 2), k=rng.randrange(blocks * size)), 10 + j) for j in range(count)]
        stories.append((blocks, size, drawn, rng.choice((3, 9, 9))))
    for blocks, size, prompts, kept in stories:
        with redirect_stdout(StringIO()):
            served = list(_serve(start, blocks, size, prompts, kept))
        for i, (kind, got, expected) in enumerate(served, start=1):
            if kind:
                ends = ["" if j % kept == 0 else "; end(pool, table)" for j in range(1, i + 1)]
                lines = [f"table, known = mended_start(pool, {list(p)}){end}" for p, end in zip(prompts, ends)]
                given = NEXT_LINE.join([f"pool = ServerPool({blocks}, {size})", *lines])
                what = "The last of these prompts goes wrong."
                raise wrong(what, given=given, got=got, expected=expected, mistake=LIKELY.get(kind, ""))
