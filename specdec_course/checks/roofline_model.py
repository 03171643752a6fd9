"""What the checks of problem set 01 share: models and chips, drawn and typed, and the count of a pass in fractions."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from specdec_course.checks import wrong
from specdec_ref.arithmetic import accelerators, kv_bytes_per_token, model_shape


class Model(NamedTuple):
    """A dense language model: `weights` (how many), bytes that each takes, bytes of keys and values a token leaves."""

    weights: int
    bytes_per_weight: float
    kv_bytes: int


class Chip(NamedTuple):
    """A chip's peaks: `rate` in dense FLOP/s, `bandwidth` in bytes/s."""

    rate: float
    bandwidth: float


PassWork = Callable[[Model, int, int, int], tuple[Any, Any]]

REAL_MODELS = ("smollm2-135m", "llama-2-7b", "llama-2-13b", "llama-3-8b", "llama-3-70b", "qwen2.5-14b", "qwen3-4b")


# The notebook's own names: what comes out if a function uses them in place of what it was given.
LLAMA = Model(70_553_706_496, 2, 327_680)
H100 = Chip(989e12, 3.35e12)
NOT_LLAMA = "that is so for llama, the notebook's model: use the argument `model`."
NOT_H100 = "that is so for h100, the notebook's chip: use the argument `chip`."


def four_digits(value: float) -> float:
    """`value` with four digits, so that it is easy to read and to type."""
    return float(f"{value:.4g}")


def draw_model(rng: random.Random) -> Model:
    """A real dense model or an invented one, its weights in 4.5 to 32 bits."""
    bytes_per_weight = rng.choice([2, 2, 4, 1, 0.5, 0.5625, 1.0625])
    if rng.random() < 0.5:
        shape = model_shape(rng.choice(REAL_MODELS))
        return Model(shape.parameters, bytes_per_weight, kv_bytes_per_token(shape))
    return Model(rng.randrange(1, 900) * 10**8, bytes_per_weight, rng.randrange(10, 800) * 1024)


def draw_chip(rng: random.Random) -> Chip:
    """A chip of the table, or one with a ridge anywhere between 50 and 600 FLOP/byte."""
    if rng.random() < 0.5:
        real = rng.choice(list(accelerators().values()))
        return Chip(real.rate(real.half_precision), real.bandwidth)
    bandwidth = rng.randrange(100, 9000) * 1e9
    return Chip(four_digits(bandwidth * rng.uniform(50, 600)), bandwidth)


def work_of(model: Model, n_tokens: int, batch: int, context: int) -> tuple[Fraction, Fraction]:
    """FLOP and bytes of a pass, by what happens in it."""
    tokens = batch * n_tokens
    multiplications = additions = model.weights * tokens
    weights_read = model.weights * Fraction(model.bytes_per_weight)
    cache_read, cache_written = batch * context * model.kv_bytes, tokens * model.kv_bytes
    return Fraction(multiplications + additions), weights_read + cache_read + cache_written


def seconds_of(flop: Fraction, nbytes: Fraction, chip: Chip) -> tuple[Fraction, Fraction]:
    """Seconds of arithmetic and seconds of memory."""
    return flop / Fraction(chip.rate), nbytes / Fraction(chip.bandwidth)


def pass_seconds(model: Model, chip: Chip, n_tokens: int, batch: int, context: int) -> Fraction:
    """Seconds that a pass takes at least."""
    return max(seconds_of(*work_of(model, n_tokens, batch, context), chip))


def stop_endless(work: PassWork, limit: int = 1_000_000) -> PassWork:
    """`work`, to be called `limit` times at most: then CheckFailed says that the search does not end."""
    calls = 0

    def limited(model: Model, n_tokens: int, batch: int, context: int) -> tuple[Any, Any]:
        nonlocal calls
        calls += 1
        if calls > limit:
            raise wrong("Your search does not end.", mistake="where no batch reaches the ridge, return None.")
        return work(model, n_tokens, batch, context)

    return limited


def right_work(model: Model, n_tokens: int, batch: int, context: int) -> tuple[float, float]:
    """A `work` for the learner's function to call, in floats."""
    tokens = batch * n_tokens
    weights_read, cache_moved = model.weights * model.bytes_per_weight, model.kv_bytes * (batch * context + tokens)
    return 2.0 * model.weights * tokens, weights_read + cache_moved


def ridge_tokens(model: Model, chip: Chip) -> float:
    """Tokens in a pass at which it turns compute-bound, without caches."""
    return chip.rate / chip.bandwidth * model.bytes_per_weight / 2


def given_text(**values: Any) -> str:
    """Inputs as one would type them."""
    return ", ".join(f"{name}={_typed(value)}" for name, value in values.items())


def _typed(value: Any) -> str:
    if isinstance(value, (Model, Chip)):
        return f"{type(value).__name__}({given_text(**value._asdict())})"
    short = f"{value:.12g}"
    if isinstance(value, int) or (value == int(value) and ("e" not in short or float(short) != value)):
        return f"{value:_.0f}"
    return short
