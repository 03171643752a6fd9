"""Parts of a check that drive functions of problem set 03 with random operations.

A part passes if it holds with the learner's other functions, or with the right ones (BASE) in their place: so parts do
not depend on each other. Operations that fail are shortened before they are shown. Known slips (SLIPS) are run on the
same operations; the one that does exactly what the learner's code did is named.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any

from specdec_course.checks import CheckFailed, wrong
from specdec_course.checks.block_pool_moves import BASE, SLIPS, Functions, slipped
from specdec_course.checks.block_pool_world import Bad, Op, Setup, World

NEXT_LINE = "\n            "  # under the values of a message
Story = Callable[[random.Random], tuple[Setup, list[Op]]]


def play(functions: Functions, setup: Setup, ops: Sequence[Op], look: Collection[str]) -> tuple[World, Bad | None]:
    """Do the operations until something does not hold; the world then, and what does not hold."""
    world = World(functions, setup, look)
    for op in ops:
        try:
            world.do(op)
        except Bad as bad:
            return world, bad
        except (NotImplementedError, CheckFailed):
            raise
        except Exception as error:  # the state is such that the operation cannot be tried
            return world, Bad("raised", f"after this the pool is beyond use ({type(error).__name__})")
    return world, None


def trace(functions: Functions, setup: Setup, ops: Sequence[Op], look: Collection[str]) -> list[Any]:
    """What a set of functions does, right or not."""
    world = World(functions, setup, look, judge=False)
    for op in ops:
        try:
            world.do(op)
        except Exception as error:
            world.seen.append(type(error).__name__)
    return world.seen


def shorten(ops: list[Op], fails: Callable[[list[Op]], bool]) -> list[Op]:
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


def _likely(
    names: Sequence[str], functions: Functions, told: Sequence[tuple[Setup, list[Op]]], look: Collection[str]
) -> str:
    """The slip that fails in the first story and does in all of them what the learner's functions do, in words."""
    others = {n: f for n, f in BASE.items() if n not in names}
    done = [trace({**functions, **others}, *story, look) for story in told]
    for name, old, new, words in SLIPS:
        if name in names:
            wrongly = {**BASE, name: slipped(name, old, new)}
            if play(wrongly, *told[0], look)[1] and all(
                trace(wrongly, *story, look) == seen for story, seen in zip(told, done)
            ):
                return words
    return ""


def with_lines(what: str, lines: Sequence[str], most: int = 24) -> str:
    """What is wrong, and below it the operations as code to paste; where there are too many, the last ones."""
    lines = [lines[0], "...", *lines[1 - most :]] if len(lines) > most else list(lines)
    return f"{what}\n  given     {NEXT_LINE.join(lines)}"


def drive(
    names: Sequence[str], functions: Functions, told: Sequence[tuple[Setup, list[Op]]], look: Collection[str]
) -> None:
    """Raise CheckFailed, with few operations, if something does not hold in one of the stories."""
    tried = ((setup, ops, play(functions, setup, ops, look)[1]) for setup, ops in told)
    setup, ops, first = next((t for t in tried if t[2]), (*told[0], None))
    if first is None:
        return

    def fails(fewer: list[Op]) -> bool:
        bad = play(functions, setup, fewer, look)[1]
        return bad is not None and bad.kind == first.kind

    whole = (setup, ops)
    ops = shorten(ops, fails)
    # With fewer blocks, less is needed to fill the pool.
    blocks, size, _ = setup
    for fewer in range(1, blocks + 1):
        setup = (fewer, size, tuple(range(fewer)))
        found = next((o for o in _without_some(ops) if fails(o)), None)
        if found is not None:
            ops = shorten(found, fails)
            break
    else:
        setup = whole[0]
    world, bad = play(functions, setup, ops, look)
    assert bad is not None
    # On a short story several slips may look alike; other stories tell them apart.
    short = (setup, ops)
    mistake = _likely(names, functions, [short, whole, *told[:12]], look)
    mistake = mistake or bad.likely or _likely(names, functions, [short], look)
    raise wrong(with_lines(bad.what, world.lines), got=bad.got, expected=bad.expected, mistake=mistake)


def _without_some(ops: list[Op]) -> Iterator[list[Op]]:
    """The operations, and all that is left without a piece of them."""
    yield ops
    for length in range(1, len(ops)):
        for i in range(len(ops) - length + 1):
            yield ops[:i] + ops[i + length :]


def quiet() -> redirect_stdout[StringIO]:
    """What the learner's functions print, thousands of times, is not shown."""
    return redirect_stdout(StringIO())


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


def part(
    title: str,
    names: Sequence[str],
    story: Story,
    look: Collection[str],
    rounds: int = 40,
    fixed: Sequence[tuple[Setup, list[Op]]] = (),
) -> Callable[..., None]:
    """A part that drives the functions `names` with `fixed` and random operations, and judges what is in `look`."""

    def look_at(functions: Functions, rng: random.Random) -> None:
        drive(names, functions, [*fixed, *(story(rng) for _ in range(rounds))], look)

    return either(title, names, look_at)


def as_failure(error: Exception) -> Exception:
    """What a part raises, for what went wrong in it."""
    if isinstance(error, Bad):
        return wrong(error.what, got=error.got, expected=error.expected, mistake=error.likely)
    return error


def either(title: str, names: Sequence[str], look_at: Callable[[Functions, random.Random], Any]) -> Callable[..., None]:
    """A part that holds with the learner's other functions, or else with the right ones in their place."""

    def part(*arguments: Any) -> None:
        *learners, rng = arguments
        theirs, state = dict(zip(names, learners)), rng.getstate()
        others: Functions = {}
        for space in (getattr(f, "__globals__", {}) for f in learners):
            others |= {n: space[n] for n in BASE if n not in names and callable(space.get(n))}
        try:
            with quiet():
                return look_at({**BASE, **others, **theirs}, rng)
        except Exception as error:
            own = as_failure(error)
        rng.setstate(state)
        try:
            with quiet(), _standing_on({n: f for n, f in BASE.items() if n not in names}, learners):
                return look_at({**BASE, **theirs}, rng)
        except Exception as error:
            right = as_failure(error)
        # A signature of the learner's own: then the right functions do not fit theirs.
        raise own if "TypeError" in str(right) and "TypeError" not in str(own) else right from None

    part.__name__ = title
    return part


# Random operations for each of the functions


def mixed(kinds: str, steps: int = 20) -> Story:
    """Operations of these kinds, a word each, repeated where they shall come more often."""

    def story(rng: random.Random) -> tuple[Setup, list[Op]]:
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


def prompts(rng: random.Random) -> tuple[Setup, list[Op]]:
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


# The second prompt's last block holds the same as the first one's.
TWINS: tuple[Setup, list[Op]] = ((6, 2, tuple(range(6))), [("start", "a", (1, 1, 2, 2)), ("start", "b", (1, 1, 2, 2))])
# Found, let go of, and found again, with nothing registered in between. Block 0 is one of them.
FOUND_TWICE: tuple[Setup, list[Op]] = (
    (6, 2, tuple(range(6))),
    [
        ("start", "a", (1, 1, 2, 2, 3)),
        ("release", "a"),
        ("find", "b", (1, 1, 2, 2, 3)),
        ("release", "b"),
        ("find", "c", (1, 1, 2, 2, 3)),
    ],
)
# A block for the copy is free, and none for the growth.
NO_ROOM: tuple[Setup, list[Op]] = (
    (3, 2, tuple(range(3))),
    [("append_cow", "a", 3), ("fork", "a", "b"), ("append_cow", "b", 3)],
)
