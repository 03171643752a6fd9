"""The claims of the article that this course grew out of, each with the computation that settles it.

A record in `claims.json` says in our own words what is claimed and what holds. The numbers in its text are filled in
from a function of this module and compared with the recorded ones, so that neither can drift from the code.
Records without a computation name what settles them instead: a lesson that measures, or reading the article.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from specdec_ref.arithmetic.accelerators import accelerator
from specdec_ref.arithmetic.configs import model_shape
from specdec_ref.arithmetic.kvcache import (
    attention_pairs,
    kv_bytes,
    kv_bytes_per_token,
    token_passes,
    tokens_held,
)
from specdec_ref.arithmetic.lookup import UnknownName
from specdec_ref.arithmetic.roofline import (
    Work,
    all_reduces_per_token,
    attainable,
    decode,
    draft_cost,
    linear_intensity,
    step_time,
    verification,
    verify_curve,
)
from specdec_ref.arithmetic.speedup import (
    accepted_per_drafted,
    alpha_for_speedup,
    batch_crossover,
    break_even_accepted_per_drafted,
    break_even_alpha,
    expected_tokens,
    mean_accepted,
    speedup,
)

Values = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """One claim: `says` and `holds` in words, `values` as recorded, `computation` a function's name or None."""

    number: int
    where: str
    says: str
    verdict: str
    holds: str
    settled_by: tuple[str, ...]
    computation: str | None
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Settled:
    """A claim with the values computed now, and what holds with those values in its text."""

    claim: Claim
    values: Values
    text: str

    @property
    def differences(self) -> list[str]:
        """Recorded values that are not what was computed, to the digits recorded; empty if all agree."""
        names = sorted(self.claim.values.keys() | self.values.keys())
        missing = object()
        pairs = ((n, self.claim.values.get(n, missing), self.values.get(n, missing)) for n in names)
        return [f"{n}: recorded {old}, computed {new}" for n, old, new in pairs if not _agree(old, new)]


def _agree(recorded: Any, computed: Any) -> bool:
    if isinstance(recorded, list) and isinstance(computed, Sequence):
        return len(recorded) == len(computed) and all(map(_agree, recorded, computed))
    if isinstance(recorded, Decimal) and not isinstance(computed, (bool, str)):
        last_digit = float(recorded.as_tuple().exponent)
        return abs(float(computed) - float(recorded)) <= 0.5 * 10**last_digit * (1 + 1e-9)
    return type(recorded) is type(computed) and bool(recorded == computed)


@cache
def claims() -> tuple[Claim, ...]:
    """All claims, in the article's order. Recorded decimals keep the digits that they were written with."""
    text = resources.files(__package__).joinpath("claims.json").read_text(encoding="utf-8")
    rows = json.loads(text, parse_float=Decimal)["claims"]
    return tuple(Claim(**row | {"settled_by": tuple(row["settled_by"])}) for row in rows)


def settle(claim: Claim) -> Settled:
    """Compute what the claim's record states. Raises ValueError for a claim that a calculation cannot settle."""
    if claim.computation is None:
        raise ValueError(f"claim {claim.number} is settled by {' and '.join(claim.settled_by)}, not here")
    values = COMPUTATIONS[claim.computation]()
    return Settled(claim, values, claim.holds.format(**values))


COMPUTATIONS: dict[str, Callable[[], Values]] = {}


def _computation(function: Callable[[], Values]) -> Callable[[], Values]:
    COMPUTATIONS[function.__name__] = function
    return function


WEIGHTS_70B = 70e9 * 2
"""Bytes of 70 billion weights in 16 bit, the article's own round figure."""


@_computation
def intensity() -> Values:
    width = 8192
    work = Work(flops=2 * width**2, weight_bytes=2 * width**2, kv_read_bytes=0, kv_write_bytes=0, tokens=1)
    return {"counted": work.intensity, "formula": linear_intensity(1, width)}


@_computation
def bandwidth() -> Values:
    return {"tb_per_s": accelerator("h100-sxm").bandwidth / 1e12}


