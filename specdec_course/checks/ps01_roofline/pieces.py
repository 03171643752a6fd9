"""What the checks of problem set 01 share: models and chips, and the count of a pass in fractions."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from specdec_course.checks import wrong
from specdec_ref.arithmetic import accelerators, kv_bytes_per_token, model_shape


class Model(NamedTuple):
    """A dense language model: `weights` (how many), bytes that each takes, bytes of keys and values per token."""

    weights: int
    bytes_per_weight: float
    kv_bytes: int


class Chip(NamedTuple):
    """A chip's peaks: `rate` in dense FLOP/s, `bandwidth` in bytes/s."""

    rate: float
    bandwidth: float


class Pass(NamedTuple):
    """A pass of model m on chip c over n new tokens in each of b sequences, after s tokens of context each."""

    m: Model
    c: Chip
    n: int
    b: int
    s: int

    @property
    def flop(self) -> Fraction:
        """By what happens in the pass."""
        multiplications = additions = self.m.weights * self.b * self.n
        return Fraction(multiplications + additions)

    @property
    def nbytes(self) -> Fraction:
        """By what moves in the pass."""
        weights_read = self.m.weights * Fraction(self.m.bytes_per_weight)
        cache_read, cache_written = self.b * self.s * self.m.kv_bytes, self.b * self.n * self.m.kv_bytes
        return weights_read + cache_read + cache_written

    @property
    def arithmetic(self) -> Fraction:
        """Seconds of arithmetic."""
        return self.flop / Fraction(self.c.rate)

    @property
    def memory(self) -> Fraction:
        """Seconds of memory."""
        return self.nbytes / Fraction(self.c.bandwidth)

    @property
    def seconds(self) -> Fraction:
        """Seconds that the pass takes at least."""
        return max(self.arithmetic, self.memory)

    def but(self, **other: Any) -> Pass:
        """The pass with other sizes."""
        return self._replace(**other)


# The notebook's own names: what comes out if a function uses them in place of what it was given.
LLAMA, H100 = Model(70_553_706_496, 2, 327_680), Chip(989e12, 3.35e12)
NOT_LLAMA = "that is so for llama, the notebook's model: use the argument `model`."
NOT_H100 = "that is so for h100, the notebook's chip: use the argument `chip`."
NEITHER = f"{NOT_LLAMA} And so for h100 and `chip`."
REAL_MODELS = ("smollm2-135m", "llama-2-7b", "llama-2-13b", "llama-3-8b", "qwen2.5-14b", "qwen3-4b")


def four_digits(value: float) -> float:
    """`value` with four digits, so that it is easy to read and to type."""
    return float(f"{value:.4g}")


def draw_model(rng: random.Random, **fixed: Any) -> Model:
    """A real dense model or an invented one, its weights in 4.5 to 32 bits; with what is `fixed`."""
    model = Model(rng.randrange(1, 900) * 10**8, rng.choice([2, 2, 4, 1, 0.5, 0.5625]), rng.randrange(10, 800) * 1024)
    if rng.random() < 0.5:
        shape = model_shape(rng.choice(REAL_MODELS))
        model = model._replace(weights=shape.parameters, kv_bytes=kv_bytes_per_token(shape))
    return model._replace(**fixed)


def draw_chip(rng: random.Random) -> Chip:
    """A chip of the table, or one with a ridge anywhere between 50 and 600 FLOP/byte; not near that of an H100."""
    while True:
        real, bandwidth = rng.choice(list(accelerators().values())), rng.randrange(100, 9000) * 1e9
        invented = Chip(four_digits(bandwidth * rng.uniform(50, 600)), bandwidth)
        chip = rng.choice([Chip(real.rate(real.half_precision), real.bandwidth), invented])
        if not 250 < ridge(chip) < 350:
            return chip


def ridge(chip: Chip) -> Fraction:
    """FLOP/byte at which arithmetic takes as long as memory."""
    return Fraction(chip.rate) / Fraction(chip.bandwidth)


def right_work(model: Model, n_tokens: int, batch: int, context: int) -> tuple[float, float]:
    """A `work` for the learner's function to call, in floats."""
    one = Pass(model, H100, n_tokens, batch, context)
    return float(one.flop), float(one.nbytes)


def stop_endless(work: Callable[..., tuple[Any, Any]], limit: int = 1_000_000) -> Callable[..., tuple[Any, Any]]:
    """`work`, to be called `limit` times at most: then CheckFailed says that the search does not end."""
    calls = 0

    def limited(model: Model, n_tokens: int, batch: int, context: int) -> tuple[Any, Any]:
        nonlocal calls
        calls += 1
        if calls > limit:
            raise wrong("Your search does not end.", mistake="where no batch reaches the ridge, return None.")
        return work(model, n_tokens, batch, context)

    return limited
