"""Problem set 01, part 5: the bug in the given count of free drafts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from specdec_course.checks import Check, wrong
from specdec_course.checks.numbers import as_number, as_numbers, number_text
from specdec_course.checks.roofline_model import H100, NOT_H100, Chip, Model, draw_chip, given_text, pass_seconds


def _colleague(chip: Chip, batch: int, bytes_per_weight: float) -> int:
    """What the notebook's given function computes."""
    flop_per_byte = chip.rate / chip.bandwidth
    tokens = flop_per_byte * bytes_per_weight / 2
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
    if not hasattr(chip_given, "__len__") and any(hasattr(other, "__len__") for other in (batch_given, size_given)):
        raise wrong("The order is another.", got=value, expected=expected, mistake="the Chip comes first.")
    rate, bandwidth = map(float, as_numbers(chip_given, ["rate", "bandwidth"]))
    batch, size = as_number(batch_given, "The batch"), float(as_number(size_given, "bytes_per_weight"))
    if batch != int(batch) or batch < 1 or batch > 10**6:
        raise wrong("The batch has to be a whole number from 1 to 1,000,000.", got=batch)
    if not all(math.isfinite(x) and x > 0 for x in (rate, bandwidth, size)) or rate / bandwidth * size > 10**7:
        raise wrong(
            "Rate, bandwidth and bytes of a weight have to be positive, and the ridge a sensible number.", got=value
        )
    chip, batch = Chip(rate, bandwidth), int(batch)
    right, theirs = _free_drafts(chip, batch, size), _colleague(chip, batch, size)
    if right == theirs:
        mistake = ""
        if batch == 1:
            mistake = "a batch of 1 does not show it: there its two lines agree with the truth."
        elif right == 0:
            mistake = f"with {batch:,} sequences no draft is free, and the function says so, too: take a smaller batch."
        raise wrong(
            "The function is right there.",
            given=given_text(chip=chip, batch=batch, bytes_per_weight=size),
            got=f"free_drafts gives {theirs}",
            expected=f"an input on which it does not give what is right, and {right} is right here",
            mistake=mistake,
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
        (max(0, int(2 * tokens / batch) - 1), "each weight gives 2 FLOP a token: half as many tokens are enough."),
        (int(2 * tokens / batch), "each weight gives 2 FLOP a token, and a sequence has gamma + 1 tokens in the pass."),
        (max(0, int(Fraction(H100.rate) / Fraction(H100.bandwidth) * Fraction(size) / 2 / batch) - 1), NOT_H100),
        (max(0, int(tokens - batch) // batch - 1), "the +1 was counted twice."),
    ]
    if tokens % batch == 0:
        slips.insert(0, (right - 1, "one more is free: it takes *no longer* than a plain step, but just as long."))
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


def _free_in_the_same_time(repaired: Callable, rng: random.Random) -> None:
    """With the last free draft, arithmetic takes just as long as memory; in powers of two nothing has to round."""
    ridge, bandwidth, batch = (2 ** rng.randrange(*powers) for powers in ((6, 10), (38, 43), (2, 6)))
    _look_at_free(repaired, Chip(float(ridge * bandwidth), float(bandwidth)), batch, 2)


def _free_for_too_many(repaired: Callable, rng: random.Random) -> None:
    for _ in range(4):
        _look_at_free(repaired, *_draw_free(rng, lambda tokens: max(2, round(tokens * rng.uniform(0.55, 3)))))


free_drafts = Check("free_drafts", [_free_for_one, _free_for_some, _free_in_the_same_time, _free_for_too_many])