@_computation
def dense_and_sparse_ridge() -> Values:
    chip = accelerator("h100-sxm")
    sparse = 1979e12  # the datasheet's 16-bit figure, which its footnote says is with sparsity
    return {
        "dense_tflops": chip.rate() / 1e12,
        "sparse_over_dense": sparse / chip.rate(),
        "ridge": chip.ridge(),
        "sparse_ridge": sparse / chip.bandwidth,
    }


@_computation
def prefill_intensity() -> Values:
    ridge = accelerator("h100-sxm").ridge()
    lengths = (128, 512, 2048)
    crossing = next(n for n in range(1, 4096) if linear_intensity(n, 8192) >= ridge)
    return {f"at_{n}": linear_intensity(n, 8192) for n in lengths} | {"ridge": ridge, "crossing": crossing}


@_computation
def decode_intensity() -> Values:
    return {"article": 2 * 70e9 / WEIGHTS_70B, "llama_3_70b": decode(model_shape("llama-3-70b")).intensity}


@_computation
def decode_cap() -> Values:
    chip = accelerator("h100-sxm")
    seconds = WEIGHTS_70B / chip.bandwidth
    return {
        "ms": seconds * 1e3,
        "per_s": 1 / seconds,
        "weights_gb": WEIGHTS_70B / 1e9,
        "capacity_gb": chip.capacity / 1e9,
        "ms_on_two": seconds / 2 * 1e3,
        "per_s_on_two": 2 / seconds,
    }


@_computation
def idle_share() -> Values:
    time = step_time(decode(model_shape("llama-3-70b")), accelerator("h100-sxm"))
    return {"busy_percent": 100 * time.compute_s / time.overlapped_s}


@_computation
def orders_of_work() -> Values:
    def order(work: Callable[..., int], cached: bool) -> float:
        return math.log2(work(1, 8192, cached=cached) / work(1, 4096, cached=cached))

    return {
        "passes": order(token_passes, False),
        "pairs": order(attention_pairs, False),
        "cached_passes": order(token_passes, True),
        "cached_pairs": order(attention_pairs, True),
    }


@_computation
def kv_formula() -> Values:
    def overestimate(name: str) -> float:
        shape = model_shape(name)
        return 2 * len(shape.layers) * shape.hidden_size * 2 / kv_bytes_per_token(shape)

    return {"mha": overestimate("llama-2-7b"), "gqa": overestimate("llama-3-70b")}


@_computation
def kv_of_70b() -> Values:
    def formula(tokens: int) -> int:
        return 2 * tokens * 80 * 8192 * 2

    return {
        "gb": formula(8192) / 1e9,
        "gib": formula(8192) / 2**30,
        "tokens_for_the_claim": 8192 * round(42.95e9 / formula(8192)),
        "with_8_heads_gb": kv_bytes(model_shape("llama-3-70b"), 8192) / 1e9,
    }


@_computation
def waste_of_paging() -> Values:
    wasted = [tokens_held(n, block_size=16) - n for n in range(1, 4097)]
    return {"most": max(wasted), "mean": sum(wasted) / len(wasted)}


@_computation
def verify_cost() -> Values:
    rank, chip = model_shape("llama-3-70b").shard(2), accelerator("h100-sxm")
    return {f"batch_{batch}": verify_curve(rank, chip, batch=batch)(5) for batch in (1, 128)}


@_computation
def verify_intensity() -> Values:
    shape, chip = model_shape("llama-3-70b"), accelerator("h100-sxm")
    work = verification(shape, 5)
    return {"intensity": work.intensity, "ridge": chip.ridge(), "bound": step_time(work, chip).bound}


@_computation
def draft_of_70b() -> Values:
    try:
        model_shape("llama-3-1b")
        exists = True
    except UnknownName:
        exists = False
    names = ("llama-3.2-1b", "llama-3-70b")
    draft, target = (model_shape(name).vocab_size for name in names)
    return {"exists": exists, "draft_vocabulary": draft, "target_vocabulary": target}


def _distribution(*shares: str) -> list[Fraction]:
    return [Fraction(share) for share in shares]


