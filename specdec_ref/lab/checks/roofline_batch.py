"""Problem set 01, parts 4 and 5: the batch at which a pass turns compute-bound, and the bug in given code."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from specdec_ref.lab.checks import Check, wrong
from specdec_ref.lab.checks.numbers import as_number, as_numbers, near, number_text
from specdec_ref.lab.checks.roofline_model import (
    Chip,
    Model,
    draw_chip,
    draw_model,
    given_text,
    pass_seconds,
    ridge_tokens,
    right_work,
    seconds_of,
    stop_endless,
    work_of,
)


def _computes(model: Model, chip: Chip, n_tokens: int, batch: int, context: int) -> bool:
    arithmetic, memory = seconds_of(*work_of(model, n_tokens, batch, context), chip)
    return arithmetic >= memory


def _crossing(model: Model, chip: Chip, n_tokens: int, context: int) -> Fraction | None:
    """The batch, not rounded, at which arithmetic has caught up with memory; None if it never does.

    It starts behind by the reading of the weights, and gains the same on memory with each sequence.
    """

    def lead(batch: int) -> Fraction:
        arithmetic, memory = seconds_of(*work_of(model, n_tokens, batch, context), chip)
        return arithmetic - memory

    gain = lead(2) - lead(1)
    return None if gain <= 0 else 1 - lead(1) / gain


def _look_at_batch(
    compute_bound_batch: Callable, model: Model, chip: Chip, n_tokens: int, context: int, right: int | None
) -> None:
    given = given_text(model=model, chip=chip, n_tokens=n_tokens, context=context)
    got = compute_bound_batch(stop_endless(right_work), model, chip, n_tokens, context)
    if right is None:
        if got is not None:
            raise wrong(
                "No batch is enough here.",
                given=given,
                got=got,
                expected="None",
                mistake="each sequence brings more bytes to read than its arithmetic can cover, so a larger batch "
                "does not help.",
            )
        return
    if got is None:
        raise wrong(
            "There is such a batch.",
            given=given,
            got="None",
            expected=right,
            mistake="did your search stop too early, or did the function forget to return?",
        )
    number = as_number(got, "The batch", given)
    if number != int(number):
        raise wrong(
            "A batch is a whole number.",
            given=given,
            got=number,
            expected=right,
            mistake="round up: half a sequence does not exist.",
        )
    if near(number, right, 1e-9):
        return
    free = _crossing(model._replace(kv_bytes=0), chip, n_tokens, 0)
    one = _crossing(model, chip, 1, context)
    ridge = Fraction(chip.rate) / Fraction(chip.bandwidth)
    mistake = ""
    slips: list[tuple[Fraction | None, str]] = [
        (free, "the caches are read as well, each sequence its own."),
        (one, "n_tokens tokens of each sequence are in the pass, not one."),
        (
            ridge / n_tokens,
            "the ridge is in FLOP a byte: a weight takes bytes_per_weight bytes and gives 2 FLOP a token.",
        ),
        (ridge, "the ridge is in FLOP a byte, and a batch is in sequences."),
    ]
    if number < 1:
        mistake = "a batch has at least one sequence."
    elif number in (right - 1, right + 1):
        mistake = "off by one: the smallest batch at which arithmetic takes at least as long as memory."
    else:
        for crossing, why in slips:
            if crossing is not None and number in (math.ceil(crossing), math.floor(crossing)):
                mistake = why
                break
    raise wrong("The batch came out wrong.", given=given, got=number_text(number), expected=right, mistake=mistake)


def _draw_crossing(
    rng: random.Random, n_tokens: Callable[[], int], context: Callable[[], int]
) -> tuple[Model, Chip, int, int, int]:
    """A model, a chip, tokens and context for which a batch below 10,000 is the answer, and not by a hair."""
    while True:
        model, chip, n, s = draw_model(rng), draw_chip(rng), n_tokens(), context()
        crossing = _crossing(model, chip, n, s)
        if crossing is None or not 1.5 < crossing < 2000 or abs(crossing - round(crossing)) < Fraction(1, 10_000):
            continue
        right = math.ceil(crossing)
        if _computes(model, chip, n, right, s) and not _computes(model, chip, n, right - 1, s):
            return model, chip, n, s, right


def _batch_with_short_context(compute_bound_batch: Callable, rng: random.Random) -> None:
    for _ in range(2):
        _look_at_batch(compute_bound_batch, *_draw_crossing(rng, lambda: rng.randrange(1, 4), lambda: 0))


def _batch_with_caches(compute_bound_batch: Callable, rng: random.Random) -> None:
    for _ in range(2):
        while True:
            model, chip, n, context, right = _draw_crossing(
                rng, lambda: rng.randrange(1, 8), lambda: rng.randrange(100, 2000)
            )
            free = _crossing(model._replace(kv_bytes=0), chip, n, 0)
            if free is not None and math.ceil(free) + 1 < right:
                break
        _look_at_batch(compute_bound_batch, model, chip, n, context, right)


def _batch_never(compute_bound_batch: Callable, rng: random.Random) -> None:
    while True:
        model, chip, n, context = draw_model(rng), draw_chip(rng), rng.randrange(1, 4), rng.randrange(4000, 60_000)
        arithmetic = Fraction(2 * model.weights * n) / Fraction(chip.rate)
        reading = Fraction(model.kv_bytes * (context + n)) / Fraction(chip.bandwidth)
        if arithmetic < reading * Fraction(99, 100):
            break
    _look_at_batch(compute_bound_batch, model, chip, n, context, None)


def _batch_of_one_is_enough(compute_bound_batch: Callable, rng: random.Random) -> None:
    model, chip = draw_model(rng)._replace(weights=7 * 10**9, kv_bytes=131_072), draw_chip(rng)
    n_tokens = math.ceil(ridge_tokens(model, chip) * 1.5) + 20
    _look_at_batch(compute_bound_batch, model, chip, n_tokens, 0, 1)


compute_bound_batch = Check(
    "compute_bound_batch", [_batch_with_short_context, _batch_with_caches, _batch_never, _batch_of_one_is_enough]
)


def _colleague(chip: Chip, batch: int, bytes_per_weight: float) -> int:
    """What the notebook's given function computes."""
    ridge = chip.rate / chip.bandwidth
    tokens = ridge * bytes_per_weight / 2
    return max(0, int(tokens) - batch)


