"""Problem set 01, parts 1 and 2: the work of a pass, datasheets, utilisation."""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from specdec_course.checks import Check, wrong
from specdec_course.checks.mistakes import NUMBER, Answer, Case, Judge, judged, mistakes, parts
from specdec_course.checks.numbers import as_numbers, typed
from specdec_course.checks.ps01_roofline.pieces import (
    H100,
    LLAMA,
    NOT_H100,
    NOT_LLAMA,
    Model,
    Pass,
    draw_chip,
    draw_model,
    ridge,
)

# w weights of p bytes, W bytes in all; k bytes of keys and values per token; n new tokens, b sequences, s tokens before
Sizes = namedtuple("Sizes", "w p W k n b s")


def _sizes(model: Model, n: int, b: int, s: int) -> Sizes:
    return Sizes(*model[:2], model.weights * Fraction(model.bytes_per_weight), model.kv_bytes, n, b, s)


FLOP = mistakes(
    lambda f: lambda *sizes: f(_sizes(*sizes)),
    {
        "FLOP and bytes are the other way round: FLOP first.": lambda v: v.W + v.b * (v.s + v.n) * v.k,
        "one multiplication and one addition are 2 FLOP a weight.": lambda v: v.w * v.n * v.b,
        "each sequence of the batch brings its own new tokens.": lambda v: 2 * v.w * v.n,
        "2 FLOP a weight, and each sequence of the batch has its own tokens.": lambda v: v.w * v.n,
        "every new token of a sequence meets all weights: n_tokens times.": lambda v: 2 * v.w * v.b,
        "that is one token; n_tokens in each of batch sequences meet the weights.": lambda v: 2 * v.w,
        "a weight is one number, whatever bytes it takes: count weights.": lambda v: 2 * v.W * v.n * v.b,
        "count 2 FLOP a weight, not the bytes of a weight.": lambda v: v.W * v.n * v.b,
        "tokens in the cache are not computed again: only new ones.": lambda v: 2 * v.w * v.b * (v.s + v.n),
        "only new tokens are computed, not those in the cache.": lambda v: 2 * v.w * v.b * v.s,
        NOT_LLAMA: lambda v: 2 * LLAMA.weights * v.n * v.b,
    },
)
BYTES = mistakes(
    lambda f: lambda *sizes: f(_sizes(*sizes)),
    {
        "these weights do not have 2 bytes each: use model.bytes_per_weight.": lambda v: (
            2 * v.w + v.b * (v.s + v.n) * v.k
        ),
        "the weights are read once for all tokens, not once for each.": lambda v: (
            v.W * v.n * v.b + v.b * (v.s + v.n) * v.k
        ),
        "the weights are read once for all tokens of a sequence.": lambda v: v.W * v.n + v.b * (v.s + v.n) * v.k,
        "the weights are read once for all sequences.": lambda v: v.b * (v.W + (v.s + v.n) * v.k),
        "every sequence of the batch has its own cache.": lambda v: v.W + (v.s + v.n) * v.k,
        "every sequence of the batch reads its own cache.": lambda v: v.W + (v.s + v.n * v.b) * v.k,
        "the new tokens of *all* sequences are written.": lambda v: v.W + (v.b * v.s + v.n) * v.k,
        "all n_tokens new tokens of a sequence are written, not one.": lambda v: v.W + v.b * (v.s + 1) * v.k,
        "all new tokens of all sequences are written, not one.": lambda v: v.W + (v.b * v.s + 1) * v.k,
        "keys and values of the new tokens are written: they count as well.": lambda v: v.W + v.b * v.s * v.k,
        "the keys and values of the context have to be read.": lambda v: v.W + v.b * v.n * v.k,
        "the caches move as well: read for the context, written for new tokens.": lambda v: v.W,
        "one pass reads a cache once for all its new tokens.": lambda v: v.W + (v.s + 1) * v.n * v.b * v.k,
        "weights are not bytes: multiply by model.bytes_per_weight.": lambda v: v.w + v.b * (v.s + v.n) * v.k,
        NOT_LLAMA: lambda v: 2 * LLAMA.weights + v.b * (v.s + v.n) * v.k,
    },
)


