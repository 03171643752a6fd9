"""Problem set 01, part 3: the time of a pass, the speed of decoding, the cost of a verification."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction

from specdec_course.checks import Check, wrong
from specdec_course.checks.numbers import compare
from specdec_course.checks.roofline_model import (
    H100,
    LLAMA,
    NOT_H100,
    NOT_LLAMA,
    Chip,
    Model,
    draw_chip,
    draw_model,
    four_digits,
    given_text,
    pass_seconds,
    ridge_tokens,
    right_work,
    seconds_of,
    work_of,
)


def _look_at_time(pass_time: Callable, flop: float, nbytes: float, chip: Chip) -> None:
    given = given_text(flop=flop, nbytes=nbytes, chip=chip)
    arithmetic, memory = seconds_of(Fraction(flop), Fraction(nbytes), chip)
    value = pass_time(flop, nbytes, chip)
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__") or len(value) != 2:
        raise wrong("Two things are wanted.", given=given, got=value, expected="(seconds, 'memory' or 'compute')")
    seconds, bound = value
    crossed = Fraction(flop) / Fraction(chip.bandwidth), Fraction(nbytes) / Fraction(chip.rate)
    compare(
        "The time of the pass",
        seconds,
        max(arithmetic, memory),
        given,
        [
            (arithmetic + memory, "both happen at the same time at best: the longer one counts, not the sum."),
            (
                min(arithmetic, memory),
                "the pass ends when both are done: the longer time counts, here that of the "
                + ("memory." if memory > arithmetic else "arithmetic."),
            ),
            (1 / max(arithmetic, memory), "that is passes a second: divide FLOP by FLOP/s, and bytes by bytes/s."),
            (1 / min(arithmetic, memory), "divide FLOP by FLOP/s, and bytes by bytes/s, not the other way round."),
            *((time, "crossed: FLOP go with chip.rate, bytes with chip.bandwidth.") for time in crossed),
            (max(seconds_of(Fraction(flop), Fraction(nbytes), H100)), NOT_H100),
            (1000 * max(arithmetic, memory), "in seconds, not milliseconds."),
        ],
    )
    right = "memory" if memory > arithmetic else "compute"
    if not isinstance(bound, str) or not bound.strip().lower().startswith(right):
        other = isinstance(bound, str) and bound.strip().lower().startswith(
            "compute" if right == "memory" else "memory"
        )
        mistake = "the resource that takes longer is the bound."
        if memory == arithmetic:
            mistake = "both take equally long here, and then the docstring wants 'compute'."
        elif (flop / nbytes > H100.rate / H100.bandwidth) != (right == "compute"):
            mistake = (
                f"the resource that takes longer is the bound: the pass has {flop / nbytes:.0f} FLOP/byte, and the "
                f"ridge of *this* chip is {chip.rate / chip.bandwidth:.0f}. (295 is that of an H100.)"
            )
        raise wrong(
            "What bounds the pass came out wrong.",
            given=given,
            got=repr(bound),
            expected=repr(right),
            mistake=mistake if other else "",
        )


def _time_bound_by(pass_time: Callable, rng: random.Random, factor: tuple[float, float]) -> None:
    for _ in range(3):
        chip = draw_chip(rng)
        nbytes = rng.randrange(1, 300) * 1e9
        _look_at_time(pass_time, four_digits(nbytes * chip.rate / chip.bandwidth * rng.uniform(*factor)), nbytes, chip)


def _time_at(pass_time: Callable, rng: random.Random, ridge: float, intensity: float) -> None:
    bandwidth, nbytes = rng.randrange(100, 9000) * 1e9, rng.randrange(1, 300) * 1e9
    chip = Chip(four_digits(bandwidth * ridge), bandwidth)
    _look_at_time(pass_time, four_digits(nbytes * intensity), nbytes, chip)


def _memory_takes_longer(pass_time: Callable, rng: random.Random) -> None:
    _time_bound_by(pass_time, rng, (0.01, 0.9))
    _time_at(pass_time, rng, rng.uniform(400, 600), rng.uniform(310, 380))  # right of an H100's ridge, left of its own


def _arithmetic_takes_longer(pass_time: Callable, rng: random.Random) -> None:
    _time_bound_by(pass_time, rng, (1.1, 40))
    _time_at(pass_time, rng, rng.uniform(50, 180), rng.uniform(200, 285))


def _both_take_equally_long(pass_time: Callable, rng: random.Random) -> None:
    """All in powers of two, so that no way to compute it has to round."""
    ridge, bandwidth, nbytes = (2.0 ** rng.randrange(*powers) for powers in ((6, 10), (38, 43), (30, 38)))
    _look_at_time(pass_time, ridge * nbytes, nbytes, Chip(ridge * bandwidth, bandwidth))


pass_time = Check("pass_time", [_memory_takes_longer, _arithmetic_takes_longer, _both_take_equally_long])


def _look_at_speed(tokens_per_second: Callable, model: Model, chip: Chip, batch: int, context: int) -> None:
    given = given_text(model=model, chip=chip, batch=batch, context=context)
    arithmetic, memory = seconds_of(*work_of(model, 1, batch, context), chip)
    weights_alone = model.weights * Fraction(model.bytes_per_weight) / Fraction(chip.bandwidth)

    def speed(
        model: Model = model, chip: Chip = chip, n_tokens: int = 1, batch: int = batch, s: int = context
    ) -> Fraction:
        return batch / pass_seconds(model, chip, n_tokens, batch, s)

    turn = "Tokens over seconds is asked for."
    compare(
        "Tokens a second",
        tokens_per_second(right_work, model, chip, batch, context),
        batch / max(arithmetic, memory),
        given,
        [
            (1 / max(arithmetic, memory), "that is steps a second; a step gives each sequence of the batch a token."),
            (max(arithmetic, memory) / batch, f"that is seconds a token. {turn}"),
            (max(arithmetic, memory), f"that is the time of a step, in seconds. {turn}"),
            (batch * max(arithmetic, memory), f"that is the time of a step, times the batch. {turn}"),
            (batch / (arithmetic + memory), "the longer of the two times counts, not the sum."),
            (batch / memory, "with this batch arithmetic takes longer than memory, and it decides."),
            (batch / arithmetic, "with this batch memory takes longer than arithmetic, and it decides."),
            (batch / weights_alone, "the caches have to be read, too."),
            (1 / weights_alone, "the caches have to be read, too, and a step gives each sequence a token."),
            (batch / pass_seconds(model, chip, 1, 1, context), "the step of a batch of 1 was used for all."),
            (
                batch / pass_seconds(model, chip, batch, 1, context),
                "a batch is not n_tokens: each sequence brings one new token and a cache of its own.",
            ),
            (
                batch / pass_seconds(model, chip, batch, batch, context),
                "plain decoding: one new token of each sequence, so n_tokens is 1.",
            ),
            (speed(s=0), "the caches have to be read, too: hand `context` on to work."),
            (speed(s=context + 1), "context counts what is in the cache before the step: do not add the new token."),
            (speed(model=LLAMA), NOT_LLAMA),
            (speed(chip=H100), NOT_H100),
            (speed(model=LLAMA, chip=H100), f"{NOT_LLAMA} And so for h100 and `chip`."),
        ],
    )


def _speed_of_one(tokens_per_second: Callable, rng: random.Random) -> None:
    _look_at_speed(tokens_per_second, draw_model(rng), draw_chip(rng), 1, rng.randrange(0, 4000))


def _speed_of_some(tokens_per_second: Callable, rng: random.Random) -> None:
    _look_at_speed(tokens_per_second, draw_model(rng), draw_chip(rng), rng.randrange(2, 9), rng.randrange(500, 4000))


def _speed_of_many(tokens_per_second: Callable, rng: random.Random) -> None:
    model, chip = draw_model(rng), draw_chip(rng)
    batch = math.ceil(ridge_tokens(model, chip) * rng.uniform(2, 4)) + 1
    _look_at_speed(tokens_per_second, model._replace(kv_bytes=1024), chip, batch, rng.randrange(0, 30))


tokens_per_second = Check("tokens_per_second", [_speed_of_one, _speed_of_some, _speed_of_many])


def _look_at_cost(verify_cost: Callable, model: Model, chip: Chip, gamma: int, batch: int, context: int) -> None:
    given = given_text(model=model, chip=chip, gamma=gamma, batch=batch, context=context)

    def parts(n_tokens: int) -> tuple[Fraction, Fraction]:
        return seconds_of(*work_of(model, n_tokens, batch, context), chip)

    plain, check = parts(1), parts(gamma + 1)

    def time(n_tokens: int, b: int = batch, s: int = context, model: Model = model, chip: Chip = chip) -> Fraction:
        return pass_seconds(model, chip, n_tokens, b, s)

    cost = max(check) / max(plain)
    swapped = "gamma and batch are swapped somewhere: work(model, n_tokens, batch, context)."
    compare(
        "The cost of the verification",
        verify_cost(right_work, model, chip, gamma, batch, context),
        max(check) / max(plain),
        given,
        [
            (max(parts(gamma)) / max(plain), "a pass that checks gamma drafts takes in gamma + 1 tokens."),
            (max(plain) / max(check), "the other way round: verification over plain step."),
            (max(check), "in plain steps, not in seconds: divide by the time of a plain step."),
            (sum(check) / sum(plain), "memory and arithmetic overlap: the longer one counts, in both passes."),
            (
                check[0] / plain[0],
                "that is the ratio of the arithmetic, as if each token took a pass of its own; the weights are read "
                "once, and the longer of memory and arithmetic decides.",
            ),
            (check[1] / plain[1], "that is the ratio of the bytes; the longer of memory and arithmetic decides."),
            (
                1,
                "here it is not free: look at how many tokens are in flight."
                if check[0] > check[1]
                else "nearly 1, but not quite: the drafts' keys and values are written, too. Take the bytes from "
                "work, and do not round.",
            ),
            (cost - 1, "that is what it costs *more* than a plain step: do not subtract 1."),
            (cost * (gamma + 1), "the pass is paid once for all its tokens: do not multiply by them."),
            (cost / (gamma + 1), "the price of the whole pass is asked for, not that of a token."),
            (cost * gamma, "the pass is paid once for all its tokens: do not multiply by them."),
            (cost / gamma, "the price of the whole pass is asked for, not that of a draft."),
            (gamma, "that is as if each draft took a pass of its own; a pass reads the weights once for all."),
            (
                pass_seconds(model, chip, gamma + 1, 1, context) / pass_seconds(model, chip, 1, 1, context),
                "that is the cost with a batch of 1.",
            ),
            (
                max(seconds_of(*work_of(model, 1, batch * (gamma + 1), context), chip)) / max(plain),
                "the drafts of a sequence share its cache: they are not further sequences.",
            ),
            (
                max(parts(gamma + 1)) / pass_seconds(model, chip, 1, 1, context),
                "compare with a plain step of the same batch.",
            ),
            (
                max(parts(gamma + 1)) / pass_seconds(model, chip, 1, batch, 0),
                "the plain step reads the caches, too: same context in both passes.",
            ),
            (time(gamma + 1, s=0) / time(1, s=0), "the caches are read, too: hand `context` on to work."),
            (time(batch + 1, gamma) / time(1, gamma), swapped),
            (time(batch, gamma + 1) / time(1), swapped),
            (time(batch, gamma + 1) / time(batch, 1), swapped),
            *(
                (
                    time(gamma + 1, s=context + more) / time(1, s=context + less),
                    "the drafts are the pass's new tokens: the context is what was cached before, in both passes.",
                )
                for more, less in ((gamma, 0), (gamma + 1, 0), (1, 0), (1, 1), (gamma, 1), (gamma + 1, 1))
            ),
            (time(gamma + 1, model=LLAMA) / time(1, model=LLAMA), NOT_LLAMA),
            (time(gamma + 1, chip=H100) / time(1, chip=H100), NOT_H100),
            (
                time(gamma + 1, model=LLAMA, chip=H100) / time(1, model=LLAMA, chip=H100),
                f"{NOT_LLAMA} And so for h100 and `chip`.",
            ),
        ],
    )


def _cost_left_of_ridge(verify_cost: Callable, rng: random.Random) -> None:
    model = draw_model(rng)._replace(bytes_per_weight=2)
    chip = draw_chip(rng)
    _look_at_cost(verify_cost, model, chip, rng.randrange(2, 9), rng.randrange(1, 4), rng.randrange(500, 4000))


def _cost_across_ridge(verify_cost: Callable, rng: random.Random) -> None:
    model, chip = draw_model(rng)._replace(bytes_per_weight=2, kv_bytes=20_480), draw_chip(rng)
    while 250 < chip.rate / chip.bandwidth < 350:  # a price depends on the ridge alone: not one like that of the H100
        chip = draw_chip(rng)
    gamma = rng.randrange(3, 9)
    batch = max(2, math.ceil(ridge_tokens(model, chip) * rng.uniform(0.6, 0.9)))
    model = model._replace(weights=max(model.weights, batch * 40_000_000))  # the caches stay small beside the weights
    _look_at_cost(verify_cost, model, chip, gamma, batch, rng.randrange(200, 500))


def _cost_right_of_ridge(verify_cost: Callable, rng: random.Random) -> None:
    model, chip = draw_model(rng)._replace(bytes_per_weight=2, kv_bytes=20_480), draw_chip(rng)
    batch = math.ceil(ridge_tokens(model, chip) * rng.uniform(2, 4))
    model = model._replace(weights=max(model.weights, batch * 40_000_000))
    _look_at_cost(verify_cost, model, chip, rng.randrange(2, 9), batch, rng.randrange(50, 200))


verify_cost = Check("verify_cost", [_cost_left_of_ridge, _cost_across_ridge, _cost_right_of_ridge])
