"""One round in exact rational arithmetic, and the identity that it rests on, in symbols.

`RationalTensor` is a table of Fractions with the few operations that a rule uses. So the *production* rule is what
runs, and "equal" means equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import sympy
import torch

from specdec_ref.interfaces import Proposal, Rule
from specdec_ref.proof.enumeration import enumerate_distribution
from specdec_ref.sampling import RandomSource
from specdec_ref.verify import RULES


class RationalTensor:
    """A vector of Fractions, or a list of such vectors, that behaves like a tensor as far as the rules need it."""

    def __init__(self, values: Any) -> None:
        self.values = values

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.values),) if self.dim() == 1 else (len(self.values), len(self.values[0]))

    def dim(self) -> int:
        return 2 if isinstance(self.values[0], list) else 1

    def __len__(self) -> int:
        return len(self.values)

    def tolist(self) -> Any:
        return self.values

    def to(self, like: Any) -> RationalTensor:
        return self

    def item(self) -> Any:
        return self.values

    def __getitem__(self, at: Any) -> RationalTensor:
        row, column = at if isinstance(at, tuple) else (at, None)
        value = self.values[row]
        return RationalTensor(value if column is None else value[column])

    def __setitem__(self, at: Any, value: Any) -> None:
        self.values[at] = value.values if isinstance(value, RationalTensor) else Fraction(value)

    def _each(self, other: Any, operation: Callable[[Any, Any], Any]) -> RationalTensor:
        others = other.values if isinstance(other, RationalTensor) else [other] * len(self)
        if not isinstance(others, list):
            others = [others] * len(self)
        return RationalTensor([operation(a, b) for a, b in zip(self.values, others, strict=True)])

    def __sub__(self, other: Any) -> RationalTensor:
        return self._each(other, lambda a, b: a - b)

    def __mul__(self, other: Any) -> RationalTensor:
        return self._each(other, lambda a, b: a * b)

    def __truediv__(self, other: Any) -> RationalTensor:
        return self._each(other, lambda a, b: a / b)

    def __gt__(self, other: Any) -> Any:
        return self._each(other, lambda a, b: a > b) if isinstance(self.values, list) else self.values > other

    def clamp(self, min: Any) -> RationalTensor:
        return self._each(min, max)

    def sum(self) -> RationalTensor:
        return RationalTensor(sum(self.values, Fraction(0)))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """torch.zeros_like(x), the one torch function that the rules call."""
        return cls([Fraction(0)] * len(args[0])) if function is torch.zeros_like else NotImplemented


def fractions(distributions: Any) -> Any:
    """Numbers such as ".6" or "1/3", nested as you like, as Fractions; floats are refused as inexact."""
    if isinstance(distributions, (list, tuple)):
        return [fractions(distribution) for distribution in distributions]
    if isinstance(distributions, float):
        raise TypeError(
            f"{distributions!r} is a binary fraction: write {str(distributions)!r} as text to get the decimal one"
        )
    return Fraction(distributions)


def table(distributions: Sequence[Sequence[Any]]) -> Any:
    """Distributions `[n, vocab]` as the rules take them: a RationalTensor of Fractions, or a float64 tensor."""
    if isinstance(distributions[0][0], Fraction):
        return RationalTensor([list(distribution) for distribution in distributions])
    return torch.tensor([list(distribution) for distribution in distributions], dtype=torch.float64)


def round_distribution(
    rule: str | Rule,
    p: Callable[[tuple[int, ...]], Sequence[Any]],
    q: Callable[[tuple[int, ...]], Sequence[Any]],
    gamma: int = 1,
) -> dict[tuple[int, tuple[int, ...]], Any]:
    """One round of the production rule, every branch: (accepted, emitted tokens) -> probability.

    p, q: the distributions of target and draft after the drafts so far, given as Fractions or as floats. Where every
    drafted distribution is one-hot the proposal says so, by reporting none.
    """
    verify = RULES[rule] if isinstance(rule, str) else rule

    def program(source: RandomSource) -> tuple[int, tuple[int, ...]]:
        drafted: list[int] = []
        distributions = []
        for _ in range(gamma):
            distributions.append(q(tuple(drafted)))
            drafted.append(source.categorical(distributions[-1]))  # type: ignore[arg-type]
        certain = all(max(distribution) == 1 for distribution in distributions)
        proposal = Proposal(drafted, None if certain else table(distributions))
        verdict = verify(proposal, table([p(tuple(drafted[:i])) for i in range(gamma + 1)]), source)
        return verdict.accepted, tuple(verdict.emitted(drafted))

    return enumerate_distribution(program)


def emitted_distribution(rule: str | Rule, p: Sequence[Any], q: Sequence[Any]) -> list[Any]:
    """The distribution of the first token that one round emits when a draft is drawn from q: what should be p."""
    distribution = [0 * p[0]] * len(p)
    for (_, tokens), probability in round_distribution(rule, lambda _: p, lambda _: q).items():
        distribution[tokens[0]] += probability
    return distribution


def completed_distribution(
    distribution: dict[tuple[int, tuple[int, ...]], Any], p: Callable[[tuple[int, ...]], Sequence[Any]], length: int
) -> dict[tuple[int, ...], Any]:
    """The distribution of the first `length` tokens if the target goes on alone after the round in `distribution`."""
    done: dict[tuple[int, ...], Any] = {}
    todo = [(tokens, probability) for (_, tokens), probability in distribution.items()]
    while todo:
        tokens, probability = todo.pop()
        if len(tokens) == length:
            done[tokens] = done.get(tokens, 0) + probability
        else:
            todo += [((*tokens, x), probability * p_x) for x, p_x in enumerate(p(tokens)) if p_x > 0]
    return dict(sorted(done.items()))


def identity() -> sympy.Expr:
    """min(p, q) + max(0, p - q) - p for real p and q, as SymPy simplifies it: 0."""
    p, q = sympy.symbols("p q", real=True)
    return sympy.simplify((sympy.Min(p, q) + sympy.Max(0, p - q) - p).rewrite(sympy.Piecewise))


def one_step_proof(vocab: int = 3) -> dict[tuple[int, ...], list[sympy.Expr]]:
    """Emitted distribution minus p, token by token, for symbolic p and q over `vocab` tokens: zeros in every case.

    A case says which tokens have p > q; there the residual has its mass. The one case left out, none, is p = q,
    in which nothing is ever rejected.
    """
    p = [*sympy.symbols(f"p:{vocab - 1}", positive=True)]
    q = [*sympy.symbols(f"q:{vocab - 1}", positive=True)]
    p, q = [*p, 1 - sum(p)], [*q, 1 - sum(q)]
    proof = {}
    for case in range(1, 2**vocab - 1):
        above = [bool(case >> x & 1) for x in range(vocab)]
        accepted = [q[x] if above[x] else p[x] for x in range(vocab)]  # q min(1, p/q)
        residual = [p[x] - q[x] if above[x] else sympy.Integer(0) for x in range(vocab)]
        rejected = 1 - sum(accepted)
        proof[tuple(x for x in range(vocab) if above[x])] = [
            sympy.simplify(accepted[x] + rejected * residual[x] / sum(residual) - p[x]) for x in range(vocab)
        ]
    return proof
