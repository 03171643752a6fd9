"""Problem set 01, parts 4 and 5: the batch at which a pass turns compute-bound, and the drafts that are free."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from specdec_course.checks import Check, wrong
from specdec_course.checks.mistakes import NUMBER, Answer, Case, Judge, judged, mistakes
from specdec_course.checks.numbers import Number, as_items, as_number, as_numbers, is_whole, number_text, typed
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
    ridge,
    right_work,
    stop_endless,
)


def _smallest(holds: Callable[[int], bool]) -> int | None:
    """The smallest number from 1 on for which `holds`, which then holds for all larger ones; None above 2^60."""
    high = next((2**i for i in range(60) if holds(2**i)), None)
    if high is None:
        return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _batch(model: Model, chip: Chip, n_tokens: int, context: int) -> int | None:
    """The smallest batch whose arithmetic takes at least as long as its memory."""
    one = Pass(model, chip, n_tokens, 1, context)
    return _smallest(lambda batch: one.but(b=batch).arithmetic >= one.but(b=batch).memory)


def _crossing(v: Pass, cached: int) -> Fraction:
    """The batch, not rounded, at which arithmetic has caught up with memory, if a sequence moves `cached` tokens.

    Raises ValueError where it never does.
    """
    gain = v.but(b=1).arithmetic - Fraction(v.m.kv_bytes * cached) / Fraction(v.c.bandwidth)
    if gain <= 0:
        raise ValueError("each sequence takes longer to read than to compute")
    return v.m.weights * Fraction(v.m.bytes_per_weight) / Fraction(v.c.bandwidth) / gain


def _exact(v: Pass) -> Fraction:
    return _crossing(v, v.s + v.n)


WRITTEN = "the keys and values of all new tokens are written: count them"
BATCHES = mistakes(
    lambda f: lambda m, c, n, s: max(1, math.ceil(f(Pass(m, c, n, 1, s)))),
    {
        "where both take equally long, it is compute-bound: >= and not >, ceil and not int + 1.": lambda v: (
            int(_exact(v)) + 1
        ),
        "off by one: at this batch memory still takes longer.": lambda v: max(1, math.floor(_exact(v))),
        "off by one: rounded to the nearest, where it has to be rounded up.": lambda v: round(_exact(v)),
        "off by one: is 1 added to a batch that is large enough?": lambda v: _exact(v) + 1,
        f"{WRITTEN} beside those of the context, which are read.": lambda v: _crossing(v, v.s),
        f"{WRITTEN}, not one of them.": lambda v: _crossing(v, v.s + 1),
        "the caches are read as well, each sequence its own.": lambda v: _crossing(v, 0),
        "the keys and values of the context are read as well.": lambda v: _crossing(v, v.n),
        "n_tokens tokens of each sequence are in the pass, not one.": lambda v: _exact(v.but(n=1)),
        "a sequence's tokens share its cache: do not divide by n_tokens.": lambda v: Fraction(
            math.ceil(_exact(v.but(n=1))), v.n
        ),
        "the ridge is in FLOP a byte: a weight takes bytes_per_weight bytes, and gives 2 FLOP.": lambda v: (
            ridge(v.c) / v.n
        ),
        "the ridge is in FLOP a byte, and a batch is in sequences.": lambda v: ridge(v.c),
        NOT_LLAMA: lambda v: _exact(v.but(m=LLAMA)),
        NOT_H100: lambda v: _exact(v.but(c=H100)),
        NEITHER: lambda v: _exact(v.but(m=LLAMA, c=H100)),
    },
)


def _as_batch(value: Any, what: str, given: Any) -> Number | None:
    return None if value is None else as_number(value, what, given)


def _batch_hint(got: Number | None, right: int | None) -> str:
    if right is None:
        return "each sequence brings more bytes to read than its arithmetic can cover, so a larger batch does not help."
    if got is None:
        return "does your search stop too early? Or is it for one token of each sequence, where n_tokens share a cache?"
    if not is_whole(got):
        return "round up: half a sequence does not exist."
    return "a batch has at least one sequence." if got < 1 else ""


BATCH = Answer(
    _as_batch,
    lambda got, right: got == right,
    lambda value: "None" if value is None else number_text(value),
    _batch_hint,
)


def _draw_crossing(rng: random.Random, tokens: range, context: range, shares: tuple[float, float], near: float) -> Case:
    """A model, chip, tokens and context that some batch makes compute-bound; forgetting to write leads elsewhere.

    shares: of the arithmetic's time that a sequence's cache takes. near: by how much the batch, not rounded, lies above
    a whole number, give or take 0.2. Below 0.5, rounding to the nearest goes wrong; above it, cutting off does.
    """
    while True:
        v = Pass(
            draw_model(rng, weights=rng.randrange(1, 20) * 10**8),
            draw_chip(rng),
            rng.choice(tokens),
            1,
            rng.choice(context),
        )
        covered = v.flop / ridge(v.c) / (v.s + v.n)
        v = v.but(m=v.m._replace(kv_bytes=math.ceil(covered * Fraction(rng.uniform(*shares)))))
        batch = _exact(v)
        if 3 < batch < 2000 and abs(batch % 1 - Fraction(near)) <= 0.2 and math.ceil(_crossing(v, v.s)) + 1 < batch:
            return v.m, v.c, v.n, v.s


def _short_context(rng: random.Random) -> list[Case]:
    return [_draw_crossing(rng, range(1, 4), range(1), (0.05, 0.4), near) for near in (0.25, 0.75)]


def _with_caches(rng: random.Random) -> list[Case]:
    """Few earlier tokens in the second case, so that the written ones count."""
    contexts = (range(100, 2000), 0.25), (range(5, 60), 0.75)
    return [_draw_crossing(rng, range(2, 8), context, (0.3, 0.8), near) for context, near in contexts]


def _far_away(rng: random.Random) -> list[Case]:
    """Near the 10,000 that the text names."""
    while True:
        v = Pass(draw_model(rng), draw_chip(rng), rng.randrange(2, 7), 1, rng.randrange(500, 4000))
        missing = v.m.weights * Fraction(v.m.bytes_per_weight) / rng.randrange(9_300, 9_800)
        v = v.but(m=v.m._replace(kv_bytes=round((v.flop / ridge(v.c) - missing) / (v.s + v.n))))
        with contextlib.suppress(ValueError):
            if v.m.kv_bytes > 0 and 9_100 < _exact(v) < 9_900 and 0.1 < _exact(v) % 1 < 0.9:
                return [(v.m, v.c, v.n, v.s)]


def _batch_tie(rng: random.Random) -> list[Case]:
    """Arithmetic and memory take equally long at a whole batch; all in powers of two, so that nothing has to round.

    With n_tokens = 2 and a cache that takes half of the arithmetic's time, batch = ridge * bytes_per_weight / 2.
    """
    ridge, bandwidth, kv, tokens = (2 ** rng.randrange(*powers) for powers in ((6, 10), (38, 43), (14, 19), (6, 12)))
    model = Model(ridge * kv * tokens // 2, rng.choice([1, 2, 4]), kv)
    return [(model, Chip(float(ridge * bandwidth), float(bandwidth)), 2, tokens - 2)]


def _never(rng: random.Random) -> list[Case]:
    while True:
        v = Pass(draw_model(rng), draw_chip(rng), rng.randrange(1, 4), 1, rng.randrange(4000, 60_000))
        if v.arithmetic < v.but(m=v.m._replace(weights=0)).memory * Fraction(99, 100):
            return [(v.m, v.c, v.n, v.s)]


def _one_is_enough(rng: random.Random) -> list[Case]:
    model, chip = Model(7 * 10**9, 2, 131_072), draw_chip(rng)
    return [(model, chip, math.ceil(ridge(chip) * times) + 20, 0) for times in (2, 5)]


compute_bound_batch = judged(
    "compute_bound_batch",
    Judge(
        "The batch",
        _batch,
        BATCHES,
        BATCH,
        call=lambda function, *arguments: function(stop_endless(right_work), *arguments),
    ),
    short_context=_short_context,
    with_caches=_with_caches,
    never=_never,
    one_is_enough=_one_is_enough,
    far_away=_far_away,
    at_a_tie=_batch_tie,
)


def _colleague(chip: Chip, batch: int, bytes_per_weight: float) -> int:
    """What the notebook's given function computes."""
    flop_per_byte = chip.rate / chip.bandwidth
    tokens = flop_per_byte * bytes_per_weight / 2
    return max(0, int(tokens) - batch)