def _one_of(names: tuple[str, str], i: int) -> Answer:
    """One of two numbers that are returned together."""
    return replace(NUMBER, read=lambda value, what, given: as_numbers(value, names, given)[i])


def _flop(model: Model, n_tokens: int, batch: int, context: int) -> Fraction:
    return Pass(model, H100, n_tokens, batch, context).flop


def _bytes(model: Model, n_tokens: int, batch: int, context: int) -> Fraction:
    return Pass(model, H100, n_tokens, batch, context).nbytes


def _verify(rng: random.Random) -> list[Case]:
    """Never with the 2 bytes per weight of the notebook's models."""
    model = draw_model(rng, bytes_per_weight=rng.choice([0.5625, 1.0625]))
    return [(model, rng.randrange(3, 10), rng.randrange(2, 65), rng.randrange(200, 4000))]


work = judged(
    "work",
    Judge("The FLOP of the pass", _flop, FLOP, _one_of(("FLOP", "bytes"), 0)),
    Judge("The bytes of the pass", _bytes, BYTES, _one_of(("FLOP", "bytes"), 1)),
    decode_of_one=lambda rng: [(draw_model(rng, bytes_per_weight=2), 1, 1, rng.randrange(200, 4000))],
    verify_of_a_batch=_verify,
    prefill_of_prompts=lambda rng: [
        (draw_model(rng, bytes_per_weight=2), rng.randrange(100, 1500), rng.randrange(2, 5), 0)
    ],
)


Row = dict[str, Any]


def _rate(row: Row) -> Fraction:
    printed = Fraction(row["tflops"]) * 10**12
    return printed / 2 if row["with_sparsity"] else printed


def _bandwidth(row: Row, tb: Any = 10**12, gb: Any = 10**9, gib: Any = 1024**3) -> Fraction:
    return Fraction(row["bandwidth"]) * {"TB/s": tb, "GB/s": gb, "GiB/s": gib}[row["unit"]]


BITWISE = "in Python ^ works on bits: write 10**12 or 1e12 for 10^12, and 2**30 for 2^30."
RATES = mistakes(
    lambda f: lambda row: f(row, Fraction(row["tflops"])),
    {
        "the other way round: the rate first, then the bandwidth.": lambda row, t: _bandwidth(row),
        "the sheet's figure holds with 2:4 sparsity; dense matrices reach half of it.": lambda row, t: t * 10**12,
        "this figure is dense already: nothing to halve.": lambda row, t: t * 10**12 / 2,
        "in FLOP/s, not TFLOP/s: times 10^12.": lambda row, t: _rate(row) / 10**12,
        "tera is 10^12, not 10^9.": lambda row, t: _rate(row) / 10**3,
        "tera is 10^12 here, not 2^40.": lambda row, t: _rate(row) / 10**12 * 1024**4,
        "dense matrices reach *half* of the figure with sparsity, not twice.": lambda row, t: 2 * t * 10**12,
        BITWISE: lambda row, t: _rate(row) / 10**12 * (10 ^ 12),
    },
)
BANDWIDTHS = mistakes(
    lambda f: f,
    {
        "in bytes a second: the unit is missing.": lambda row: Fraction(row["bandwidth"]),
        "you took TB/s: look at the unit of the row.": lambda row: _bandwidth(row, gb=10**12, gib=10**12),
        "you took GB/s: look at the unit of the row.": lambda row: _bandwidth(row, tb=10**9),
        "a GiB is 2^30 bytes; a GB is 10^9.": lambda row: _bandwidth(row, gib=10**9),
        "a GB is 10^9 bytes; 2^30 is a GiB.": lambda row: _bandwidth(row, gb=2**30),
        "a TB is 10^12 bytes; 2^40 is a TiB.": lambda row: _bandwidth(row, tb=2**40),
        "sparsity is about arithmetic; the bandwidth stays.": lambda row: _bandwidth(row) / 2,
        BITWISE: lambda row: _bandwidth(row, 10 ^ 12, 10 ^ 9, 2 ^ 30),
        f"{BITWISE} So for 1024**3.": lambda row: _bandwidth(row, 10 ^ 12, 10 ^ 9, 1024 ^ 3),
        "2e30 is 2 times 10^30; two to the power of 30 is 2**30.": lambda row: _bandwidth(row, gib=2 * 10**30),
    },
)
RIDGES = mistakes(
    lambda f: f,
    {
        "the other way round: FLOP over bytes.": lambda chip: 1 / ridge(chip),
        "the rate is in FLOP/s, so the ridge is in FLOP over bytes: no factor 2.": lambda chip: 2 * ridge(chip),
        "the rate of a Chip is dense already, nothing to halve.": lambda chip: ridge(chip) / 2,
        NOT_H100: lambda chip: ridge(H100),
    },
)


