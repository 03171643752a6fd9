"""A fair race: two ways of generating, timed in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specdec_ref.engine import Generation
from specdec_ref.interfaces import CausalLM
from specdec_ref.measure.neartie import compare_greedy


@dataclass(frozen=True)
class Race:
    """Two arms, run in turns; all times come from the same minutes of the same machine.

    first, second: one generation of each arm.
    first_seconds, second_seconds: time of each repeat, in pairs.
    """

    first: Generation
    second: Generation
    first_seconds: list[float]
    second_seconds: list[float]

    @property
    def ratios(self) -> list[float]:
        """first over second per token, for each pair: above 1 where the second arm is faster."""
        per_token = max(1, len(self.second.tokens)) / max(1, len(self.first.tokens))
        return [a / b * per_token for a, b in zip(self.first_seconds, self.second_seconds, strict=True)]

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)

    @property
    def interval(self) -> tuple[float, float]:
        """The smallest and the largest ratio seen."""
        return min(self.ratios), max(self.ratios)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.ratio:.2f}x ({low:.2f} to {high:.2f} over {len(self.ratios)} pairs of runs)"

    def verdict(self) -> str:
        """What the ratios allow us to conclude, in words: faster, slower, or no difference that this run can show."""
        low, high = self.interval
        if low > 1:
            return f"faster: {self}"
        if high < 1:
            return f"slower: {self}"
        return f"no clear difference: {self}"


def race(first: Callable[[], Generation], second: Callable[[], Generation], repeats: int = 3) -> Race:
    """Run both once to warm up, then `repeats` times in turns, A B A B.

    Ratios are taken per token and pair by pair, so that a slow minute of the machine affects both arms.
    Raises ValueError for fewer than one repeat.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}: a race needs at least one pair of runs")
    a, b = first(), second()
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        seconds[0].append(first().stats.seconds)
        seconds[1].append(second().stats.seconds)
    return Race(a, b, *seconds)


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
