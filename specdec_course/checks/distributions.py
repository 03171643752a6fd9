"""Distributions in checks: given ones, those that learners return, and the exact one of what their code draws.

Given distributions are made of 64ths. Their sums and differences are exact in every floating-point type, so that a
border is a border whatever the learner computes with.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch

from specdec_course.checks.check import wrong
from specdec_course.checks.mistakes import Answer, unchanged
from specdec_course.checks.numbers import as_items, as_number
from specdec_ref.proof import enumerate_distribution, total_variation
from specdec_ref.sampling import RandomSource
from specdec_ref.verify.tokenwise import residual_distribution

ROUNDING = 1e-5
"""Largest difference between probabilities that counts as rounding: float32 stays below it."""
MOST_BRANCHES = 20_000
"""Ways that the random choices of a learner's code can fall; the exercises need hundreds at most."""

ELSEWHERE = "something else draws: all random choices have to come from `source`, none from random, numpy or torch."

Distribution = list[float]
Model = Callable[[Sequence[int]], Distribution]


def random_distribution(rng: random.Random, size: int, zeros: int = 0) -> Distribution:
    """A distribution `[size]` in 64ths; `zeros` of its tokens are impossible, each other has at least 1/64."""
    cuts = sorted(rng.sample(range(1, 64), size - zeros - 1))
    parts = [b - a for a, b in itertools.pairwise([0, *cuts, 64])] + [0] * zeros
    rng.shuffle(parts)
    return [n / 64 for n in parts]


def prefix_model(rng: random.Random, size: int) -> Model:
    """A model with a distribution of its own after each list of tokens, the same each time it is asked."""
    key = rng.random()
    return lambda tokens: random_distribution(random.Random(f"{key} {[int(t) for t in tokens]}"), size)


def residual_of(p: Sequence[float], q: Sequence[float]) -> Distribution:
    """The engine's residual of two lists, as a list."""
    return residual_distribution(torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)).tolist()


def over(p: Sequence[float], q: Sequence[float]) -> Distribution:
    """max(0, p - q)."""
    return [max(0.0, a - b) for a, b in zip(p, q, strict=True)]


def scaled(weights: Sequence[float]) -> Distribution:
    """The weights divided by their sum."""
    return [w / sum(weights) for w in weights]


def likeliest(weights: Sequence[float]) -> Distribution:
    """The distribution that always gives the token with the largest weight, the lowest on a tie."""
    return [float(x == max(range(len(weights)), key=lambda i: weights[i])) for x in range(len(weights))]


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """The total variation between two lists."""
    return total_variation(dict(enumerate(a)), dict(enumerate(b)))


