"""Problem set 01, parts 1 and 2: the work of a pass, datasheets, utilisation."""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from specdec_course.checks import Check, wrong
from specdec_course.checks.numbers import as_numbers, compare, near
from specdec_course.checks.roofline_model import (
    H100,
    LLAMA,
    NOT_H100,
    NOT_LLAMA,
    Model,
    PassWork,
    draw_chip,
    draw_model,
    given_text,
    work_of,
)


def _look_at_work(work: PassWork, model: Model, n_tokens: int, batch: int, context: int) -> None:
    given = given_text(model=model, n_tokens=n_tokens, batch=batch, context=context)
    right_flop, right_bytes = work_of(model, n_tokens, batch, context)
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
            (2 * LLAMA.weights * tokens, NOT_LLAMA),
        ],
    )
    stored, read, written = weights * size, batch * context * kv, tokens * kv
    compare(
        "The bytes of the pass",
        nbytes,
        right_bytes,
        given,
        [
            (2 * weights + read + written, "these weights do not have 2 bytes each: use model.bytes_per_weight."),
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
            (weights + read + written, "weights are not bytes: multiply by model.bytes_per_weight."),
            (stored + size * (read + written), "kv_bytes is in bytes already."),
            (work_of(LLAMA, n_tokens, batch, context)[1], NOT_LLAMA),
            (LLAMA.weights * LLAMA.bytes_per_weight + read + written, NOT_LLAMA),
            (stored + batch * (context + n_tokens) * LLAMA.kv_bytes, NOT_LLAMA),
        ],
    )


def _decode_of_one(work: PassWork, rng: random.Random) -> None:
    model = draw_model(rng)._replace(bytes_per_weight=2)
    _look_at_work(work, model, 1, 1, rng.randrange(200, 4000))


def _verify_of_a_batch(work: PassWork, rng: random.Random) -> None:
    model = draw_model(rng)._replace(
        bytes_per_weight=rng.choice([0.5625, 1.0625])
    )  # never the 2 of the notebook's models
    _look_at_work(work, model, rng.randrange(3, 10), rng.randrange(2, 65), rng.randrange(200, 4000))


def _prefill_of_prompts(work: PassWork, rng: random.Random) -> None:
    _look_at_work(work, draw_model(rng)._replace(bytes_per_weight=2), rng.randrange(100, 1500), rng.randrange(2, 5), 0)


work = Check("work", [_decode_of_one, _verify_of_a_batch, _prefill_of_prompts])


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
    if near(rate, right_bandwidth) and near(bandwidth, right_rate):
        raise wrong(
            "Rate and bandwidth are the other way round.", given=row, got=(rate, bandwidth), mistake="the rate first."
        )
    bitwise = "in Python ^ works on bits: write 10**12 or 1e12 for 10^12, and 2**30 for 2^30."
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
            (right_rate / 10**12 * (10 ^ 12), bitwise),
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
            *((size * power, bitwise) for power in (2 ^ 30, 10 ^ 9, 10 ^ 12, 1024 ^ 3)),
            (size * 2 * 10**30, "2e30 is 2 times 10^30; two to the power of 30 is 2**30."),
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
        chip = draw_chip(rng)
        right = Fraction(chip.rate) / Fraction(chip.bandwidth)
        compare(
            "The ridge",
            ridge(chip),
            right,
            given_text(chip=chip),
            [
                (1 / right, "the other way round: FLOP over bytes."),
                (2 * right, "twice too large: the rate is in FLOP/s, so the ridge is in FLOP over bytes, no factor."),
                (right / 2, "half of it: the rate of a Chip is dense already, nothing to halve."),
                (Fraction(H100.rate) / Fraction(H100.bandwidth), NOT_H100),
            ],
        )


datasheet = Check("datasheet", [_dense_row, _sparse_row, _binary_row, _where_the_roof_bends])


def _utilisation_of(utilisation: Callable, achieved: float, peak: float) -> bool:
    """Whether the learner's function warned; its value is checked."""
    given = given_text(achieved=achieved, peak=peak)
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
            (1, "cutting the share off at 1, or to a whole number, hides that something is wrong."),
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
                given=given_text(achieved=factor * peak, peak=peak),
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
                given=given_text(achieved=achieved, peak=peak),
                got=f"a warning at a share of {achieved / peak:.3g}",
                expected="none",
                mistake="only a share *above* 1 is impossible.",
            )


utilisation = Check("utilisation", [_warns_above_one, _quiet_up_to_one])
