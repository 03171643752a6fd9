"""Checks of problem set 01: the work of a pass, datasheets, times and bounds on the roofline.

The right values come from counting in fractions what happens in a pass, and from the meaning of a bound (one more is
too many, one less too few), not from the formulas that learners are to find.
"""

from __future__ import annotations

import contextlib
import io
import math
import random
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from specdec_ref.arithmetic import accelerators, kv_bytes_per_token, model_shape
from specdec_ref.lab.checks import Check, wrong
from specdec_ref.lab.checks.numbers import as_number, as_numbers, compare, near, number_text


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


def _digits(value: float) -> float:
    """`value` with four digits, so that it is easy to read and to type."""
    return float(f"{value:.4g}")


def _model(rng: random.Random) -> Model:
    """A real dense model or an invented one, its weights in 4.5 to 32 bits."""
    bytes_per_weight = rng.choice([2, 2, 4, 1, 0.5, 0.5625, 1.0625])
    if rng.random() < 0.5:
        shape = model_shape(rng.choice(REAL_MODELS))
        return Model(shape.parameters, bytes_per_weight, kv_bytes_per_token(shape))
    return Model(rng.randrange(1, 900) * 10**8, bytes_per_weight, rng.randrange(10, 800) * 1024)


def _chip(rng: random.Random) -> Chip:
    """A chip of the table, or one with a ridge anywhere between 50 and 600 FLOP/byte."""
    if rng.random() < 0.5:
        real = rng.choice(list(accelerators().values()))
        return Chip(real.rate(real.half_precision), real.bandwidth)
    bandwidth = rng.randrange(100, 9000) * 1e9
    return Chip(_digits(bandwidth * rng.uniform(50, 600)), bandwidth)


def _work(model: Model, n_tokens: int, batch: int, context: int) -> tuple[Fraction, Fraction]:
    """FLOP and bytes of a pass, by what happens in it."""
    tokens = batch * n_tokens
    multiplications = additions = model.weights * tokens
    weights_read = model.weights * Fraction(model.bytes_per_weight)
    cache_read, cache_written = batch * context * model.kv_bytes, tokens * model.kv_bytes
    return Fraction(multiplications + additions), weights_read + cache_read + cache_written


def _seconds(flop: Fraction, nbytes: Fraction, chip: Chip) -> tuple[Fraction, Fraction]:
    """Seconds of arithmetic and seconds of memory."""
    return flop / Fraction(chip.rate), nbytes / Fraction(chip.bandwidth)


def _pass_seconds(model: Model, chip: Chip, n_tokens: int, batch: int, context: int) -> Fraction:
    return max(_seconds(*_work(model, n_tokens, batch, context), chip))


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


def _handed_in(model: Model, n_tokens: int, batch: int, context: int) -> tuple[float, float]:
    """A `work` for the learner's function to call, in floats."""
    tokens = batch * n_tokens
    weights_read, cache_moved = model.weights * model.bytes_per_weight, model.kv_bytes * (batch * context + tokens)
    return 2.0 * model.weights * tokens, weights_read + cache_moved


# The work of a pass.


def _given(**values: Any) -> str:
    """Inputs as one would type them."""
    return ", ".join(f"{name}={_typed(value)}" for name, value in values.items())


def _typed(value: Any) -> str:
    if isinstance(value, (Model, Chip)):
        return f"{type(value).__name__}({_given(**value._asdict())})"
    return f"{value:_}" if isinstance(value, int) else f"{value:.12g}"


