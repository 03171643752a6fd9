"""The computations that settle claims of the article; `claims.json` names them and records their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

from specdec_course.article.claims import WEIGHTS_70B
from specdec_ref.arithmetic import (
    UnknownName,
    Work,
    accelerator,
    accepted_per_drafted,
    all_reduces_per_token,
    alpha_for_speedup,
    attainable,
    attention_pairs,
    batch_crossover,
    break_even_accepted_per_drafted,
    break_even_alpha,
    decode,
    draft_cost,
    expected_tokens,
    kv_bytes,
    kv_bytes_per_token,
    linear_intensity,
    mean_accepted,
    model_shape,
    speedup,
    step_time,
    token_passes,
    tokens_held,
    verification,
    verify_curve,
)
from specdec_ref.interfaces import Proposal, Verdict
from specdec_ref.proof.rational import emitted_distribution, fractions, round_distribution, table
from specdec_ref.sampling import RandomSource
from specdec_ref.verify import acceptance_probability, residual_distribution

Value = float | str | Sequence[float | None] | None
"""A number, a truth value, a word or a list of numbers; None for a number that does not exist."""
Values = Mapping[str, Value]


def intensity() -> Values:
    """Operations per byte of one token through a square layer, counted and by formula."""
    width = 8192
    work = Work(flops=2 * width**2, weight_bytes=2 * width**2, kv_read_bytes=0, kv_write_bytes=0, tokens=1)
    return {"counted": work.intensity, "formula": linear_intensity(1, width)}


def bandwidth() -> Values:
    """Memory bandwidth of an H100 SXM."""
    return {"tb_per_s": accelerator("h100-sxm").bandwidth / 1e12}


def dense_and_sparse_ridge() -> Values:
    """Rate and ridge of an H100, without and with 2:4 sparsity."""
    chip = accelerator("h100-sxm")
    sparse = 1979e12  # the datasheet's 16-bit figure, which its footnote says is with sparsity
    return {
        "dense_tflops": chip.rate() / 1e12,
        "sparse_over_dense": sparse / chip.rate(),
        "ridge": chip.ridge(),
        "sparse_ridge": sparse / chip.bandwidth,
    }


def prefill_intensity() -> Values:
    """Intensity of a square layer by prompt length, and the length at which it reaches the ridge."""
    ridge = accelerator("h100-sxm").ridge()
    lengths = (128, 512, 2048)
    crossing = next(n for n in range(1, 4096) if linear_intensity(n, 8192) >= ridge)
    return {f"at_{n}": linear_intensity(n, 8192) for n in lengths} | {"ridge": ridge, "crossing": crossing}


def decode_intensity() -> Values:
    """Intensity of decoding: by the article's round numbers, and counted for Llama-3-70B."""
    return {"article": 2 * 70e9 / WEIGHTS_70B, "llama_3_70b": decode(model_shape("llama-3-70b")).intensity}


def decode_cap() -> Values:
    """The most tokens per second that reading 140 GB of weights allows, on one chip and on two."""
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


def idle_share() -> Values:
    """Share of the time in which the matrix units of an H100 work while Llama-3-70B decodes one sequence."""
    time = step_time(decode(model_shape("llama-3-70b")), accelerator("h100-sxm"))
    return {"busy_percent": 100 * time.compute_s / time.overlapped_s}


def orders_of_work() -> Values:
    """Exponents with which token passes and attention pairs grow with the length, without and with a cache."""

    def order(work: Callable[..., int], cached: bool) -> float:
        return math.log2(work(1, 8192, cached=cached) / work(1, 4096, cached=cached))

    return {
        "passes": order(token_passes, False),
        "pairs": order(attention_pairs, False),
        "cached_passes": order(token_passes, True),
        "cached_pairs": order(attention_pairs, True),
    }


def kv_formula() -> Values:
    """How many times too large 2 L D P is, where D is the hidden size."""

    def overestimate(name: str) -> float:
        shape = model_shape(name)
        return 2 * len(shape.layers) * shape.hidden_size * 2 / kv_bytes_per_token(shape)

    return {"mha": overestimate("llama-2-7b"), "gqa": overestimate("llama-3-70b")}


def kv_of_70b() -> Values:
    """The cache of a 70B model for 8,192 tokens: by the article's formula, and with 8 key/value heads."""

    def formula(tokens: int) -> int:
        return 2 * tokens * 80 * 8192 * 2

    return {
        "gb": formula(8192) / 1e9,
        "gib": formula(8192) / 2**30,
        "tokens_for_the_claim": 8192 * round(42.95e9 / formula(8192)),
        "with_8_heads_gb": kv_bytes(model_shape("llama-3-70b"), 8192) / 1e9,
    }


def waste_of_paging() -> Values:
    """Empty slots in a sequence's last block of 16, over all lengths to 4,096."""
    wasted = [tokens_held(n, block_size=16) - n for n in range(1, 4097)]
    return {"most": max(wasted), "mean": sum(wasted) / len(wasted)}


