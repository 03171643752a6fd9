"""What the output should follow, in plain Python and written apart from the engine.

No tensor, no cache, no shared code: a fault of the package can't hide by being on both sides of a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

Conditional = Callable[[tuple[int, ...]], Sequence[float]]
Tokens = tuple[int, ...]


def normalised(weights: Sequence[float]) -> list[float]:
    """The weights over their sum."""
    total = math.fsum(weights)
    return [w / total for w in weights]


def penalised(
    probs: Sequence[float],
    prompt: Tokens,
    output: Tokens,
    eos: Collection[int] = (),
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    bad_words: Sequence[Sequence[int]] = (),
    min_new_tokens: int = 0,
) -> list[float]:
    """`probs` after what the context changes, for a model whose logits are log(probs); not normalised.

    Logits are at most 0 here, so a repetition penalty r multiplies them: p^r.
    """
    distribution = [p * math.exp((logit_bias or {}).get(x, 0.0)) for x, p in enumerate(probs)]
    for x in range(len(distribution)):
        if distribution[x] > 1 and repetition_penalty != 1:
            raise ValueError("a logit above 0 under a repetition penalty: this plain reference does not know that case")
        if x in prompt + output:
            distribution[x] **= repetition_penalty
        if x in output:
            distribution[x] *= math.exp(-presence_penalty - frequency_penalty * output.count(x))
        if any((prompt + output + (x,))[-len(word) :] == tuple(word) for word in bad_words):
            distribution[x] = 0.0
        if x in eos and len(output) < min_new_tokens:
            distribution[x] = 0.0
    return distribution


def filtered(
    probs: Sequence[float],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> list[float]:
    """The distribution that a token is drawn from: temperature, then top-k, top-p and min-p, each followed by
    normalising.

    p^(1/T); temperature 0 is the most likely token, the lowest on a tie. Top-k keeps what is at least as likely as
    the k-th. Top-p keeps the likeliest tokens up to and with the one that reaches the mass. Min-p keeps what has at
    least this share of the likeliest token's probability.
    """
    if temperature == 0:
        best = max(range(len(probs)), key=lambda x: probs[x])
        return [float(x == best) for x in range(len(probs))]
    distribution = normalised([p ** (1 / temperature) if p > 0 else 0.0 for p in probs])
    if top_k:
        kth = sorted(distribution, reverse=True)[:top_k][-1]
        distribution = normalised([p if p >= kth else 0.0 for p in distribution])
    if top_p is not None:
        kept: dict[int, float] = {}
        for x in sorted(range(len(distribution)), key=lambda x: -distribution[x]):
            if sum(kept.values()) >= top_p:
                break
            kept[x] = distribution[x]
        distribution = normalised([kept.get(x, 0.0) for x in range(len(distribution))])
    if min_p is not None:
        distribution = normalised([p if p >= min_p * max(distribution) else 0.0 for p in distribution])
    return distribution


FILTERS = ("temperature", "top_k", "top_p", "min_p")


def token_distribution(
    distribution: Conditional, prompt: Tokens, output: Tokens = (), eos: Collection[int] = (), **options: Any
) -> list[float]:
    """The distribution of the token after `prompt` and `output`, under all `options` (named as `generate` names
    them).
    """
    filters = {name: value for name, value in options.items() if name in FILTERS}
    context = {name: value for name, value in options.items() if name not in FILTERS}
    return filtered(penalised(distribution(prompt + output), prompt, output, eos, **context), **filters)


def autoregressive_distribution(
    distribution: Conditional, prompt: Sequence[int], max_new_tokens: int, eos: Collection[int] = (), **options: Any
) -> dict[Tokens, float]:
    """The joint distribution of whole outputs, one token after the other: tokens -> probability.

    An output ends at `max_new_tokens` or with the first token in `eos`.
    """
    finished: dict[Tokens, float] = {}

    def extend(output: Tokens, probability: float) -> None:
        if len(output) == max_new_tokens or (output and output[-1] in eos):
            finished[output] = probability
            return
        for x, p in enumerate(token_distribution(distribution, tuple(prompt), output, eos, **options)):
            if p > 0:
                extend((*output, x), probability * p)

    extend((), 1.0)
    return dict(sorted(finished.items()))


def difference(a: Mapping[Any, float], b: Mapping[Any, float]) -> float:
    """The largest |a(x) - b(x)| over all outcomes of either distribution."""
    gaps = [abs(a.get(x, 0) - b.get(x, 0)) for x in {*a, *b}]
    return math.nan if any(gap != gap for gap in gaps) else max(gaps)  # max alone may pass over NaN


def total_variation(a: Mapping[Any, float], b: Mapping[Any, float]) -> float:
    """TV = (1/2) sum |a(x) - b(x)|: the largest difference in the probability of any event."""
    return sum(abs(a.get(x, 0) - b.get(x, 0)) for x in {*a, *b}) / 2


def expected_accepted(
    rule: str, p: Conditional, q: Conditional, prompt: Sequence[int], gamma: int, **options: Any
) -> float:
    """E[accepted drafts] of the first round, of `gamma` drafts drawn from q, by summing over all drafts.

    The probability of keeping a prefix x_1..x_i is prod min(1, p/q) ("token"), rho_i = min(1, rho_{i-1} p/q) ("block"),
    or prod p(x) ("match").
    """
    step: Callable[[float, float, float], float] = {
        "token": lambda kept, p_x, q_x: kept * min(1, p_x / q_x),
        "block": lambda kept, p_x, q_x: min(1, kept * p_x / q_x),
        "match": lambda kept, p_x, q_x: kept * p_x,
    }[rule]

    def rest(drafted: Tokens, kept: float) -> float:
        if len(drafted) == gamma:
            return 0.0
        p_distribution = token_distribution(p, tuple(prompt), drafted, **options)
        q_distribution = token_distribution(q, tuple(prompt), drafted, **options)
        total = 0.0
        for x, q_x in enumerate(q_distribution):
            if q_x > 0:
                now = step(kept, p_distribution[x], q_x)
                total += q_x * (now + rest((*drafted, x), now))
        return total

    return rest((), 1.0)
