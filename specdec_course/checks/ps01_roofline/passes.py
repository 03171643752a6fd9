"""Problem set 01, part 3: the time of a pass, the speed of decoding, the cost of a verification."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from specdec_course.checks import wrong
from specdec_course.checks.mistakes import NUMBER, Answer, Case, Judge, judged, mistakes
from specdec_course.checks.numbers import as_items, as_number
from specdec_course.checks.ps01_roofline.pieces import (
    H100,
    LLAMA,
    NEITHER,
    NOT_H100,
    NOT_LLAMA,
    Chip,
    Model,
    Pass,
    draw_chip,
    draw_model,
    four_digits,
    ridge,
    right_work,
)


def _times(flop: float, nbytes: float, chip: Chip) -> tuple[Fraction, Fraction]:
    """Seconds of arithmetic and of memory."""
    return Fraction(flop) / Fraction(chip.rate), Fraction(nbytes) / Fraction(chip.bandwidth)


def _bound(flop: float, nbytes: float, chip: Chip) -> str:
    computing, moving = _times(flop, nbytes, chip)
    return "memory" if moving > computing else "compute"


def _pair(value: Any, given: Any) -> list[Any]:
    items = as_items(value)
    if items is None or len(items) != 2:
        expected = "(seconds, 'memory' or 'compute')"
        raise wrong("Two things are wanted.", given=given, got=repr(value), expected=expected)
    return items


def _as_bound(value: Any, what: str, given: Any) -> str:
    bound = _pair(value, given)[1]
    text = str.strip(bound).lower() if issubclass(type(bound), str) else repr(bound)
    return next((name for name in ("memory", "compute") if text.startswith(name)), text)


# c seconds of arithmetic, m of memory.
TIMES = mistakes(
    lambda f: lambda flop, nbytes, chip: f(*_times(flop, nbytes, chip)),
    {
        "both happen at the same time at best: the longer one counts, not the sum.": lambda c, m: c + m,
        "that is passes a second: divide FLOP by FLOP/s, and bytes by bytes/s.": lambda c, m: 1 / max(c, m),
        "divide FLOP by FLOP/s, and bytes by bytes/s, not the other way round.": lambda c, m: 1 / min(c, m),
        "both have to be done: the longer time counts, here that of the memory.": lambda c, m: c if c < m else None,
        "both have to be done: the longer time counts, here that of the arithmetic.": lambda c, m: m if m < c else None,
        "in seconds, not milliseconds.": lambda c, m: 1000 * max(c, m),
    },
) + mistakes(
    lambda f: f,
    {
        "crossed: FLOP go with chip.rate, bytes with chip.bandwidth.": lambda f, b, chip: max(_times(b, f, chip)),
        NOT_H100: lambda f, b, chip: max(_times(f, b, H100)),
    },
)
LONGER = "the resource that takes longer is the bound"
BOUNDS = mistakes(
    lambda f: f,
    {
        "both take equally long here, and then the docstring wants 'compute'.": lambda f, b, chip: (
            "compute" if f / b > ridge(chip) else "memory"
        ),
        f"{LONGER}: compare with the ridge of *this* chip. (295 is that of an H100.)": lambda f, b, c: _bound(
            f, b, H100
        ),
        f"{LONGER}.": lambda f, b, chip: "compute" if _bound(f, b, chip) == "memory" else "memory",
    },
)


def _passes(rng: random.Random, factors: list[float], other: float, intensity: float) -> list[Case]:
    """Passes of some multiples of a chip's ridge, and one that an H100 would bound by the other resource."""
    cases: list[Case] = []
    for factor in factors:
        chip, nbytes = draw_chip(rng), rng.randrange(1, 300) * 1e9
        cases.append((four_digits(nbytes * chip.rate / chip.bandwidth * factor), nbytes, chip))
    bandwidth, nbytes = rng.randrange(100, 9000) * 1e9, rng.randrange(1, 300) * 1e9
    return [*cases, (four_digits(nbytes * intensity), nbytes, Chip(four_digits(bandwidth * other), bandwidth))]


def _tie(rng: random.Random) -> list[Case]:
    """All in powers of two, so that no way to compute it has to round."""
    ridge, bandwidth, nbytes = (2.0 ** rng.randrange(*powers) for powers in ((6, 9), (38, 43), (30, 38)))
    return [(ridge * nbytes, nbytes, Chip(ridge * bandwidth, bandwidth))]


