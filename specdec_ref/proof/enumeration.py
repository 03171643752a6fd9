"""Every random choice, visited: from a program that draws to the exact distribution of its result.

The program is the production code itself. It asks its `RandomSource` for a coin or a draw; `EnumeratingSource`
answers with one of the possible outcomes and remembers the others. The program is run again, once for each branch,
until none is left.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from specdec_ref.sampling import RandomSource

Outcome = TypeVar("Outcome", bound=Hashable)
MAX_CHOICES = 200
"""Random choices in one run: more are a loop without an end."""


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
        self._depth = self._asked = 0
        self._intervals: list[tuple[float, float]] = []  # where each uniform asked for can still lie
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
        self._count()
        if not (p <= 0 or p > 0):
            raise ValueError("a coin with probability NaN was asked for")
        if p <= 0 or p >= 1:
            return p > 0
        return bool(self._choose([(True, p), (False, 1 - p)]))

    def categorical(self, probs: Tensor | Iterable[Any]) -> int:
        self._count()
        weights = probs.tolist() if hasattr(probs, "tolist") else list(probs)
        total = sum(weights)
        if not 0 < total < float("inf") or min(weights) < 0:
            raise ValueError(f"cannot draw from {weights}: need weights of 0 or more with a positive sum")
        possible = [(i, w / total) for i, w in enumerate(weights) if w > 0]
        return possible[0][0] if len(possible) == 1 else int(self._choose(possible))

    def uniforms(self, n: int) -> Tensor:
        """`n` uniforms whose values stay open: each comparison of one with a number is a choice that narrows it down.

        They can be sliced, reshaped and compared; anything else raises TypeError, since its result has no single value.
        """
        first = len(self._intervals)
        self._intervals += [(0.0, 1.0)] * n
        numbers = torch.arange(first, first + n, dtype=torch.float64)
        return numbers.as_subclass(_open_uniforms(self))

    def below(self, i: int, threshold: float) -> bool:
        """Whether uniform `i` is below `threshold`, as far as known; if that is open, it is chosen now."""
        low, high = self._intervals[i]
        if threshold >= high or threshold <= low:
            return threshold >= high
        share = (threshold - low) / (high - low)
        answer = bool(self._choose([(True, share), (False, 1 - share)]))
        self._intervals[i] = (low, threshold) if answer else (threshold, high)
        return answer

    def _count(self) -> None:
        self._asked += 1
        if self._asked > MAX_CHOICES:
            raise RuntimeError(
                f"more than {MAX_CHOICES:,} random choices in one run: a loop that draws again until a token fits has "
                "no last branch, so it can't be enumerated. Draw once, from the filtered distribution: 0 for what does "
                "not fit, the rest divided by its sum"
            )

    def _choose(self, options: list[tuple[int | bool, Any]]) -> int | bool:
        if self._depth == len(self._choices):
            self._choices.append((options, 0))
        known, taken = self._choices[self._depth]
        if known != options:
            raise RuntimeError(
                "the program asked for another choice when it was run again: something else than this source decides; "
                "all random choices have to come from the source, none from random, numpy or torch"
            )
        answer, probability = options[taken]
        self.probability = self.probability * probability
        self._depth += 1
        return answer


# How a comparison of a uniform u with a number t follows from u < t; equality has probability 0.
_COMPARISONS = {"lt": True, "le": True, "gt": False, "ge": False}
_VIEWS = {"__getitem__", "unsqueeze", "squeeze", "reshape", "view", "to", "expand", "detach", "__get__", "dim", "size"}


def _open_uniforms(source: EnumeratingSource) -> type[Tensor]:
    """A tensor class whose entries are numbers of `source`'s uniforms, and whose comparisons ask it."""

    class OpenUniforms(Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(function, "__name__", "")
            plain = name.strip("_")
            if plain in _COMPARISONS:
                left, right = args
                turned = not isinstance(left, cls)
                u, t = (right, left) if turned else (left, right)
                u, t = torch.broadcast_tensors(u.as_subclass(Tensor), torch.as_tensor(t))
                below = [
                    source.below(int(i), x) for i, x in zip(u.flatten().tolist(), t.flatten().tolist(), strict=True)
                ]
                return (torch.tensor(below).reshape(u.shape)) == (_COMPARISONS[plain] != turned)
            if name not in _VIEWS:
                raise TypeError(f"an enumerated uniform can only be compared, and {name} was asked of it")
            return super().__torch_function__(function, types, args, kwargs or {})

    return OpenUniforms


def enumerate_branches(program: Callable[[RandomSource], Any], max_branches: int = 200_000) -> Iterator[Branch]:
    """Run `program(source)` once for each way its random choices can fall.

    Raises RuntimeError beyond `max_branches`, beyond MAX_CHOICES in one run, and where the program is not a function of
    its choices.
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

    def uniforms(self, n: int) -> Tensor:
        """The next n - 1 coins, and a draw after them: the order in which the batched rules use them."""
        return torch.tensor([*(next(self._coins) for _ in range(n - 1)), next(self._draws)], dtype=torch.float64)
