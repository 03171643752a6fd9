"""A fair race: two ways of generating, timed in turns, and what the times allow us to conclude."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec_ref.engine import Generation
from specdec_ref.interfaces import CausalLM
from specdec_ref.measure.neartie import compare_greedy
from specdec_ref.measure.passes import Progress, silently

SIZE = 0.05
"""How often, at most, a race of two equal arms may end with "faster" or "slower": the size of its test."""


@dataclass(frozen=True)
class Race:
    """Two arms, run in turns; all times come from the same minutes of the same machine.

    first, second: one generation of each arm.
    first_seconds, second_seconds: time of decoding in each repeat, in pairs; the prompt's pass is not in it.
    first_prefill, second_prefill: time of the prompt's pass in each repeat; nothing where they are left out.
    same_target: whether both arms run the same model, so that passes without drafts are the same work.
    """

    first: Generation
    second: Generation
    first_seconds: list[float]
    second_seconds: list[float]
    first_prefill: list[float] = field(default_factory=list)
    second_prefill: list[float] = field(default_factory=list)
    same_target: bool = True

    @property
    def ratios(self) -> list[float]:
        """Decoding time per token, first over second, for each pair: above 1 where the second arm is faster."""
        return self._ratios(self.first_seconds, self.second_seconds)

    @property
    def total_ratios(self) -> list[float]:
        """The same with the prompt's pass in the time."""
        return self._ratios(
            _sums(self.first_seconds, self.first_prefill), _sums(self.second_seconds, self.second_prefill)
        )

    @property
    def ratio(self) -> float:
        """The median ratio of decoding."""
        return statistics.median(self.ratios)

    @property
    def total_ratio(self) -> float:
        """The median ratio, the prompt's pass in the time."""
        return statistics.median(self.total_ratios)

    @property
    def interval(self) -> tuple[float, float]:
        """The smallest and the largest ratio of decoding seen."""
        return min(self.ratios), max(self.ratios)

    @property
    def p_value(self) -> float:
        """How often two equal arms would come out as one-sidedly as this or more: the exact two-sided sign test."""
        above, below = sum(r > 1 for r in self.ratios), sum(r < 1 for r in self.ratios)
        n, most = above + below, max(above, below)
        return min(1.0, 2 * sum(math.comb(n, k) for k in range(most, n + 1)) / 2**n)

    def __str__(self) -> str:
        low, high = self.interval
        n = len(self.ratios)
        return f"{self.ratio:.2f}x ({low:.2f} to {high:.2f} over {n} {'pair' if n == 1 else 'pairs'} of runs)"

    def verdict(self) -> str:
        """What the times of decoding allow us to conclude, in words: faster, slower, or nothing that this run can show.

        "Faster" and "slower" come from a test of size `SIZE`: of races between equal arms, no more than that share
        ends so. Where the same model made one token per pass in both arms, none can be faster.
        """
        faster = self.ratio > 1
        if self.same_target and self._one_token_per_pass and (faster or not self._drafted):
            return f"no gain to find, both made one token per pass; by the clock {self}"
        if 2 / 2 ** len(self.ratios) > SIZE:
            return f"{self}; too few pairs for a verdict, which takes {math.ceil(math.log2(2 / SIZE))} or more"
        if self.p_value > SIZE:
            return f"no clear difference: {self}"
        odds = f"equal arms would differ as clearly in {self.p_value:.1%} of races"
        return f"{'faster' if faster else 'slower'}: {self}; {odds}"

    @property
    def _one_token_per_pass(self) -> bool:
        return all(arm.stats.emitted == arm.stats.rounds for arm in (self.first, self.second))

    @property
    def _drafted(self) -> bool:
        return any(arm.stats.drafted for arm in (self.first, self.second))

    def _ratios(self, first: Sequence[float], second: Sequence[float]) -> list[float]:
        per_token = max(1, len(self.second.tokens)) / max(1, len(self.first.tokens))
        return [a / b * per_token for a, b in zip(first, second, strict=True)]


def _sums(seconds: Sequence[float], more: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(seconds, more or [0.0] * len(seconds), strict=True)]


def race(
    first: Callable[[], Generation],
    second: Callable[[], Generation],
    repeats: int = 6,
    same_target: bool = True,
    progress: Progress = silently,
) -> Race:
    """Run both once to warm up, then `repeats` times in turns, A B B A A B.

    Ratios are taken per token and pair by pair, so that a slow minute of the machine affects both arms; who goes first
    changes from pair to pair. Six pairs are the fewest that allow a verdict. same_target: whether both arms run the
    same model. Raises ValueError for fewer than one repeat.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}: a race needs at least one pair of runs")
    arms = (first, second)
    warm = [arm() for arm in arms]
    decode: tuple[list[float], list[float]] = ([], [])
    prefill: tuple[list[float], list[float]] = ([], [])
    for pair in progress(range(repeats), "pairs of runs"):
        for i in (0, 1) if pair % 2 == 0 else (1, 0):
            stats = arms[i]().stats
            decode[i].append(stats.seconds - stats.prefill_seconds)
            prefill[i].append(stats.prefill_seconds)
    return Race(warm[0], warm[1], *decode, *prefill, same_target=same_target)


def describe_difference(result: Race, target: CausalLM, prompt: Any) -> str:
    """One sentence: the same tokens, or where greedy outputs diverge and how near the two tokens were there."""
    found = compare_greedy(result.first.tokens, result.second.tokens, target, prompt)
    if found.kind == "same":
        return "Both wrote the same tokens."
    tokenizer = target.tokenizer
    words = [t if t is None or tokenizer is None else tokenizer.decode([t]) for t in found.tokens]
    cause = (
        "a near-tie, which rounding can tip" if found.kind == "near-tie" else "an error, rounding does not explain it"
    )
    return (
        f"They diverge at token {found.position}, {words[0]!r} or {words[1]!r}: {cause} "
        f"(logit gap {found.gap:.2g}, rounding scale {found.rounding:.2g})."
    )