def _free_drafts(chip: Chip, batch: int, bytes_per_weight: float) -> int:
    """The most drafts with which a pass takes no longer than one over a single token, for any number of weights."""
    plain = Pass(Model(1, bytes_per_weight, 0), chip, 1, batch, 0)
    return (_smallest(lambda gamma: plain.but(n=gamma + 1).seconds > plain.seconds) or 1) - 1


def _a_real_counterexample(counterexample: Callable, rng: random.Random) -> None:
    value = counterexample()
    items, expected = as_items(value), "(Chip(rate, bandwidth), batch, bytes_per_weight)"
    if items is None or len(items) != 3:
        raise wrong("Three things are wanted.", got=repr(value), expected=expected)
    if as_items(items[0]) is None and any(as_items(item) is not None for item in items[1:]):
        raise wrong("The order is wrong.", got=repr(value), expected=expected, mistake="the Chip comes first.")
    rate, bandwidth = map(float, as_numbers(items[0], ["rate", "bandwidth"]))
    batch, size = as_number(items[1], "The batch"), float(as_number(items[2], "bytes_per_weight"))
    if not 1 <= batch <= 10**6 or not is_whole(batch):
        raise wrong("The batch has to be a whole number from 1 to 1,000,000.", got=batch)
    if not all(math.isfinite(x) and x > 0 for x in (rate, bandwidth, size)) or rate / bandwidth * size > 10**7:
        what = "Rate, bandwidth and bytes of a weight have to be positive, and the ridge a sensible number."
        raise wrong(what, got=repr(value))
    chip, batch = Chip(rate, bandwidth), int(batch)
    right, theirs = _free_drafts(chip, batch, size), _colleague(chip, batch, size)
    if right == theirs:
        mistake = "a batch of 1 does not show it: there its two lines agree with the truth." if batch == 1 else ""
        if batch > 1 and right == 0:
            mistake = f"with {batch:,} sequences no draft is free, and the function says so, too: take a smaller batch."
        raise wrong(
            "The function is right there.",
            given=typed(chip=chip, batch=batch, bytes_per_weight=size),
            got=f"free_drafts gives {theirs}",
            expected=f"an input on which it does not give what is right, and {right} is right here",
            mistake=mistake,
        )


