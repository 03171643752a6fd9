"""Every random choice, visited: from a program that draws to the exact distribution of its result.

The program is the production code itself. It asks its `RandomSource` for a coin or a draw; `EnumeratingSource`
answers with one of the possible outcomes and remembers the others. The program is run again, once for each branch,
until none is left.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from specdec_ref.sampling import RandomSource

Outcome = TypeVar("Outcome", bound=Hashable)


class Branch(NamedTuple):
    """One way the program can go: its result, the probability of this way, and the answers it was given."""

    outcome: Any
    probability: Any
    choices: tuple[int | bool, ...]


class EnumeratingSource(RandomSource):
    """Answers along one branch; `next_branch` moves on to the next. See `enumerate_branches`.

    probability: of the branch so far. It stays a `Fraction` where the program's probabilities are Fractions.
    """

    def __init__(self) -> None:
        # Each choice on the current branch: the possible (answer, probability) pairs, and which one is taken.
        self._choices: list[tuple[list[tuple[int | bool, Any]], int]] = []
        self.restart()

    def restart(self) -> None:
        """Back to the first choice of the current branch."""
        self._depth = 0
        self.probability: Any = 1

    def next_branch(self) -> bool:
        """Change the last choice that has an alternative left; False when all branches were visited."""
        while self._choices:
            options, taken = self._choices.pop()
            if taken + 1 < len(options):
                self._choices.append((options, taken + 1))
                self.restart()
                return True
        return False

    @property
    def choices(self) -> tuple[int | bool, ...]:
        """The answers on this branch; certain ones (p <= 0, p >= 1, a one-hot distribution) are no choice."""
        return tuple(options[taken][0] for options, taken in self._choices)

    def bernoulli(self, p: float) -> bool:
        if not (p <= 0 or p > 0):
            raise ValueError("a coin with probability NaN was asked for")
        if p <= 0 or p >= 1:
            return p > 0
        return bool(self._choose([(True, p), (False, 1 - p)]))

    def categorical(self, probs: Tensor | Iterable[Any]) -> int:
        weights = probs.tolist() if hasattr(probs, "tolist") else list(probs)
        total = sum(weights)
        if not 0 < total < float("inf") or min(weights) < 0:
            raise ValueError(f"cannot draw from {weights}: need weights of 0 or more with a positive sum")
        possible = [(i, w / total) for i, w in enumerate(weights) if w > 0]
        return possible[0][0] if len(possible) == 1 else int(self._choose(possible))

    def _choose(self, options: list[tuple[int | bool, Any]]) -> int | bool:
        if self._depth == len(self._choices):
            self._choices.append((options, 0))
        known, taken = self._choices[self._depth]
        if known != options:
            raise RuntimeError(
                "the program asked for another choice when it was run again: something else than this source decides"
            )
        answer, probability = options[taken]
        self.probability = self.probability * probability
        self._depth += 1
        return answer


def enumerate_branches(program: Callable[[RandomSource], Any], max_branches: int = 200_000) -> Iterator[Branch]:
    """Run `program(source)` once for each way its random choices can fall.

    Raises RuntimeError beyond `max_branches`, and where the program is not a function of its choices.
    """
    source = EnumeratingSource()
    for _ in range(max_branches):
        outcome = program(source)
        yield Branch(outcome, source.probability, source.choices)
        if not source.next_branch():
            return
    raise RuntimeError(
        f"more than {max_branches:,} branches: enumerate fewer tokens or a smaller vocabulary, or raise max_branches"
    )


def enumerate_distribution(
    program: Callable[[RandomSource], Outcome], max_branches: int = 200_000
) -> dict[Outcome, Any]:
    """The exact distribution of what `program(source)` returns: outcome -> probability, in sorted order."""
    distribution: dict[Any, Any] = {}
    for branch in enumerate_branches(program, max_branches):
        distribution[branch.outcome] = distribution.get(branch.outcome, 0) + branch.probability
    return dict(sorted(distribution.items()))


class ReplaySource(RandomSource):
    """Answers from uniforms drawn beforehand: `coins` for `bernoulli` and `draws` for `categorical`, in order."""

    def __init__(self, coins: Iterable[float], draws: Iterable[float]) -> None:
        self._coins, self._draws = iter(coins), iter(draws)
        self._generator: Any = self

    def random(self) -> float:
        return next(self._now)

    def bernoulli(self, p: float) -> bool:
        self._now = self._coins
        return super().bernoulli(p)

    def categorical(self, probs: Tensor) -> int:
        self._now = self._draws
        return super().categorical(probs)