pass_time = judged(
    "pass_time",
    Judge(
        "The time of the pass",
        lambda flop, nbytes, chip: max(_times(flop, nbytes, chip)),
        TIMES,
        replace(NUMBER, read=lambda value, what, given: as_number(_pair(value, given)[0], what, given)),
    ),
    Judge(
        "What bounds the pass",
        _bound,
        BOUNDS,
        Answer(_as_bound, lambda got, right: got == right, repr, lambda got, right: f"{LONGER}, by however little."),
    ),
    memory_takes_longer=lambda rng: _passes(
        rng, [rng.uniform(0.01, 0.9), 0.999], rng.uniform(400, 600), rng.uniform(310, 380)
    ),
    arithmetic_takes_longer=lambda rng: _passes(
        rng, [rng.uniform(1.1, 40), 1.002], rng.uniform(50, 180), rng.uniform(200, 285)
    ),
    both_take_equally_long=_tie,
)


def _with_work(function: Callable, *arguments: Any) -> Any:
    return function(right_work, *arguments)


def _speed(model: Model, chip: Chip, batch: int, context: int) -> Fraction:
    return batch / Pass(model, chip, 1, batch, context).seconds


SPEEDS = mistakes(
    lambda f: lambda m, c, b, s: f(Pass(m, c, 1, b, s)),
    {
        "that is steps a second; a step gives each sequence of the batch a token.": lambda v: 1 / v.seconds,
        "that is seconds a token. Tokens over seconds is asked for.": lambda v: v.seconds / v.b,
        "that is the time of a step. Tokens over seconds is asked for.": lambda v: v.seconds,
        "the longer of the two times counts, not the sum.": lambda v: v.b / (v.arithmetic + v.memory),
        "with this batch arithmetic takes longer than memory, and it decides.": lambda v: v.b / v.memory,
        "with this batch memory takes longer than arithmetic, and it decides.": lambda v: v.b / v.arithmetic,
        "the caches have to be read, too.": lambda v: v.b / v.but(m=v.m._replace(kv_bytes=0)).memory,
        "the caches are read, too, and each sequence gets a token.": lambda v: (
            1 / v.but(m=v.m._replace(kv_bytes=0)).memory
        ),
        "the step of a batch of 1 was used for all.": lambda v: v.b / v.but(b=1).seconds,
        "a batch is not n_tokens: each sequence has one new token.": lambda v: v.b / v.but(n=v.b, b=1).seconds,
        "plain decoding: one new token of each sequence, so n_tokens is 1.": lambda v: v.b / v.but(n=v.b).seconds,
        "the caches have to be read, too: hand `context` on to work.": lambda v: v.b / v.but(s=0).seconds,
        "context is what is cached before the step: do not add 1.": lambda v: v.b / v.but(s=v.s + 1).seconds,
        NOT_LLAMA: lambda v: v.b / v.but(m=LLAMA).seconds,
        NOT_H100: lambda v: v.b / v.but(c=H100).seconds,
        NEITHER: lambda v: v.b / v.but(m=LLAMA, c=H100).seconds,
    },
)


def _at_ridge(rng: random.Random, share: float, context: range, kv_bytes: int = 20_480) -> list[Case]:
    """A batch of `share` of the tokens in flight that a chip's ridge asks for; caches stay small beside the weights."""
    chip = draw_chip(rng)
    batch = max(2, math.ceil(ridge(chip) * Fraction(share)))
    weights = max(draw_model(rng).weights, batch * 40_000_000)
    return [(Model(weights, 2, kv_bytes), chip, rng.randrange(3, 9), batch, rng.choice(context))]


def _many(rng: random.Random) -> list[Case]:
    [(model, chip, _, batch, context)] = _at_ridge(rng, rng.uniform(2, 4), range(30), kv_bytes=1024)
    return [(model, chip, batch, context)]


tokens_per_second = judged(
    "tokens_per_second",
    Judge("Tokens a second", _speed, SPEEDS, call=_with_work),
    one=lambda rng: [(draw_model(rng), draw_chip(rng), 1, rng.randrange(0, 4000))],
    some=lambda rng: [(draw_model(rng), draw_chip(rng), rng.randrange(2, 9), rng.randrange(500, 4000))],
    many=_many,
)


def _cost(model: Model, chip: Chip, gamma: int, batch: int, context: int) -> Fraction:
    check = Pass(model, chip, gamma + 1, batch, context)
    return check.seconds / check.but(n=1).seconds


