"""Distributions for checks, what learners hand back, and every branch of their code.

Distributions are made of 64ths. Their sums and differences are exact in every floating-point type, so that a border
is a border whatever the learner computes with.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from specdec_course.checks import wrong
from specdec_ref.proof.enumeration import EnumeratingSource

ROUNDING = 1e-5
"""Largest difference that counts as rounding: float32 keeps below it, and no mistake is this small."""

Distribution = list[Fraction]
Model = Callable[[Sequence[int]], list[float]]


def random_distribution(rng: random.Random, size: int, zeros: int = 0) -> Distribution:
    """A distribution over `size` tokens in 64ths; `zeros` of them are impossible, each other has at least 1/64."""
    cuts = sorted(rng.sample(range(1, 64), size - zeros - 1))
    parts = [b - a for a, b in itertools.pairwise([0, *cuts, 64])] + [0] * zeros
    rng.shuffle(parts)
    return [Fraction(n, 64) for n in parts]


def floats(distribution: Sequence[Any]) -> list[float]:
    """The distribution as a learner's code gets it."""
    return [float(x) for x in distribution]


def scaled(weights: Sequence[Any]) -> list[Any]:
    """The weights divided by their sum; as they are where that is 0."""
    return [w / (sum(weights) or 1) for w in weights]


def residual_of(p: Sequence[Any], q: Sequence[Any]) -> list[Any]:
    """The residual: what p has over q, scaled; p where that is nothing."""
    over = [a - min(a, b) for a, b in zip(p, q, strict=True)]
    return scaled(over) if any(over) else list(p)


def show(distribution: Sequence[Any]) -> str:
    """The distribution in a message."""
    return "[" + ", ".join(f"{float(x):.4g}" for x in distribution) + "]"


def softmax(weights: Sequence[Any]) -> list[float]:
    """e to the weights, scaled."""
    return scaled([math.exp(w) for w in weights])


def one_hot(size: int, token: int) -> Distribution:
    """The distribution of a token that always comes."""
    return [Fraction(int(i == token)) for i in range(size)]


def argmax(distribution: Sequence[Any]) -> int:
    """The likeliest token, the lowest on a tie."""
    return max(range(len(distribution)), key=lambda i: distribution[i])


def total_variation(a: Sequence[Any], b: Sequence[Any]) -> float:
    """TV(a, b), half of the sum of all differences."""
    return sum(abs(float(x) - float(y)) for x, y in zip(a, b, strict=True)) / 2