def _is_free(chip: Chip, gamma: int, batch: int, bytes_per_weight: float) -> bool:
    """Whether a pass over gamma + 1 tokens takes no longer than one over a single token, for any number of weights."""
    model = Model(1, bytes_per_weight, 0)
    return pass_seconds(model, chip, gamma + 1, batch, 0) <= pass_seconds(model, chip, 1, batch, 0)


def _free_drafts(chip: Chip, batch: int, bytes_per_weight: float) -> int:
    gamma = 0
    step = 1
    while _is_free(chip, gamma + step, batch, bytes_per_weight):
        gamma, step = gamma + step, 2 * step
    while step:
        if _is_free(chip, gamma + step, batch, bytes_per_weight):
            gamma += step
        else:
            step //= 2
    return gamma


def _a_real_counterexample(counterexample: Callable, rng: random.Random) -> None:
    value = counterexample()
    expected = "(Chip(rate, bandwidth), batch, bytes_per_weight)"
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__len__") or len(value) != 3:
        raise wrong("Three things are wanted.", got=value, expected=expected)
    chip_given, batch_given, size_given = value
    rate, bandwidth = as_numbers(chip_given, ["rate", "bandwidth"])
    batch, size = as_number(batch_given, "The batch"), as_number(size_given, "bytes_per_weight")
    if batch != int(batch) or batch < 1 or batch > 10**6:
        raise wrong("The batch has to be a whole number from 1 to 1,000,000.", got=batch)
    if not all(math.isfinite(x) and x > 0 for x in (rate, bandwidth, size)) or rate / bandwidth * size > 10**7:
        raise wrong(
            "Rate, bandwidth and bytes of a weight have to be positive, and the ridge a sensible number.", got=value
        )
    chip, batch = Chip(rate, bandwidth), int(batch)
    right, theirs = _free_drafts(chip, batch, size), _colleague(chip, batch, size)
    if right == theirs:
        raise wrong(
            "The function is right there.",
            given=given_text(chip=chip, batch=batch, bytes_per_weight=size),
            got=f"free_drafts gives {theirs}",
            expected=f"an input on which it does not give what is right, and {right} is right here",
            mistake="a batch of 1 does not show it: there its two lines agree with the truth." if batch == 1 else "",
        )


counterexample = Check("counterexample", [_a_real_counterexample])


def _look_at_free(repaired: Callable, chip: Chip, batch: int, size: float) -> None:
    given = given_text(chip=chip, batch=batch, bytes_per_weight=size)
    right = _free_drafts(chip, batch, size)
    ridge = Fraction(chip.rate) / Fraction(chip.bandwidth)
    tokens = ridge * Fraction(size) / 2
    got = as_number(repaired(chip, batch, size), "The number of free drafts", given)
    if got == right:
        return
    slips: list[tuple[Any, str]] = [
        (-1, "less than nothing is never free: where even a plain step is compute-bound, no draft is."),
        (_colleague(chip, batch, size), "that is what the given function says."),
        (int(tokens) - batch, "that is what the given function says, below 0 even."),
        (
            int(tokens) // batch,
            "one too many: a sequence has gamma + 1 tokens in the pass, its last token beside the drafts. Round down.",
        ),
        (int(tokens) - 1, "each sequence of the batch has its own drafts in flight."),
        (max(0, int(ridge / batch) - 1), "a weight takes bytes_per_weight bytes and gives 2 FLOP a token."),
        (max(0, int(tokens - batch) // batch - 1), "the +1 was counted twice."),
    ]
    if got != int(got):
        raise wrong("A number of drafts is whole.", given=given, got=got, expected=right, mistake="round down.")
    mistake = next((why for value, why in slips if got == value), "")
    raise wrong(
        "The number of free drafts came out wrong.", given=given, got=number_text(got), expected=right, mistake=mistake
    )


def _draw_free(rng: random.Random, batch: Callable[[float], int]) -> tuple[Chip, int, float]:
    """A chip, batch and size of weights for which the limit is no matter of rounding."""
    while True:
        chip, size = draw_chip(rng), rng.choice([2, 1, 0.5, 0.5625])
        tokens = chip.rate / chip.bandwidth * size / 2
        b = batch(tokens)
        if abs(tokens / b - round(tokens / b)) > 1e-6:
            return chip, b, size


def _free_for_one(repaired: Callable, rng: random.Random) -> None:
    for _ in range(3):
        _look_at_free(repaired, *_draw_free(rng, lambda tokens: 1))


def _free_for_some(repaired: Callable, rng: random.Random) -> None:
    for _ in range(5):
        _look_at_free(repaired, *_draw_free(rng, lambda tokens: rng.randrange(2, max(3, int(tokens / 2)))))


def _free_for_too_many(repaired: Callable, rng: random.Random) -> None:
    for _ in range(4):
        _look_at_free(repaired, *_draw_free(rng, lambda tokens: max(2, round(tokens * rng.uniform(0.55, 3)))))


free_drafts = Check("free_drafts", [_free_for_one, _free_for_some, _free_for_too_many])