def _rows(rng: random.Random, *units: str, sparse: tuple[bool, ...]) -> list[Case]:
    rows: list[Case] = []
    for unit in units:
        for with_sparsity in sparse:
            bandwidth = rng.randrange(100, 900) / 100 if unit == "TB/s" else rng.randrange(200, 999)
            sheet = {"name": f"chip {rng.randrange(999)}", "tflops": float(2 * rng.randrange(60, 1250))}
            rows.append(({**sheet, "with_sparsity": with_sparsity, "bandwidth": bandwidth, "unit": unit},))
    return rows


datasheet = Check(
    "datasheet",
    [
        *parts(
            Judge("The dense rate", _rate, RATES, _one_of(("rate", "bandwidth"), 0)),
            Judge(
                "The bandwidth", _bandwidth, BANDWIDTHS, _one_of(("rate", "bandwidth"), 1), given=lambda row: f"{row}"
            ),
            dense_row=lambda rng: _rows(rng, "TB/s", "GB/s", sparse=(False,)),
            sparse_row=lambda rng: _rows(rng, "TB/s", "GB/s", sparse=(True,)),
            binary_row=lambda rng: _rows(rng, "GiB/s", sparse=(False, True)),
        ),
        *parts(
            Judge("The ridge", ridge, RIDGES),
            which=1,
            where_the_roof_bends=lambda rng: [(draw_chip(rng),) for _ in range(3)],
        ),
    ],
)


def _watched(utilisation: Callable, achieved: float, peak: float) -> tuple[Any, str]:
    """What the learner's function returns, and whether it warned."""
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        try:
            share = utilisation(achieved, peak)
        except (ValueError, Warning, AssertionError) as error:
            raise wrong(
                "An error was raised.",
                given=typed(achieved=achieved, peak=peak),
                got=f"{type(error).__name__}: {error}",
                expected="the share, and above 1 a warning beside it",
                mistake="use warnings.warn(...): the caller gets the number and learns that it is doubtful.",
            ) from None
    return share, "a warning" if caught else "something printed" if printed.getvalue().strip() else "no warning"


SHARES = mistakes(
    lambda f: lambda achieved, peak: f(_share(achieved, peak)),
    {
        "cutting the share off at 1 hides that something is wrong.": lambda share: min(1, share),
        "the other way round: achieved over peak.": lambda share: 1 / share,
        "a share, not percent.": lambda share: 100 * share,
    },
)
WHY = {
    "no warning": "nothing can do more than its peak: a utilisation above 1 means that a number is wrong.",
    "something printed": "what is printed gets lost, and no program can see it: use warnings.warn(...).",
    "a warning": "only a share *above* 1 is impossible.",
}


def _share(achieved: float, peak: float) -> Fraction:
    return Fraction(achieved) / Fraction(peak)


def _shares(rng: random.Random, *shares: float) -> list[Case]:
    peak = float(rng.randrange(300, 9000) * 10**9)
    return [(share * peak, peak) for share in shares]


utilisation = judged(
    "utilisation",
    Judge("The utilisation", _share, SHARES, call=lambda function, *numbers: _watched(function, *numbers)[0]),
    Judge(
        "The warning",
        lambda achieved, peak: "a warning" if achieved > peak else "no warning",
        answer=Answer(
            read=lambda value, what, given: value,
            same=lambda got, right: (got == "a warning") == (right == "a warning"),
            show=str,
            hint=lambda got, right: WHY[got],
        ),
        call=lambda function, *numbers: _watched(function, *numbers)[1],
    ),
    warns_above_one=lambda rng: _shares(rng, 1.0001, rng.uniform(1.02, 1.2), rng.uniform(1.5, 9)),
    quiet_up_to_one=lambda rng: _shares(rng, 0.0, rng.uniform(0.1, 0.99), 0.9999, 1.0),
)