def same_distribution(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Equal but for rounding."""
    return len(a) == len(b) and all(abs(float(x) - float(y)) <= ROUNDING for x, y in zip(a, b, strict=True))


def likely_slip(got: Sequence[Any], slips: Mapping[str, Sequence[Any]], otherwise: str = "") -> str:
    """The text of the first slip that would give what came."""
    return next((text for text, value in slips.items() if same_distribution(got, value)), otherwise)


def plain(value: Any) -> Any:
    """Arrays and tensors as lists and numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def as_numbers(value: Any, what: str) -> list[float]:
    """A distribution as the learner gives it: a list, tuple, array or tensor."""
    if value is None:
        raise wrong(f"{what} is None", mistake="a return is missing.")
    try:
        numbers = [float(plain(x)) for x in plain(value)]
    except (TypeError, ValueError):
        raise wrong(f"{what} has to be a list of numbers", got=value) from None
    if any(math.isnan(x) for x in numbers):
        raise wrong(f"{what} holds NaN", got=show(numbers), mistake="a division of 0 by 0.")
    return numbers


def as_token(value: Any, what: str) -> int:
    """A token as the learner gives it."""
    token = plain(value)
    if isinstance(token, bool) or not isinstance(token, (int, float)) or token != int(token):
        raise wrong(f"{what} has to be a token, a whole number", got=repr(value))
    return int(token)


def as_tokens(value: Any, what: str) -> tuple[int, ...]:
    """A list of tokens as the learner gives it."""
    tokens = plain(value)
    if not isinstance(tokens, (list, tuple)):
        raise wrong(f"{what} has to be a list of tokens", got=repr(value), mistake="return a list, also for one token.")
    return tuple(as_token(x, f"each entry of {what}") for x in tokens)


def as_pair(value: Any, what: str) -> tuple[Any, Any]:
    """Two things, returned together."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise wrong(f"{what} has to return two things", got=repr(value))
    return value[0], value[1]


def as_bool(value: Any, what: str) -> bool:
    """True or False as the learner gives it, 1 and 0 among them."""
    answer = plain(value)
    if not isinstance(answer, (bool, int, float)) or answer not in (0, 1):
        raise wrong(f"{what} has to return True or False", got=repr(value))
    return bool(answer)


class Visitor(EnumeratingSource):
    """Visits every branch, as in the lesson; takes distributions of any type, and says what a learner should know."""

    asked = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise wrong(
            f"`source` has two methods, bernoulli(probability) and categorical(distribution), and no `{name}`",
            mistake="there is no u to ask for: source.bernoulli(probability) is True with that probability.",
        )

    def bernoulli(self, p: Any) -> bool:
        self.asked += 1
        p = float(p)
        # Where p/q is 1 but for rounding there is no rejection to look at.
        return super().bernoulli(1.0 if p > 1 - 1e-6 else p)

    def categorical(self, probs: Any) -> int:
        self.asked += 1
        distribution = as_numbers(probs, "what you gave to source.categorical")
        if not distribution or min(distribution) < 0 or sum(distribution) <= 0:
            raise wrong(
                "source.categorical needs probabilities: none below 0, and not all 0",
                got=show(distribution),
                mistake="negative differences were not cut at 0, or nothing is left to draw from.",
            )
        return super().categorical(distribution)

    def _choose(self, options: list[tuple[int | bool, Any]]) -> int | bool:
        try:
            return super()._choose(options)
        except RuntimeError:
            raise wrong(
                "the code went another way when it was run again with the same answers from `source`",
                mistake="something else draws: all chance has to come from `source`, none from random, numpy or torch.",
            ) from None


def exact_distribution(
    program: Callable[[Visitor], Any], certain: bool = False, twice: bool = True
) -> dict[Any, float]:
    """The exact distribution of the outcome of `program(source)`; `certain`: it may be one that needs no chance.

    `twice`: it is worked out once more, and has to come out the same: chance from elsewhere shows.
    """
    source, distribution = Visitor(), dict[Any, float]()
    for _ in range(50_000):
        outcome = program(source)
        distribution[outcome] = distribution.get(outcome, 0.0) + float(source.probability)
        if not source.next_branch():
            break
    else:
        raise wrong("there is no end to the questions that the code asks `source`")
    if not source.asked and not certain:
        raise wrong("the code asks `source` nothing", mistake="chance comes from elsewhere, or there is none.")
    # A distribution with few outcomes may come again by chance.
    if twice and any(
        distribution != exact_distribution(program, certain, twice=False)
        for _ in range(6 if len(distribution) < 5 else 1)
    ):
        raise wrong(
            "the code went another way when it was run again with the same answers from `source`",
            mistake="something else draws: all chance has to come from `source`, none from random, numpy or torch.",
        )
    return distribution


def as_list(distribution: Mapping[Any, float], size: int) -> list[float]:
    """The distribution of single tokens as a list."""
    strange = [x for x in distribution if not 0 <= x < size]
    if strange:
        raise wrong(f"a token came that does not exist: tokens are 0 to {size - 1}", got=repr(strange[0]))
    return [distribution.get(x, 0.0) for x in range(size)]


def prefix_model(rng: random.Random, size: int) -> Model:
    """A distribution after each prefix, drawn from a seed and the prefix: it does not matter in which order it is
    asked.
    """
    key = rng.random()
    return lambda tokens: floats(random_distribution(random.Random(f"{key} {[int(t) for t in tokens]}"), size))


def text_distribution(rounds: Mapping[tuple[int, ...], float], target: Model, size: int, length: int) -> list[float]:
    """The distribution of all texts of `length` tokens: a round, then the target alone."""
    distribution = []
    for text in itertools.product(range(size), repeat=length):
        alone = [target(text[:i])[text[i]] for i in range(length)]
        distribution.append(
            sum(share * math.prod(alone[len(e) :]) for e, share in rounds.items() if text[: len(e)] == e)
        )
    return distribution