def _look_at_work(work: PassWork, model: Model, n_tokens: int, batch: int, context: int) -> None:
    given = _given(model=model, n_tokens=n_tokens, batch=batch, context=context)
    right_flop, right_bytes = _work(model, n_tokens, batch, context)
    flop, nbytes = as_numbers(work(model, n_tokens, batch, context), ["FLOP", "bytes"], given)
    if near(flop, right_bytes) and near(nbytes, right_flop) and not near(right_flop, right_bytes):
        raise wrong("FLOP and bytes are the other way round.", given=given, got=(flop, nbytes), mistake="FLOP first.")
    weights, size, kv = model.weights, model.bytes_per_weight, model.kv_bytes
    tokens = n_tokens * batch
    compare(
        "The FLOP of the pass",
        flop,
        right_flop,
        given,
        [
            (weights * tokens, "one multiplication and one addition are 2 FLOP a weight."),
            (2 * weights * n_tokens, "each sequence of the batch brings its own new tokens."),
            (weights * n_tokens, "2 FLOP a weight, and each sequence of the batch brings its own new tokens."),
            (2 * weights * batch, "every new token of a sequence meets all weights: n_tokens times."),
            (2 * weights, "that is the arithmetic of one token; n_tokens in each of batch sequences meet the weights."),
            (2 * weights * size * tokens, "a weight is one number, however many bytes it takes: count weights here."),
            (weights * size * tokens, "count 2 FLOP a weight, not the bytes of a weight."),
            (2 * weights * batch * (context + n_tokens), "tokens in the cache are not computed again: only new ones."),
            (2 * weights * batch * context, "tokens in the cache are not computed again: only new ones are."),
        ],
    )
    stored, read, written = weights * size, batch * context * kv, tokens * kv
    compare(
        "The bytes of the pass",
        nbytes,
        right_bytes,
        given,
        [
            (stored * tokens + read + written, "the weights are read once for all tokens, not once for each."),
            (stored * n_tokens + read + written, "the weights are read once for all tokens, not once for each."),
            (stored * batch + read + written, "the weights are read once for all sequences, not once for each."),
            (batch * (stored + read + written), "the weights are read once for all sequences, not once for each."),
            (stored + context * kv + n_tokens * kv, "every sequence of the batch has its own cache."),
            (stored + context * kv + written, "every sequence of the batch reads its own cache."),
            (stored + read + n_tokens * kv, "the new tokens of *all* sequences are written."),
            (stored + read + batch * kv, "all n_tokens new tokens of a sequence are written, not one."),
            (stored + read + kv, "all new tokens of all sequences are written, not one."),
            (stored + read, "the keys and values of the new tokens are written: they count as well."),
            (stored + written, "the keys and values of the context have to be read."),
            (stored, "the caches move as well: read for the context, written for new tokens."),
            (stored + n_tokens * read + written, "one pass reads the cache of a sequence once for all its new tokens."),
            (2 * weights + read + written, "these weights do not have 2 bytes each: use model.bytes_per_weight."),
            (weights + read + written, "weights are not bytes: multiply by model.bytes_per_weight."),
            (stored + size * (read + written), "kv_bytes is in bytes already."),
        ],
    )


def _decode_of_one(work: PassWork, rng: random.Random) -> None:
    model = _model(rng)._replace(bytes_per_weight=2)
    _look_at_work(work, model, 1, 1, rng.randrange(200, 4000))


def _verify_of_a_batch(work: PassWork, rng: random.Random) -> None:
    _look_at_work(work, _model(rng), rng.randrange(3, 10), rng.randrange(2, 65), rng.randrange(200, 4000))


def _prefill_of_prompts(work: PassWork, rng: random.Random) -> None:
    _look_at_work(work, _model(rng), rng.randrange(100, 1500), rng.randrange(2, 5), 0)


work = Check("work", [_decode_of_one, _verify_of_a_batch, _prefill_of_prompts])


# Datasheets.

UNITS = {"TB/s": 10**12, "GB/s": 10**9, "GiB/s": 1024**3}


def _row(rng: random.Random, with_sparsity: bool, unit: str) -> dict[str, Any]:
    bandwidth = {
        "TB/s": rng.randrange(100, 900) / 100,
        "GB/s": rng.randrange(200, 999),
        "GiB/s": rng.randrange(200, 999),
    }
    return {
        "name": f"chip {rng.randrange(100, 999)}",
        "tflops": float(rng.randrange(60, 2500) * (2 if with_sparsity else 1)),
        "with_sparsity": with_sparsity,
        "bandwidth": bandwidth[unit],
        "unit": unit,
    }


def _look_at_datasheet(read: Callable, row: dict[str, Any]) -> None:
    printed = Fraction(row["tflops"]) * 10**12
    right_rate = printed / 2 if row["with_sparsity"] else printed
    right_bandwidth = Fraction(row["bandwidth"]) * UNITS[row["unit"]]
    rate, bandwidth = as_numbers(read(dict(row)), ["rate", "bandwidth"], row)
    compare(
        "The dense rate",
        rate,
        right_rate,
        row,
        [
            (printed, "the sheet's figure holds with 2:4 sparsity; dense matrices reach half of it."),
            (printed / 2, "this figure is dense already: nothing to halve."),
            (right_rate / 10**12, "in FLOP/s, not TFLOP/s: times 10^12."),
            (right_rate / 10**3, "tera is 10^12, not 10^9."),
            (right_rate * 1024**4 / 10**12, "tera is 10^12 here, not 2^40."),
            (2 * printed, "dense matrices reach *half* of the figure with sparsity, not twice."),
        ],
    )
    size = Fraction(row["bandwidth"])
    compare(
        "The bandwidth",
        bandwidth,
        right_bandwidth,
        row,
        [
            (size, "in bytes a second: the unit is missing."),
            (size * 10**12, f"the sheet says {row['unit']}, and you took TB/s."),
            *([(size * 10**9, "a GiB is 2^30 bytes; a GB is 10^9.")] if row["unit"] == "GiB/s" else []),
            *([(size * 2**30, "a GB is 10^9 bytes; 2^30 is a GiB.")] if row["unit"] == "GB/s" else []),
            *([(size * 2**40, "a TB is 10^12 bytes; 2^40 is a TiB.")] if row["unit"] == "TB/s" else []),
            (size * 10**9, f"the sheet says {row['unit']}, and you took GB/s."),
            (right_bandwidth / 2, "sparsity is about arithmetic; the bandwidth stays."),
        ],
    )