def verify_cost() -> Values:
    """T(6) / T(1) of Llama-3-70B on two H100s, alone and at batch 128."""
    rank, chip = model_shape("llama-3-70b").shard(2), accelerator("h100-sxm")
    return {f"batch_{batch}": verify_curve(rank, chip, batch=batch)(5) for batch in (1, 128)}


def verify_intensity() -> Values:
    """Intensity of verifying five drafts, beside the ridge."""
    shape, chip = model_shape("llama-3-70b"), accelerator("h100-sxm")
    work = verification(shape, 5)
    return {"intensity": work.intensity, "ridge": chip.ridge(), "bound": step_time(work, chip).bound}


def draft_of_70b() -> Values:
    """Whether Llama-3-1B exists, and the vocabularies of Llama-3.2-1B and Llama-3-70B."""
    try:
        model_shape("llama-3-1b")
        exists = True
    except UnknownName:
        exists = False
    names = ("llama-3.2-1b", "llama-3-70b")
    draft, target = (model_shape(name).vocab_size for name in names)
    return {"exists": exists, "draft_vocabulary": draft, "target_vocabulary": target}


def acceptance_rule() -> Values:
    """The production rule on the article's example: what it accepts, the residual, and whether it emits p."""
    p, q = fractions([".6", ".2", ".1", ".1"]), fractions([".7", ".2", ".05", ".05"])
    outcomes = round_distribution("token", lambda _: p, lambda _: q)
    return {
        "accepted": float(sum(probability for (accepted, _), probability in outcomes.items() if accepted)),
        "residual": [float(r) for r in residual_distribution(*table([p, q])).tolist()],
        "exact": emitted_distribution("token", p, q) == p,
    }


def one_position_proof() -> Values:
    """Exactness in fractions; in float32 an empty residual, p and q being one softmax computed in two usual ways."""
    p, q = fractions([".5", ".3", ".2"]), fractions([".6", ".1", ".3"])
    stuck = 0
    for logits in np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32):
        shifted = logits - logits.max()
        by_softmax = np.exp(shifted) / np.exp(shifted).sum()
        by_logarithm = np.exp(shifted - np.log(np.exp(shifted).sum()))
        stuck += bool((by_softmax <= by_logarithm).all() and (by_softmax < by_logarithm).any())
    return {"exact": emitted_distribution("token", p, q) == p, "rounding_empties_the_residual": stuck > 0}