def _accepted(p: list[Fraction], q: list[Fraction]) -> list[Fraction]:
    return [min(a, b) for a, b in zip(p, q, strict=True)]


def _emitted(p: list[Fraction], q: list[Fraction], after_rejection: list[Fraction]) -> list[Fraction]:
    """The exact distribution of one position: what is accepted, and what a rejection draws instead."""
    accepted = _accepted(p, q)
    return [a + (1 - sum(accepted)) * r for a, r in zip(accepted, after_rejection, strict=True)]


def _residual(p: list[Fraction], q: list[Fraction]) -> list[Fraction]:
    excess = [max(Fraction(0), a - b) for a, b in zip(p, q, strict=True)]
    return [e / sum(excess) for e in excess]


@_computation
def acceptance_rule() -> Values:
    p, q = _distribution(".6", ".2", ".1", ".1"), _distribution(".7", ".2", ".05", ".05")
    return {
        "accepted": float(sum(_accepted(p, q))),
        "residual": [float(r) for r in _residual(p, q)],
        "exact": _emitted(p, q, _residual(p, q)) == p,
    }


@_computation
def one_position_proof() -> Values:
    """Exact with fractions; then in float32, p and q of the same logits by the two usual routes to a softmax."""
    p, q = _distribution(".5", ".3", ".2"), _distribution(".6", ".1", ".3")
    stuck = 0
    for logits in np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32):
        shifted = logits - logits.max()
        by_softmax = np.exp(shifted) / np.exp(shifted).sum()
        by_logarithm = np.exp(shifted - np.log(np.exp(shifted).sum()))
        stuck += bool((by_softmax <= by_logarithm).all() and (by_softmax < by_logarithm).any())
    return {"exact": _emitted(p, q, _residual(p, q)) == p, "rounding_empties_the_residual": stuck > 0}


@_computation
def distribution_with_zero_draft() -> Values:
    p, q = _distribution(".6", ".3", ".1"), _distribution(".1", ".3", ".6")
    zero = [Fraction(0)] * len(p)
    return {"emitted": [float(x) for x in _emitted(p, q, _residual(p, zero))], "target": [float(x) for x in p]}


def _rounds_without_a_rejection(asked: int, gamma: int) -> list[int]:
    """The article's budget rule, restated: draft min(gamma, what is left), then add the bonus token."""
    drafted: list[int] = []
    while sum(drafted) + len(drafted) < asked:
        drafted.append(min(gamma, asked - sum(drafted) - len(drafted)))
    return drafted


@_computation
def recomputed_prefix() -> Values:
    """Tokens through the target for 128 new ones after 100, gamma = 5, in the best case: every draft accepted."""
    rounds = _rounds_without_a_rejection(128, 5)
    again, length = 0, 100
    for drafted in rounds:
        again += length + drafted
        length += drafted + 1
    cached = 100 - 1 + sum(drafted + 1 for drafted in rounds)
    return {"without_a_cache": again, "with_a_cache": cached}


@_computation
def overrun() -> Values:
    def emitted(asked: int) -> int:
        rounds = _rounds_without_a_rejection(asked, 5)
        return sum(rounds) + len(rounds)

    return {"asked": [1, 5, 6, 128], "emitted": [emitted(n) for n in (1, 5, 6, 128)]}


@_computation
def stop_rule() -> Values:
    """The article's stop, restated: take the whole block, then stop if id 2 is anywhere in it."""

    def kept(blocks: list[list[int]]) -> list[int]:
        tokens: list[int] = []
        for block in blocks:
            tokens += block
            if 2 in block:
                break
        return tokens

    return {"after_end": kept([[7, 2, 9], [8]])[2:], "past_end_id_0": kept([[7, 0, 9], [8]])[2:]}


@_computation
def accept_at_zero() -> Values:
    u = ratio = 0.0
    bits = int(np.finfo(np.float32).nmant) + 1  # a float32 in [0, 1) is a multiple of 2^-24
    return {"or_equal_accepts": u <= ratio, "strict_accepts": u < ratio, "bits": bits}