def _dense_row(read: Callable, _ridge: Callable, rng: random.Random) -> None:
    for unit in ("TB/s", "GB/s"):
        _look_at_datasheet(read, _row(rng, False, unit))


def _sparse_row(read: Callable, _ridge: Callable, rng: random.Random) -> None:
    for unit in ("TB/s", "GB/s"):
        _look_at_datasheet(read, _row(rng, True, unit))


def _binary_row(read: Callable, _ridge: Callable, rng: random.Random) -> None:
    for with_sparsity in (False, True):
        _look_at_datasheet(read, _row(rng, with_sparsity, "GiB/s"))


def _where_the_roof_bends(_read: Callable, ridge: Callable, rng: random.Random) -> None:
    for _ in range(3):
        chip = _chip(rng)
        right = Fraction(chip.rate) / Fraction(chip.bandwidth)
        compare(
            "The ridge",
            ridge(chip),
            right,
            _given(chip=chip),
            [
                (1 / right, "the other way round: FLOP over bytes."),
                (2 * right, "twice too large: the rate is in FLOP/s, so the ridge is in FLOP over bytes, no factor."),
                (right / 2, "half of it: the rate of a Chip is dense already, nothing to halve."),
            ],
        )


datasheet = Check("datasheet", [_dense_row, _sparse_row, _binary_row, _where_the_roof_bends])


def _utilisation_of(utilisation: Callable, achieved: float, peak: float) -> bool:
    """Whether the learner's function warned; its value is checked."""
    given = _given(achieved=achieved, peak=peak)
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        try:
            share = utilisation(achieved, peak)
        except (ValueError, Warning, AssertionError) as error:
            raise wrong(
                "An error was raised.",
                given=given,
                got=f"{type(error).__name__}: {error}",
                expected="the share, and above 1 a warning beside it",
                mistake="use warnings.warn(...): the caller gets the number and is told to doubt it.",
            ) from None
    right = Fraction(achieved) / Fraction(peak)
    compare(
        "The utilisation",
        share,
        right,
        given,
        [
            (1, "cutting the share off at 1 hides that something is wrong."),
            (1 / right if right else 0, "the other way round: achieved over peak."),
            (100 * right, "a share, not percent."),
        ],
    )
    if not caught and right > 1 and printed.getvalue().strip():
        raise wrong(
            "Nothing was warned of.",
            given=given,
            got="something printed",
            expected="a warning",
            mistake="what is printed gets lost, and no program can see it: use warnings.warn(...).",
        )
    return bool(caught)


def _warns_above_one(utilisation: Callable, rng: random.Random) -> None:
    for factor in (rng.uniform(1.02, 1.2), rng.uniform(1.5, 9)):
        peak = rng.randrange(300, 9000) * 1e9
        if not _utilisation_of(utilisation, factor * peak, peak):
            raise wrong(
                "Nothing was warned of.",
                given=_given(achieved=factor * peak, peak=peak),
                got="no warning",
                expected="a warning",
                mistake="nothing can do more than its peak: a utilisation above 1 means that a number is wrong.",
            )


def _quiet_up_to_one(utilisation: Callable, rng: random.Random) -> None:
    peak = float(rng.randrange(300, 9000) * 10**9)
    for achieved in (0.0, rng.uniform(0.1, 0.99) * peak, peak):
        if _utilisation_of(utilisation, achieved, peak):
            raise wrong(
                "A warning came where all is well.",
                given=_given(achieved=achieved, peak=peak),
                got=f"a warning at a share of {achieved / peak:.3g}",
                expected="none",
                mistake="only a share *above* 1 is impossible.",
            )