def _with_zero_draft(proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
    """The article's rule for one draft: `verify_tokenwise`, but q is zeros when the residual is computed."""
    (x,) = proposal.tokens
    q = proposal.distribution(0, like=p[0])
    if source.bernoulli(acceptance_probability(p[0, x].item(), q[x].item())):
        return Verdict(1, source.categorical(p[1]), "bonus")
    return Verdict(0, source.categorical(residual_distribution(p[0], q - q)), "corrected")


def distribution_with_zero_draft() -> Values:
    """What is emitted when the residual is computed with q = 0, in every branch."""
    p, q = fractions([".6", ".3", ".1"]), fractions([".1", ".3", ".6"])
    emitted = emitted_distribution(_with_zero_draft, p, q)
    return {"emitted": [float(x) for x in emitted], "target": [float(x) for x in p]}


def _rounds_without_a_rejection(asked: int, gamma: int) -> list[int]:
    """Drafts of each round by the article's budget rule: min(gamma, what is left), then the bonus token."""
    drafted: list[int] = []
    while sum(drafted) + len(drafted) < asked:
        drafted.append(min(gamma, asked - sum(drafted) - len(drafted)))
    return drafted


def recomputed_prefix() -> Values:
    """Tokens through the target for 128 new ones after 100, with gamma = 5 and every draft accepted."""
    rounds = _rounds_without_a_rejection(128, 5)
    again, length = 0, 100
    for drafted in rounds:
        again += length + drafted
        length += drafted + 1
    cached = 100 - 1 + sum(drafted + 1 for drafted in rounds)
    return {"without_a_cache": again, "with_a_cache": cached}


def overrun() -> Values:
    """Tokens emitted for several budgets when every draft is accepted."""

    def emitted(asked: int) -> int:
        rounds = _rounds_without_a_rejection(asked, 5)
        return sum(rounds) + len(rounds)

    return {"asked": [1, 5, 6, 128], "emitted": [emitted(n) for n in (1, 5, 6, 128)]}


def stop_rule() -> Values:
    """The article's stop: take the whole block, then stop if id 2 is anywhere in it."""

    def kept(blocks: list[list[int]]) -> list[int]:
        tokens: list[int] = []
        for block in blocks:
            tokens += block
            if 2 in block:
                break
        return tokens

    return {"after_end": kept([[7, 2, 9], [8]])[2:], "past_end_id_0": kept([[7, 0, 9], [8]])[2:]}


def accept_at_zero() -> Values:
    """`u <= p/q` and `u < p/q` for u = 0 and p = 0."""
    u = ratio = 0.0
    bits = int(np.finfo(np.float32).nmant) + 1  # a float32 in [0, 1) is a multiple of 2^-24
    return {"or_equal_accepts": u <= ratio, "strict_accepts": u < ratio, "bits": bits}


def greedy_by_tiny_temperature() -> Values:
    """What float16 makes of logits divided by 1e-5."""
    with np.errstate(over="ignore", invalid="ignore"):
        logits = np.array([1.0, 2.0], dtype=np.float16) / np.float16(1e-5)
        shifted = logits - logits.max()
    return {"overflows": bool(np.isinf(logits).any()), "nan": bool(np.isnan(shifted).any())}


def ragged_rows() -> Values:
    """How often two rows of a batch accept different numbers of drafts."""
    alpha, gamma = 0.8, 5
    counts = [alpha**k * (1 - alpha) for k in range(gamma)] + [alpha**gamma]
    return {"differ_percent": 100 * (1 - sum(share**2 for share in counts))}


def two_acceptance_rates() -> Values:
    """Accepted over drafted at alpha = 0.8."""
    return {"alpha": 0.8, "accepted_over_drafted": accepted_per_drafted(0.8, 5)}


def break_even() -> Values:
    """Break-even acceptance for several draft costs, in both senses of acceptance."""
    costs = (0.01, 0.05, 0.10, 0.20)
    drafted = {break_even_accepted_per_drafted(gamma, 0.05) for gamma in range(1, 20)}
    return {
        "alphas": [break_even_alpha(5, c) for c in costs],
        "drafted_least": min(d for d in drafted if d is not None),
        "drafted_most": max(d for d in drafted if d is not None),
    }


def numerator() -> Values:
    """The speedup with E[accepted] + 1 and with E[accepted] in the numerator."""
    return {"right": speedup(0.8, 5, 0.05), "article": mean_accepted(0.8, 5) / (1 + 5 * 0.05)}


def bandwidth_use() -> Values:
    """Bytes and intensity of a verify pass beside a plain one, and bandwidth that gpt-fast reports."""
    shape, datasheet = model_shape("llama-3-70b"), accelerator("a100-sxm").bandwidth
    plain, checked = decode(shape), verification(shape, 5)
    return {
        "of_datasheet": 1397e9 / datasheet,
        "of_measured": 1397e9 / 1700e9,
        "bytes_ratio": checked.bytes / plain.bytes,
        "intensity_ratio": checked.intensity / plain.intensity,
    }


def arithmetic_use() -> Values:
    """Use of the matrix units with five drafts, and tokens in flight for 35%."""
    ridge = accelerator("h100-sxm").ridge()
    return {"percent": 100 * 6 / ridge, "tokens_for_35_percent": 0.35 * ridge}


def all_reduces() -> Values:
    """All-reduces per emitted token in tensor parallelism, plain and speculative."""
    target, draft = model_shape("llama-3-70b"), model_shape("llama-3.2-1b")
    tokens = expected_tokens(0.8, 5)
    return {
        "plain": all_reduces_per_token(target),
        "speculative": all_reduces_per_token(target, tokens),
        "with_split_draft": all_reduces_per_token(target, tokens, draft, 5),
    }


def quantised_cache() -> Values:
    """How many times smaller an fp8 and an int4 cache are, scales included."""
    shape = model_shape("llama-3-70b")
    full = kv_bytes_per_token(shape)
    return {kv: full / kv_bytes_per_token(shape, kv.replace("_", "-")) for kv in ("fp8", "int4_g64")}


def three_times() -> Values:
    """Least alpha for a speedup of 3, and the speedup of a poor draft."""
    needed = [alpha_for_speedup(3, gamma, 0.05) for gamma in range(1, 33)]
    return {
        "least_alpha": min(alpha for alpha in needed if alpha is not None),
        "poor_draft": speedup(0.4, 5, 0.2),
    }


def roof() -> Values:
    """Attainable share of the peak rate, left of the ridge, on it, and right of it."""
    chip = accelerator("h100-sxm")
    shares = [attainable(chip.ridge() * x, chip) / chip.rate() for x in (0.5, 1, 2)]
    return {"below": shares[0], "at": shares[1], "beyond": shares[2]}


def cache_against_weights() -> Values:
    """8,192 tokens of cache of a 70B model beside the weights of a 7B model."""
    return {
        "mha_gb": 2 * 8192 * 80 * 8192 * 2 / 1e9,
        "gqa_gb": kv_bytes(model_shape("llama-3-70b"), 8192) / 1e9,
        "weights_7b_gb": model_shape("llama-2-7b").weight_bytes() / 1e9,
    }


def load() -> Values:
    """Speedup against batch size on the roofline, and the batch from which there is none."""
    target, draft, chip = model_shape("llama-3-70b"), model_shape("llama-3.2-1b"), accelerator("h100-sxm")

    def gain(batch: int) -> float:
        c = draft_cost(draft, target, chip, 512, batch)
        return speedup(0.7, 5, c, verify_curve(target, chip, 512, batch))

    return {"alone": gain(1), "crossover": batch_crossover(gain, 512), "at_256": gain(256)}
