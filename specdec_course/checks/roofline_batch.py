"""Problem set 01, part 4: the batch at which a pass turns compute-bound."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction

from specdec_course.checks import Check, wrong
from specdec_course.checks.numbers import as_number, near, number_text
from specdec_course.checks.roofline_model import (
    H100,
    LLAMA,
    NOT_H100,
    NOT_LLAMA,
    Chip,
    Model,
    draw_chip,
    draw_model,
    given_text,
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


def _slips(model: Model, chip: Chip, n: int, context: int) -> list[tuple[Fraction | None, str]]:
    """Batches, not rounded, that known mistakes lead to."""
    ridge = Fraction(chip.rate) / Fraction(chip.bandwidth)
    one = _crossing(model, chip, 1, context)

    def moving(tokens: int) -> Fraction | None:
        """With the keys and values of `tokens` tokens a sequence in place of context + n: all else is scaled up."""
        scaled = model._replace(weights=model.weights * (context + n), kv_bytes=model.kv_bytes * tokens)
        return _crossing(scaled, chip, n, context)

    written = (
        "the keys and values of all new tokens are written: count them beside those of the context, which are read."
    )
    slips = [
        (moving(context), written),
        (moving(context + 1), written),
        (moving(0), "the caches are read as well, each sequence its own."),
        (moving(n), "the keys and values of the context are read as well, each sequence its own."),
        (one, "n_tokens tokens of each sequence are in the pass, not one."),
        (one and one / n, "the n_tokens tokens of a sequence share its cache: do not divide the batch for one token."),
        (ridge / n, "the ridge is in FLOP a byte: a weight takes bytes_per_weight bytes and gives 2 FLOP a token."),
        (ridge, "the ridge is in FLOP a byte, and a batch is in sequences."),
        (_crossing(LLAMA, chip, n, context), NOT_LLAMA),
        (_crossing(model, H100, n, context), NOT_H100),
        (_crossing(LLAMA, H100, n, context), f"{NOT_LLAMA} And so for h100 and `chip`."),
    ]
    return slips if n > 1 else [slip for slip in slips if slip[0] is not one]


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
        mistake = "does your search stop too early, or does the function not reach its return?"
        if _crossing(model, chip, 1, context) is None:
            mistake += " Or was it one token of each sequence? For one there is none, but here n_tokens share a cache."
        raise wrong("There is such a batch.", given=given, got="None", expected=right, mistake=mistake)
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
    exact = _crossing(model, chip, n_tokens, context)
    mistake = ""
    if number < 1:
        mistake = "a batch has at least one sequence."
    elif number == right + 1 and exact == right:
        mistake = (
            f"at {right} both take equally long, and *at least* as long is compute-bound: >= and not >, and ceil(x) "
        )
        mistake += "rather than int(x) + 1."
    elif number in (right - 1, right + 1):
        mistake = "off by one: the smallest batch at which arithmetic takes at least as long as memory."
    if not mistake or (abs(number - right) == 1 and exact != right):
        for crossing, why in _slips(model, chip, n_tokens, context):
            if crossing is not None and number == max(1, math.ceil(crossing)) != right:
                mistake = why
                break
            if crossing is not None and not mistake and number == math.floor(crossing):
                mistake = why
    raise wrong("The batch came out wrong.", given=given, got=number_text(number), expected=right, mistake=mistake)


def _draw_crossing(
    rng: random.Random,
    model: Callable[[Chip, int, int], Model],
    n_tokens: range,
    context: range,
    fraction: float,
    top: int,
) -> tuple[Model, Chip, int, int, int]:
    """A model, chip, tokens and context that some batch makes compute-bound; known slips lead elsewhere.

    fraction: by how much the batch, not rounded, lies above a whole number, give or take 0.2. Below 0.5, rounding to
    the nearest goes wrong; above it, cutting off and adding nothing is not the same slip.
    """
    while True:
        chip, n, s = draw_chip(rng), rng.choice(n_tokens), rng.choice(context)
        drawn = model(chip, n, s)
        crossing = _crossing(drawn, chip, n, s)
        if crossing is None or not 3 < crossing < top or abs(crossing % 1 - Fraction(fraction)) > Fraction(1, 5):
            continue
        right = math.ceil(crossing)
        unwritten = _slips(drawn, chip, n, s)[0][0]
        if unwritten is None or math.ceil(unwritten) + 1 >= right:
            continue
        if _computes(drawn, chip, n, right, s) and not _computes(drawn, chip, n, right - 1, s):
            return drawn, chip, n, s, right


def _with_caches(rng: random.Random, shares: tuple[float, float]) -> Callable[[Chip, int, int], Model]:
    """Draws models whose cache takes a share of the time that the arithmetic of a sequence takes."""

    def model(chip: Chip, n: int, s: int) -> Model:
        drawn = draw_model(rng)._replace(weights=rng.randrange(1, 20) * 10**8)  # so that a token's cache is not huge
        covered = 2 * drawn.weights * n * chip.bandwidth / chip.rate / (s + n)
        return drawn._replace(kv_bytes=math.ceil(covered * rng.uniform(*shares)))

    return model


def _batch_with_short_context(compute_bound_batch: Callable, rng: random.Random) -> None:
    for fraction in (0.25, 0.75):
        drawn = _draw_crossing(rng, _with_caches(rng, (0.05, 0.4)), range(1, 4), range(1), fraction, 2000)
        _look_at_batch(compute_bound_batch, *drawn)


def _batch_with_caches(compute_bound_batch: Callable, rng: random.Random) -> None:
    """Few earlier tokens in the second case, so that the written ones count."""
    for fraction, context in ((0.25, range(100, 2000)), (0.75, range(5, 60))):
        drawn = _draw_crossing(rng, _with_caches(rng, (0.3, 0.8)), range(2, 8), context, fraction, 2000)
        _look_at_batch(compute_bound_batch, *drawn)


def _batch_far_away(compute_bound_batch: Callable, rng: random.Random) -> None:
    """Near the 10,000 that the text names."""
    while True:
        model, chip, n, s = draw_model(rng), draw_chip(rng), rng.randrange(2, 7), rng.randrange(500, 4000)
        covered = Fraction(2 * model.weights * n) * Fraction(chip.bandwidth) / Fraction(chip.rate)
        missing = model.weights * Fraction(model.bytes_per_weight) / rng.randrange(9_300, 9_800)
        model = model._replace(kv_bytes=round((covered - missing) / (s + n)))
        crossing = _crossing(model, chip, n, s)
        if crossing is not None and 9_100 < crossing < 9_900 and 0.1 < crossing % 1 < 0.9 and model.kv_bytes > 0:
            break
    _look_at_batch(compute_bound_batch, model, chip, n, s, math.ceil(crossing))


def _batch_at_a_tie(compute_bound_batch: Callable, rng: random.Random) -> None:
    """Arithmetic and memory take equally long at a whole batch; all in powers of two, so that nothing has to round.

    With n_tokens = 2 and a cache that takes half of the arithmetic's time, batch = ridge * bytes_per_weight / 2.
    """
    ridge, bandwidth, kv, tokens = (2 ** rng.randrange(*powers) for powers in ((6, 10), (38, 43), (14, 19), (6, 12)))
    size = rng.choice([1, 2, 4])
    model = Model(ridge * kv * tokens // 2, size, kv)
    chip = Chip(float(ridge * bandwidth), float(bandwidth))
    _look_at_batch(compute_bound_batch, model, chip, 2, tokens - 2, ridge * size // 2)


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
    for factor in (1.5, 5):
        n_tokens = math.ceil(ridge_tokens(model, chip) * factor) + 20
        _look_at_batch(compute_bound_batch, model, chip, n_tokens, 0, 1)


compute_bound_batch = Check(
    "compute_bound_batch",
    [
        _batch_with_short_context,
        _batch_with_caches,
        _batch_never,
        _batch_of_one_is_enough,
        _batch_far_away,
        _batch_at_a_tie,
    ],
)