utilisation = Check("utilisation", [_warns_above_one, _quiet_up_to_one])


# Times.


def _look_at_time(pass_time: Callable, flop: float, nbytes: float, chip: Chip) -> None:
    given = _given(flop=flop, nbytes=nbytes, chip=chip)
    arithmetic, memory = _seconds(Fraction(flop), Fraction(nbytes), chip)
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
        chip = _chip(rng)
        nbytes = rng.randrange(1, 300) * 1e9
        _look_at_time(pass_time, _digits(nbytes * chip.rate / chip.bandwidth * rng.uniform(*factor)), nbytes, chip)


def _memory_takes_longer(pass_time: Callable, rng: random.Random) -> None:
    _time_bound_by(pass_time, rng, (0.01, 0.9))


def _arithmetic_takes_longer(pass_time: Callable, rng: random.Random) -> None:
    _time_bound_by(pass_time, rng, (1.1, 40))


pass_time = Check("pass_time", [_memory_takes_longer, _arithmetic_takes_longer])


def _ridge_tokens(model: Model, chip: Chip) -> float:
    """Tokens in a pass at which it turns compute-bound, without caches."""
    return chip.rate / chip.bandwidth * model.bytes_per_weight / 2


def _look_at_speed(tokens_per_second: Callable, model: Model, chip: Chip, batch: int, context: int) -> None:
    given = _given(model=model, chip=chip, batch=batch, context=context)
    arithmetic, memory = _seconds(*_work(model, 1, batch, context), chip)
    weights_alone = model.weights * Fraction(model.bytes_per_weight) / Fraction(chip.bandwidth)
    compare(
        "Tokens a second",
        tokens_per_second(_handed_in, model, chip, batch, context),
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
            (batch / max(_seconds(*_work(model, 1, 1, context), chip)), "the step of a batch of 1 was used for all."),
        ],
    )


def _speed_of_one(tokens_per_second: Callable, rng: random.Random) -> None:
    _look_at_speed(tokens_per_second, _model(rng), _chip(rng), 1, rng.randrange(0, 4000))


def _speed_of_some(tokens_per_second: Callable, rng: random.Random) -> None:
    _look_at_speed(tokens_per_second, _model(rng), _chip(rng), rng.randrange(2, 9), rng.randrange(500, 4000))


def _speed_of_many(tokens_per_second: Callable, rng: random.Random) -> None:
    model, chip = _model(rng), _chip(rng)
    batch = math.ceil(_ridge_tokens(model, chip) * rng.uniform(2, 4)) + 1
    _look_at_speed(tokens_per_second, model._replace(kv_bytes=1024), chip, batch, rng.randrange(0, 30))


tokens_per_second = Check("tokens_per_second", [_speed_of_one, _speed_of_some, _speed_of_many])


def _look_at_cost(verify_cost: Callable, model: Model, chip: Chip, gamma: int, batch: int, context: int) -> None:
    given = _given(model=model, chip=chip, gamma=gamma, batch=batch, context=context)

    def parts(n_tokens: int) -> tuple[Fraction, Fraction]:
        return _seconds(*_work(model, n_tokens, batch, context), chip)

    plain, check = parts(1), parts(gamma + 1)
    compare(
        "The cost of the verification",
        verify_cost(_handed_in, model, chip, gamma, batch, context),
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
                _pass_seconds(model, chip, gamma + 1, 1, context) / _pass_seconds(model, chip, 1, 1, context),
                "that is the cost with a batch of 1.",
            ),
            (
                max(_seconds(*_work(model, 1, batch * (gamma + 1), context), chip)) / max(plain),
                "the drafts of a sequence share its cache: they are not further sequences.",
            ),
            (
                max(parts(gamma + 1)) / _pass_seconds(model, chip, 1, 1, context),
                "compare with a plain step of the same batch.",
            ),
            (
                max(parts(gamma + 1)) / _pass_seconds(model, chip, 1, batch, 0),
                "the plain step reads the caches, too: same context in both passes.",
            ),
        ],
    )


def _cost_left_of_ridge(verify_cost: Callable, rng: random.Random) -> None:
    model = _model(rng)._replace(bytes_per_weight=2)
    chip = _chip(rng)
    _look_at_cost(verify_cost, model, chip, rng.randrange(2, 9), rng.randrange(1, 4), rng.randrange(500, 4000))