counterexample = Check("counterexample", [_a_real_counterexample])

# t tokens in a pass whose arithmetic takes as long as its reading, r the ridge, b the batch.
FREE = mistakes(
    lambda f: lambda chip, b, size: f(ridge(chip) * Fraction(size) / 2, ridge(chip), b),
    {
        "one more is free: it takes *no longer*, but just as long.": lambda t, r, b: max(0, math.ceil(t / b) - 2),
        "less than nothing is never free: 0 where a plain step is compute-bound.": lambda t, r, b: (
            math.floor(t / b) - 1
        ),
        "that is what the given function says.": lambda t, r, b: max(0, int(t) - b),
        "that is what the given function says, below 0 even.": lambda t, r, b: int(t) - b,
        "a sequence has gamma + 1 tokens in the pass, and round down.": lambda t, r, b: int(t / b),
        "one too many, where it is not whole: round down.": lambda t, r, b: max(0, math.ceil(t / b) - 1),
        "each sequence of the batch has its own drafts in flight.": lambda t, r, b: int(t) - 1,
        "a weight takes bytes_per_weight bytes and gives 2 FLOP a token.": lambda t, r, b: max(0, int(r / b) - 1),
        "each weight gives 2 FLOP a token: half as many are enough.": lambda t, r, b: max(0, int(2 * t / b) - 1),
        "2 FLOP a weight and token, and gamma + 1 tokens in the pass.": lambda t, r, b: int(2 * t / b),
        "the +1 was counted twice.": lambda t, r, b: max(0, int(t / b) - 2),
        NOT_H100: lambda t, r, b: max(0, int(ridge(H100) / r * t / b) - 1),
    },
)


def _draw_free(rng: random.Random, batch: Callable[[float], int]) -> Case:
    """A chip, batch and size of weights for which the limit is no matter of rounding."""
    while True:
        chip, size = draw_chip(rng), rng.choice([2, 1, 0.5, 0.5625])
        tokens = chip.rate / chip.bandwidth * size / 2
        b = batch(tokens)
        if abs(tokens / b - round(tokens / b)) > 1e-6:
            return chip, b, size


def _same_time(rng: random.Random) -> list[Case]:
    """With the last free draft, arithmetic takes just as long as memory, or a little longer; nothing has to round."""
    ridge, bandwidth, batch = (2 ** rng.randrange(*powers) for powers in ((6, 10), (38, 43), (2, 6)))
    return [(Chip(rate, float(bandwidth)), batch, 2) for rate in (ridge * bandwidth * x for x in (1.0, 1 - 2**-20))]


free_drafts = judged(
    "free_drafts",
    Judge(
        "The number of free drafts",
        _free_drafts,
        FREE,
        replace(
            NUMBER, same=lambda got, right: got == right, hint=lambda got, right: "round down." * (not is_whole(got))
        ),
    ),
    for_one=lambda rng: [_draw_free(rng, lambda tokens: 1) for _ in range(3)],
    for_some=lambda rng: [_draw_free(rng, lambda t: rng.randrange(2, max(3, int(t / 2)))) for _ in range(5)],
    in_the_same_time=_same_time,
    for_too_many=lambda rng: [_draw_free(rng, lambda t: round(t * 0.8)), _draw_free(rng, lambda t: round(t * 2.3))],
)