@_computation
def greedy_by_tiny_temperature() -> Values:
    with np.errstate(over="ignore", invalid="ignore"):
        logits = np.array([1.0, 2.0], dtype=np.float16) / np.float16(1e-5)
        shifted = logits - logits.max()
    return {"overflows": bool(np.isinf(logits).any()), "nan": bool(np.isnan(shifted).any())}


@_computation
def ragged_rows() -> Values:
    alpha, gamma = 0.8, 5
    counts = [alpha**k * (1 - alpha) for k in range(gamma)] + [alpha**gamma]
    return {"differ_percent": 100 * (1 - sum(chance**2 for chance in counts))}


@_computation
def two_acceptance_rates() -> Values:
    return {"alpha": 0.8, "accepted_over_drafted": accepted_per_drafted(0.8, 5)}


@_computation
def break_even() -> Values:
    costs = (0.01, 0.05, 0.10, 0.20)
    drafted = {break_even_accepted_per_drafted(gamma, 0.05) for gamma in range(1, 20)}
    return {
        "alphas": [break_even_alpha(5, c) for c in costs],
        "drafted_least": min(d for d in drafted if d is not None),
        "drafted_most": max(d for d in drafted if d is not None),
    }


@_computation
def numerator() -> Values:
    return {"right": speedup(0.8, 5, 0.05), "article": mean_accepted(0.8, 5) / (1 + 5 * 0.05)}


@_computation
def bandwidth_use() -> Values:
    shape, datasheet = model_shape("llama-3-70b"), accelerator("a100-sxm").bandwidth
    plain, checked = decode(shape), verification(shape, 5)
    return {
        "of_datasheet": 1397e9 / datasheet,
        "of_measured": 1397e9 / 1700e9,
        "bytes_ratio": checked.bytes / plain.bytes,
        "intensity_ratio": checked.intensity / plain.intensity,
    }


@_computation
def arithmetic_use() -> Values:
    ridge = accelerator("h100-sxm").ridge()
    return {"percent": 100 * 6 / ridge, "tokens_for_35_percent": 0.35 * ridge}


@_computation
def all_reduces() -> Values:
    target, draft = model_shape("llama-3-70b"), model_shape("llama-3.2-1b")
    tokens = expected_tokens(0.8, 5)
    return {
        "plain": all_reduces_per_token(target),
        "speculative": all_reduces_per_token(target, tokens),
        "with_split_draft": all_reduces_per_token(target, tokens, draft, 5),
    }


@_computation
def quantised_cache() -> Values:
    shape = model_shape("llama-3-70b")
    full = kv_bytes_per_token(shape)
    return {kv: full / kv_bytes_per_token(shape, kv.replace("_", "-")) for kv in ("fp8", "int4_g64")}


@_computation
def three_times() -> Values:
    needed = [alpha_for_speedup(3, gamma, 0.05) for gamma in range(1, 33)]
    return {
        "least_alpha": min(alpha for alpha in needed if alpha is not None),
        "poor_draft": speedup(0.4, 5, 0.2),
    }


@_computation
def roof() -> Values:
    chip = accelerator("h100-sxm")
    shares = [attainable(chip.ridge() * x, chip) / chip.rate() for x in (0.5, 1, 2)]
    return {"below": shares[0], "at": shares[1], "beyond": shares[2]}


@_computation
def cache_against_weights() -> Values:
    return {
        "mha_gb": 2 * 8192 * 80 * 8192 * 2 / 1e9,
        "gqa_gb": kv_bytes(model_shape("llama-3-70b"), 8192) / 1e9,
        "weights_7b_gb": model_shape("llama-2-7b").weight_bytes() / 1e9,
    }


@_computation
def load() -> Values:
    target, draft, chip = model_shape("llama-3-70b"), model_shape("llama-3.2-1b"), accelerator("h100-sxm")

    def gain(batch: int) -> float:
        c = draft_cost(draft, target, chip, 512, batch)
        return speedup(0.7, 5, c, verify_curve(target, chip, 512, batch))

    return {"alone": gain(1), "crossover": batch_crossover(gain, 512), "at_256": gain(256)}