SWAPPED = "gamma and batch are swapped: work(model, n_tokens, batch, context)"
CACHED = "the drafts are the pass's new tokens: the context is what was cached before"
# v the verification, p the plain step.
COSTS = mistakes(
    lambda f: lambda m, c, g, b, s: f(Pass(m, c, g + 1, b, s), Pass(m, c, 1, b, s)),
    {
        "a pass that checks gamma drafts takes in gamma + 1 tokens.": lambda v, p: v.but(n=v.n - 1).seconds / p.seconds,
        "the other way round: verification over plain step.": lambda v, p: p.seconds / v.seconds,
        "in plain steps, not in seconds: divide by the time of a plain step.": lambda v, p: v.seconds,
        "memory and arithmetic overlap: the longer one counts, in both passes.": lambda v, p: (
            (v.arithmetic + v.memory) / (p.arithmetic + p.memory)
        ),
        "that is as if each token took a pass of its own; the weights are read once.": lambda v, p: v.n,
        "that is as if each draft took a pass of its own; the weights are read once.": lambda v, p: v.n - 1,
        "that is the ratio of the bytes; the longer of both times decides.": lambda v, p: v.memory / p.memory,
        "here it is not free: look at how many tokens are in flight.": lambda v, p: v.arithmetic > v.memory or None,
        "nearly 1, but not quite: the drafts' keys and values are written, too.": lambda v, p: v.memory > 0 or None,
        "that is what it costs *more* than a plain step: do not subtract 1.": lambda v, p: v.seconds / p.seconds - 1,
        "the pass is paid once: do not multiply by its tokens.": lambda v, p: v.n * v.seconds / p.seconds,
        "the price of the whole pass is asked for, not that of a token.": lambda v, p: v.seconds / p.seconds / v.n,
        "that is the cost with a batch of 1.": lambda v, p: v.but(b=1).seconds / p.but(b=1).seconds,
        "the drafts of a sequence share its cache.": lambda v, p: p.but(b=p.b * v.n).seconds / p.seconds,
        "compare with a plain step of the same batch.": lambda v, p: v.seconds / p.but(b=1).seconds,
        "the plain step reads the caches, too: same context.": lambda v, p: v.seconds / p.but(s=0).seconds,
        "the caches are read, too: hand `context` on to work.": lambda v, p: v.but(s=0).seconds / p.but(s=0).seconds,
        f"{SWAPPED}.": lambda v, p: v.but(n=v.b + 1, b=v.n - 1).seconds / p.but(b=v.n - 1).seconds,
        f"{SWAPPED}, in the verification.": lambda v, p: v.but(n=v.b, b=v.n).seconds / p.seconds,
        f"{SWAPPED}, in both passes.": lambda v, p: v.but(n=v.b, b=v.n).seconds / p.but(n=v.b, b=1).seconds,
        f"{CACHED}.": lambda v, p: v.but(s=v.s + v.n - 1).seconds / p.seconds,
        f"{CACHED}, without the new tokens.": lambda v, p: v.but(s=v.s + v.n).seconds / p.seconds,
        f"{CACHED}, in both passes.": lambda v, p: v.but(s=v.s + v.n).seconds / p.but(s=p.s + 1).seconds,
        NOT_LLAMA: lambda v, p: v.but(m=LLAMA).seconds / p.but(m=LLAMA).seconds,
        NOT_H100: lambda v, p: v.but(c=H100).seconds / p.but(c=H100).seconds,
        NEITHER: lambda v, p: v.but(m=LLAMA, c=H100).seconds / p.but(m=LLAMA, c=H100).seconds,
    },
)


def _left_of_ridge(rng: random.Random) -> list[Case]:
    """With caches that show beside the weights."""
    model = Model(rng.randrange(10, 200) * 10**8, 2, rng.randrange(200, 800) * 1024)
    return [(model, draw_chip(rng), rng.randrange(2, 9), rng.randrange(2, 5), rng.randrange(500, 4000))]


verify_cost = judged(
    "verify_cost",
    Judge("The cost of the verification", _cost, COSTS, call=_with_work),
    left_of_ridge=_left_of_ridge,
    across_ridge=lambda rng: _at_ridge(rng, rng.uniform(0.6, 0.9), range(200, 500)),
    right_of_ridge=lambda rng: _at_ridge(rng, rng.uniform(2, 4), range(50, 200)),
)