def _cost_across_ridge(verify_cost: Callable, rng: random.Random) -> None:
    model, chip = _model(rng)._replace(bytes_per_weight=2, kv_bytes=20_480), _chip(rng)
    gamma = rng.randrange(3, 9)
    batch = max(2, math.ceil(_ridge_tokens(model, chip) * rng.uniform(0.6, 0.9)))
    model = model._replace(weights=max(model.weights, batch * 40_000_000))  # the caches stay small beside the weights
    _look_at_cost(verify_cost, model, chip, gamma, batch, rng.randrange(200, 500))


def _cost_right_of_ridge(verify_cost: Callable, rng: random.Random) -> None:
    model, chip = _model(rng)._replace(bytes_per_weight=2, kv_bytes=20_480), _chip(rng)
    batch = math.ceil(_ridge_tokens(model, chip) * rng.uniform(2, 4))
    model = model._replace(weights=max(model.weights, batch * 40_000_000))
    _look_at_cost(verify_cost, model, chip, rng.randrange(2, 9), batch, rng.randrange(50, 200))


verify_cost = Check("verify_cost", [_cost_left_of_ridge, _cost_across_ridge, _cost_right_of_ridge])


# The batch at which a pass turns compute-bound.


def _computes(model: Model, chip: Chip, n_tokens: int, batch: int, context: int) -> bool:
    arithmetic, memory = _seconds(*_work(model, n_tokens, batch, context), chip)
    return arithmetic >= memory


def _crossing(model: Model, chip: Chip, n_tokens: int, context: int) -> Fraction | None:
    """The batch, not rounded, at which arithmetic has caught up with memory; None if it never does.

    It starts behind by the reading of the weights, and gains the same on memory with each sequence.
    """

    def lead(batch: int) -> Fraction:
        arithmetic, memory = _seconds(*_work(model, n_tokens, batch, context), chip)
        return arithmetic - memory

    gain = lead(2) - lead(1)
    return None if gain <= 0 else 1 - lead(1) / gain


def _look_at_batch(
    compute_bound_batch: Callable, model: Model, chip: Chip, n_tokens: int, context: int, right: int | None
) -> None:
    given = _given(model=model, chip=chip, n_tokens=n_tokens, context=context)
    got = compute_bound_batch(stop_endless(_handed_in), model, chip, n_tokens, context)
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
        model, chip, n, s = _model(rng), _chip(rng), n_tokens(), context()
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
        model, chip, n, context = _model(rng), _chip(rng), rng.randrange(1, 4), rng.randrange(4000, 60_000)
        arithmetic = Fraction(2 * model.weights * n) / Fraction(chip.rate)
        reading = Fraction(model.kv_bytes * (context + n)) / Fraction(chip.bandwidth)
        if arithmetic < reading * Fraction(99, 100):
            break
    _look_at_batch(compute_bound_batch, model, chip, n, context, None)


def _batch_of_one_is_enough(compute_bound_batch: Callable, rng: random.Random) -> None:
    model, chip = _model(rng)._replace(weights=7 * 10**9, kv_bytes=131_072), _chip(rng)
    n_tokens = math.ceil(_ridge_tokens(model, chip) * 1.5) + 20
    _look_at_batch(compute_bound_batch, model, chip, n_tokens, 0, 1)


compute_bound_batch = Check(
    "compute_bound_batch", [_batch_with_short_context, _batch_with_caches, _batch_never, _batch_of_one_is_enough]
)


# The bug in given code.


def _colleague(chip: Chip, batch: int, bytes_per_weight: float) -> int:
    """What the notebook's given function computes."""
    ridge = chip.rate / chip.bandwidth
    tokens = ridge * bytes_per_weight / 2
    return max(0, int(tokens) - batch)


def _is_free(chip: Chip, gamma: int, batch: int, bytes_per_weight: float) -> bool:
    """Whether a pass over gamma + 1 tokens takes no longer than one over a single token, for any number of weights."""
    model = Model(1, bytes_per_weight, 0)
    return _pass_seconds(model, chip, gamma + 1, batch, 0) <= _pass_seconds(model, chip, 1, batch, 0)


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
            given=_given(chip=chip, batch=batch, bytes_per_weight=size),
            got=f"free_drafts gives {theirs}",
            expected=f"an input on which it does not give what is right, and {right} is right here",
            mistake="a batch of 1 does not show it: there its two lines agree with the truth." if batch == 1 else "",
        )


counterexample = Check("counterexample", [_a_real_counterexample])


def _look_at_free(repaired: Callable, chip: Chip, batch: int, size: float) -> None:
    given = _given(chip=chip, batch=batch, bytes_per_weight=size)
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
        chip, size = _chip(rng), rng.choice([2, 1, 0.5, 0.5625])
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
