"""Problem set 01, part 3: the time of a pass, the speed of decoding, the cost of a verification."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction

from specdec_ref.lab.checks import Check, wrong
from specdec_ref.lab.checks.numbers import compare
from specdec_ref.lab.checks.roofline_model import (
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
            (1 / max(arithmetic, memory), "that is passes a second."),
            (1000 * max(arithmetic, memory), "in seconds, not milliseconds."),
        ],
    )
    right = "memory" if memory > arithmetic else "compute"
    if not isinstance(bound, str) or not bound.strip().lower().startswith(right):
        other = isinstance(bound, str) and bound.strip().lower().startswith(
            "compute" if right == "memory" else "memory"
        )
        raise wrong(
            "What bounds the pass came out wrong.",
            given=given,
            got=repr(bound),
            expected=repr(right),
            mistake="the resource that takes longer is the bound." if other else "",
        )


def _time_bound_by(pass_time: Callable, rng: random.Random, factor: tuple[float, float]) -> None:
    for _ in range(3):
        chip = draw_chip(rng)
        nbytes = rng.randrange(1, 300) * 1e9
        _look_at_time(pass_time, four_digits(nbytes * chip.rate / chip.bandwidth * rng.uniform(*factor)), nbytes, chip)


def _memory_takes_longer(pass_time: Callable, rng: random.Random) -> None:
    _time_bound_by(pass_time, rng, (0.01, 0.9))


def _arithmetic_takes_longer(pass_time: Callable, rng: random.Random) -> None:
    _time_bound_by(pass_time, rng, (1.1, 40))


pass_time = Check("pass_time", [_memory_takes_longer, _arithmetic_takes_longer])


def _look_at_speed(tokens_per_second: Callable, model: Model, chip: Chip, batch: int, context: int) -> None:
    given = given_text(model=model, chip=chip, batch=batch, context=context)
    arithmetic, memory = seconds_of(*work_of(model, 1, batch, context), chip)
    weights_alone = model.weights * Fraction(model.bytes_per_weight) / Fraction(chip.bandwidth)
    compare(
        "Tokens a second",
        tokens_per_second(right_work, model, chip, batch, context),
        batch / max(arithmetic, memory),
        given,
        [
            (1 / max(arithmetic, memory), "that is steps a second; a step gives each sequence of the batch a token."),
            (max(arithmetic, memory), "that is the time of a step."),
            (max(arithmetic, memory) / batch, "that is seconds a token."),
            (batch / (arithmetic + memory), "the longer of the two times counts, not the sum."),
            (batch / memory, "with this batch arithmetic takes longer than memory, and it decides."),
            (batch / arithmetic, "with this batch memory takes longer than arithmetic, and it decides."),
            (batch / weights_alone, "the caches have to be read, too."),
            (1 / weights_alone, "the caches have to be read, too, and a step gives each sequence a token."),
            (
                batch / max(seconds_of(*work_of(model, 1, 1, context), chip)),
                "the step of a batch of 1 was used for all.",
            ),
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
                else "nearly, but the keys and values of the drafts are written, too: take the bytes from work.",
            ),
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
        ],
    )


def _cost_left_of_ridge(verify_cost: Callable, rng: random.Random) -> None:
    model = draw_model(rng)._replace(bytes_per_weight=2)
    chip = draw_chip(rng)
    _look_at_cost(verify_cost, model, chip, rng.randrange(2, 9), rng.randrange(1, 4), rng.randrange(500, 4000))


def _cost_across_ridge(verify_cost: Callable, rng: random.Random) -> None:
    model, chip = draw_model(rng)._replace(bytes_per_weight=2, kv_bytes=20_480), draw_chip(rng)
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