def same_distribution(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two distributions are equal but for rounding."""
    return len(a) == len(b) and all(abs(x - y) <= ROUNDING for x, y in zip(a, b, strict=True))


def show(distribution: Sequence[float]) -> str:
    """A distribution in a message."""
    return "[" + ", ".join(f"{x:.4g}" for x in distribution) + "]"


def as_numbers(value: Any, what: str, given: Any = None) -> Distribution:
    """A learner's list, tuple, array or tensor of numbers."""
    items = as_items(value)
    if items is None:
        mistake = "is there a return?" if value is None else ""
        raise wrong(f"{what} must be a list of numbers.", given=given, got=repr(value), mistake=mistake)
    return [float(as_number(x, f"each entry of {what}", given)) for x in items]


def as_token(value: Any, what: str) -> int:
    """A learner's token."""
    number = as_number(value, what)
    if number % 1:
        raise wrong(f"{what} must be a token, a whole number.", got=repr(value))
    return int(number)


def as_tokens(value: Any, what: str) -> tuple[int, ...]:
    """A learner's list of tokens."""
    items = as_items(value)
    if items is None:
        raise wrong(f"{what} must be a list of tokens, also where it is one.", got=repr(value))
    return tuple(as_token(x, f"each entry of {what}") for x in items)


def as_tuple(value: Any, names: str) -> tuple[Any, ...]:
    """The things that a learner returns together, as many as there are names."""
    if not isinstance(value, (tuple, list)) or len(value) != names.count(",") + 1:
        raise wrong(f"{names.count(',') + 1} things must be returned: {names}.", got=repr(value))
    return tuple(value)


def as_bool(value: Any, what: str) -> bool:
    """A learner's True or False; 1 and 0 count as such."""
    answer = value.tolist() if hasattr(value, "tolist") else value
    if type(answer) not in (bool, int, float) or answer not in (0, 1):
        raise wrong(f"{what} must return True or False.", got=repr(value))
    return bool(answer)


def as_list(distribution: Mapping[int, float], size: int) -> Distribution:
    """A distribution token -> probability as a list."""
    if strange := [x for x in distribution if not 0 <= x < size]:
        raise wrong(f"a token came that does not exist: tokens are 0 to {size - 1}.", got=repr(strange[0]))
    return [distribution.get(x, 0.0) for x in range(size)]


def _hint(got: Distribution, right: Distribution) -> str:
    if len(got) != len(right):
        return f"one number for each of the {len(right)} tokens is wanted."
    return "" if abs(sum(got) - 1) <= ROUNDING else f"the sum is {sum(got):.4g}; a distribution sums to one."


DISTRIBUTION = Answer(as_numbers, same_distribution, show, _hint)
ROWS = Answer(
    lambda value, what, given: value,
    lambda a, b: a.keys() == b.keys() and all(same_distribution(a[k], b[k]) for k in a),
    lambda rows: "; ".join(f"{label} {show(row) if row else 'never'}" for label, row in rows.items()),
)
"""Distributions with labels, label -> distribution; empty where it never comes to that."""


class Visitor:
    """What a learner's code draws from: visits every branch, up to a limit, and says what a learner needs to know."""

    def __init__(self, branches: RandomSource) -> None:
        self._branches, self.asked = branches, False

    def __getattr__(self, name: str) -> Any:
        likely = "there is no u to ask for: source.bernoulli(probability) is True with that probability."
        raise wrong(f"`source` has two methods, bernoulli and categorical, and no `{name}`.", mistake=likely)

    def bernoulli(self, probability: Any) -> bool:
        """True with this probability."""
        # Where p/q is 1 but for rounding there is no rejection to look at.
        return bool(self._ask(self._branches.bernoulli, 1.0 if probability > 1 - 1e-6 else float(probability)))

    def categorical(self, distribution: Any) -> int:
        """A token, drawn from weights of any type."""
        return self._ask(self._branches.categorical, as_numbers(distribution, "what you gave to source.categorical"))

    def _ask(self, method: Callable[[Any], int], given: Any) -> int:
        self.asked = True
        try:
            return method(given)
        except RuntimeError as error:
            raise wrong("your code cannot be enumerated.", mistake=str(error)) from None


def exact_distribution(program: Callable[[Visitor], Any], certain: bool = False) -> dict[Any, float]:
    """The exact distribution of what `program(source)` returns; `certain`: it may be a program that never draws.

    It is worked out more than once: where something else than `source` draws, it comes out differently.
    """

    def enumerated() -> dict[Any, float]:
        asked: list[bool] = []

        def run(branches: RandomSource) -> Any:
            if len(asked) == MOST_BRANCHES:
                likely = "a loop that draws again until a token fits: draw once, from the filtered distribution."
                raise wrong(f"your code's random choices fall in more than {MOST_BRANCHES:,} ways.", mistake=likely)
            source = Visitor(branches)
            outcome = program(source)
            asked.append(source.asked)
            return outcome

        distribution = enumerate_distribution(run)
        if not any(asked) and not certain:
            raise wrong("the code asks `source` nothing.", mistake=ELSEWHERE)
        return distribution

    distribution = enumerated()
    # A distribution with few outcomes may come again by luck.
    if any(enumerated() != distribution for _ in range(6 if len(distribution) < 5 else 1)):
        raise wrong("the code took another path when it was run again.", mistake=ELSEWHERE)
    return distribution


def leaves_alone(name: str, arguments: dict[str, Any], call: Callable[..., Any]) -> None:
    """Raise CheckFailed where `call(*arguments, source)` changes an argument on some branch, or returns one of them."""

    def program(source: Visitor) -> int:
        given = deepcopy(arguments)
        result = call(*given.values(), source)
        for key, value in given.items():
            if not unchanged(arguments[key], value):
                likely = "append, pop, del, += or an assignment to an entry: build a new list."
                what = f"{name} changes {key}, which it was given: its caller still needs it."
                raise wrong(what, given=f"{key} = {arguments[key]}", got=f"{key} = {value} afterwards", mistake=likely)
            if result is value:
                likely = f"what is done to the result later would be done to {key}: return a copy, list({key})."
                raise wrong(f"{name} returns the very list {key} that it was given.", got=value, mistake=likely)
        return 0

    exact_distribution(program, certain=True)
