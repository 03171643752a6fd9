"""What timed samples allow us to conclude: ratios prompt by prompt, their geometric mean, and an interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specdec_ref.bench.arms import Sample

NOISY = 0.10
"""Repeats of one arm on one prompt that differ by more than this, in the median over prompts, conclude nothing."""

Samples = Mapping[str, Sequence[Sample]]
"""One arm's samples: prompt id -> its repeats, in the order in which they ran."""


class UnlikeWork(ValueError):
    """Two arms did not do the same work, so that their times do not compare."""


@dataclass(frozen=True)
class Ratio:
    """A geometric mean of ratios, above 1 where the second arm is faster, and its 95% interval by bootstrap."""

    mean: float
    low: float
    high: float
    n_prompts: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}x ({self.low:.2f} to {self.high:.2f})"


def check_same_work(arms: Mapping[str, Samples], n_tokens: Mapping[str, int]) -> None:
    """Raises UnlikeWork unless every arm made exactly `n_tokens` ids of every prompt, and equally often.

    n_tokens: prompt id -> how many were asked for.
    """
    for name, samples in arms.items():
        if set(samples) != set(n_tokens):
            odd = sorted(set(samples) ^ set(n_tokens))
            raise UnlikeWork(f"{name} did not run the same prompts as the others: {', '.join(odd[:5])}")
        for prompt, repeats in samples.items():
            got = {len(s.tokens) for s in repeats}
            if got != {n_tokens[prompt]}:
                raise UnlikeWork(f"{name} made {sorted(got)} tokens of {prompt}, {n_tokens[prompt]} were asked for")
        if len({len(r) for a in arms.values() for r in a.values()}) > 1:
            raise UnlikeWork(f"{name} ran a different number of times from the others")


def seconds(sample: Sample, what: str) -> float:
    """ "total", "ttft" (until the first token) or "tpot" (per token after the first, which is left out)."""
    if what == "total":
        return sample.seconds
    if what == "ttft":
        return sample.first_seconds
    if what != "tpot":
        raise ValueError(f"no time {what!r}: there are total, ttft and tpot")
    # A pass may give several tokens at once: time is divided by tokens, not by arrivals.
    return (sample.seconds - sample.first_seconds) / max(1, len(sample.tokens) - 1)


def prompt_ratios(first: Samples, second: Samples, what: str = "total") -> dict[str, float]:
    """first over second for each prompt: the median over repeats, each compared with the one it took turns with."""
    return {
        prompt: statistics.median(
            seconds(a, what) / seconds(b, what) for a, b in zip(first[prompt], second[prompt], strict=True)
        )
        for prompt in first
    }


def summarise(ratios: Mapping[str, float], domains: Mapping[str, str], draws: int = 4000, seed: int = 0) -> Ratio:
    """Geometric mean over domains of the mean within each, and a 95% interval by drawing prompts again.

    domains: prompt id -> its domain. Prompts are drawn within their domain, so each domain keeps its weight. The
    interval says what other prompts of these kinds may give; the machine's own noise is in each ratio.
    """
    groups = [[math.log(r) for p, r in ratios.items() if domains[p] == d] for d in dict.fromkeys(domains.values())]
    groups = [g for g in groups if g]
    if not groups:
        raise ValueError("no prompt to summarise")
    rng = np.random.default_rng(seed)
    means = np.zeros(draws)
    for group in groups:
        drawn = rng.integers(len(group), size=(draws, len(group)))
        means += np.asarray(group)[drawn].mean(1) / len(groups)
    low, high = np.exp(np.quantile(means, [0.025, 0.975]))
    return Ratio(math.exp(statistics.fmean(map(statistics.fmean, groups))), float(low), float(high), len(ratios))


def noise(samples: Samples) -> float | None:
    """How far repeats of the same work lie apart: the median over prompts of largest over smallest time, less 1.

    None where nothing was repeated.
    """
    spreads = [
        max(s.seconds for s in repeats) / min(s.seconds for s in repeats) - 1
        for repeats in samples.values()
        if len(repeats) > 1
    ]
    return statistics.median(spreads) if spreads else None


def verdict(ratio: Ratio, noises: Sequence[float | None]) -> str:
    """What a ratio says in words, nothing where the machine was too noisy or repeats are lacking."""
    known = [n for n in noises if n is not None]
    if len(known) < len(noises):
        return f"{ratio}, each prompt run once: how noisy the machine was is not known"
    if max(known) > NOISY:
        return f"{ratio}, but repeats differ by {max(known):.0%}: this machine was too noisy to conclude"
    if ratio.low > 1:
        return f"faster: {ratio}"
    if ratio.high < 1:
        return f"slower: {ratio}"
    return f"no clear difference: {ratio}"
