"""The blanks of lesson 04: the residual, a walk through every way of a program, the numbers of the block rule."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from specdec_course.checks import Blank, Check, wrong
from specdec_course.checks import distributions as dist
from specdec_course.checks.distributions import Distribution, random_distribution, show
from specdec_course.checks.mistakes import NUMBER, Answer, Case, Judge, Mistake, judged, mistakes
from specdec_course.checks.numbers import typed
from specdec_course.checks.ps04_rejection import rounds

Run = Callable[[Sequence[Any]], tuple[Any, Any]]
Rows = Sequence[Sequence[float]]


def residual(p: Sequence[Any], q: Sequence[Any]) -> list[Any]:
    """max(0, p - q), scaled to sum to one; a copy of p where that is 0 everywhere."""
    missing = [max(0, a - b) for a, b in zip(p, q)]
    total = sum(missing)
    return [m / total for m in missing] if total > 0 else list(p)


def _fractions_stay(learner: Callable[..., Any], rng: random.Random) -> None:
    """The lesson goes on in fractions, where equal means equal."""
    p, q = (
        [Fraction(int(64 * x), 64) for x in random_distribution(rng, 4)],
        [Fraction(int(64 * x), 64) for x in random_distribution(rng, 4)],
    )
    got, right = learner(list(p), list(q)), residual(p, q)
    if list(got) != right:
        likely = "a fraction became a float: use plain Python, no float(), round(), NumPy or torch."
        raise wrong("It should work for fractions, too, exactly.", given=typed(p=p, q=q), got=repr(got), mistake=likely)


def visit(run: Run) -> dict[Any, Any]:
    """{result: chance} of a program, from `run(answers)`: (result, None), or (None, options) where it asks for more."""
    todo: list[tuple[list[Any], Any]] = [([], 1)]
    found: dict[Any, Any] = {}
    while todo:
        answers, chance = todo.pop()
        result, options = run(answers)
        if options is None:
            found[result] = found.get(result, 0) + chance
        else:
            todo += [([*answers, answer], chance * share) for answer, share in options]
    return found


class _Tree:
    """A program as a tree: a result, or a list of (answer, share, tree); `run` of a learner's `visit`."""

    MOST = 2_000

    def __init__(self, tree: Any) -> None:
        self.tree, self.calls = tree, 0

    def __call__(self, answers: Sequence[Any]) -> tuple[Any, Any]:
        self.calls += 1
        if self.calls > self.MOST:
            likely = "each way that goes on needs one more answer than before: [*answers, answer]."
            raise wrong(f"run was called more than {self.MOST:,} times.", mistake=likely)
        here = self.tree
        for i, answer in enumerate(list(answers)):
            branches = [tree for other, _, tree in here if other == answer] if isinstance(here, list) else []
            if not branches:
                raise wrong("the program was given an answer that it never offered.", got=f"answer {i}: {answer!r}")
            (here,) = branches
        if isinstance(here, list):
            return None, [(answer, share) for answer, share, _ in here]
        return here, None

    def __str__(self) -> str:
        def text(tree: Any) -> str:
            if not isinstance(tree, list):
                return f"result {tree}"
            return "; ".join(f"{answer} ({share:.3g}) -> [{text(below)}]" for answer, share, below in tree)

        return f"a program with these ways: {text(self.tree)}"


def _walk(
    run: Run,
    along: Callable[[float, float], float] = lambda chance, share: chance * share,
    together: Callable[[float, float], float] = lambda before, chance: before + chance,
    followed: Callable[[list[Any]], list[Any]] = lambda options: options,
) -> dict[Any, float]:
    """`visit` with a step that may be wrong."""
    todo: list[tuple[list[Any], float]] = [([], 1.0)]
    found: dict[Any, float] = {}
    while todo:
        answers, chance = todo.pop()
        result, options = run(answers)
        if options is None:
            found[result] = together(found.get(result, 0.0), chance)
        else:
            todo += [([*answers, answer], along(chance, share)) for answer, share in followed(options)]
    return found


def _as_chances(value: Any, what: str, given: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        mistake = "is there a return?" if value is None else ""
        raise wrong(f"{what}: a dict, result -> chance, is wanted.", given=given, got=repr(value), mistake=mistake)
    return {dist.as_token(x, "each result"): dist.as_numbers([share], "each chance")[0] for x, share in value.items()}


def _walking(steps: Any) -> Callable[..., Any]:
    return partial(_walk, **steps)


_VISIT = Judge(
    "The chances of the results",
    visit,
    mistakes(
        _walking,
        {
            "each way counts once: it counts by its chance.": {"along": lambda chance, share: 1.0},
            "only the last answer's share: multiply the shares along the way.": {"along": lambda chance, share: share},
            "the shares of a way were added up: multiply them along the way.": {
                "along": lambda chance, share: chance + share
            },
            "two ways may end in the same result: add their chances up.": {"together": lambda before, chance: chance},
            "only one answer of each question is followed: every option is a way of its own.": {
                "followed": lambda options: options[:1]
            },
        },
    ),
    Answer(_as_chances, lambda a, b: a.keys() == b.keys() and all(abs(a[k] - b[k]) < 1e-9 for k in a)),
    given=str,
)


def _programs(rng: random.Random) -> Iterator[Case]:
    """Programs of one to three questions; the last answers lead to results that others lead to as well."""

    def tree(depth: int) -> Any:
        if depth == 0:
            return rng.randrange(2)
        shares = random_distribution(rng, rng.choice([2, 3]))
        return [(answer, share, tree(depth - 1 - (answer == 0 and depth > 2))) for answer, share in enumerate(shares)]

    for depth in (1, 2, 3, 3):
        yield (_Tree(tree(depth)),)
    coin, draw = random_distribution(rng, 2), random_distribution(rng, 3)
    kept = [(answer, share, answer) for answer, share in enumerate(draw)]
    yield (_Tree([(True, coin[0], 2), (False, coin[1], kept)]),)


def _certain(rng: random.Random) -> list[Case]:
    """A program that asks nothing."""
    return [(_Tree(rng.randrange(3)),)]


def prefix_ratios(drafts: Sequence[int], q: Sequence[Any], p: Sequence[Any]) -> list[Any]:
    """rho_0 = 1, then rho_i = min(1, rho_{i-1} p_i(x_i) / q_i(x_i)) for each draft: one number more than drafts."""
    rho: list[Any] = [1]
    for x, q_i, p_i in zip(drafts, q, p):
        rho.append(min(1, rho[-1] * p_i[x] / q_i[x]))
    return rho


def _ratios(step: Callable[[float, float], float], drafts: Sequence[int], q: Rows, p: Rows) -> Distribution:
    rho = [1.0]
    for x, q_i, p_i in zip(drafts, q, p):
        rho.append(step(rho[-1], p_i[x] / q_i[x]))
    return rho


_RATIOS = Judge(
    "The ratios",
    prefix_ratios,
    [
        *mistakes(
            lambda step: partial(_ratios, step),
            {
                "each factor is cut at 1, as in the token rule: cut the product, rho_{i-1} times p/q.": (
                    lambda rho, ratio: rho * min(1.0, ratio)
                ),
                "the product is never cut: min(1, ...) at each draft.": lambda rho, ratio: rho * ratio,
                "without the ratios before it: rho_{i-1} is a factor.": lambda rho, ratio: min(1.0, ratio),
                "q/p in place of p/q.": lambda rho, ratio: min(1.0, rho / ratio),
            },
        ),
        Mistake(
            "rho_0 = 1 comes first: one number more than drafts.",
            lambda drafts, q, p: prefix_ratios(drafts, q, p)[1:],
        ),
        Mistake(
            "the product is cut once, at the end: cut it at each draft.",
            lambda drafts, q, p: [min(1.0, rho) for rho in _ratios(lambda rho, ratio: rho * ratio, drafts, q, p)],
        ),
    ],
    Answer(dist.as_numbers, dist.same_distribution, show),
)


def _chains(rng: random.Random) -> Iterator[Case]:
    """Chains of three drafts: ratios 1/2, 2, 1/4 and others; then two drafts, one, none."""
    yield [0, 1, 0], [[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]], [[0.25, 0.75], [0.25, 0.75], [0.125, 0.875], [0.5, 0.5]]
    yield [0, 0, 0], [[0.25, 0.75]] * 3, [[0.5, 0.5], [0.125, 0.875], [0.75, 0.25], [0.5, 0.5]]
    for gamma in (4, 2, 1, 0):
        rows = [random_distribution(rng, 4) for _ in range(2 * gamma + 1)]
        yield [rng.randrange(4) for _ in range(gamma)], rows[:gamma], rows[gamma:]


def stop_chance(rho: Any, p_next: Sequence[Any], q_next: Sequence[Any]) -> Any:
    """h = M / (M + 1 - rho), where M = sum of max(0, rho p - q) over the next place; 1 where rho is 1."""
    if rho == 1:
        return 1
    mass = sum(max(0, rho * a - b) for a, b in zip(p_next, q_next))
    return mass / (mass + 1 - rho)


def _mass(rho: float, p: Sequence[float], q: Sequence[float]) -> float:
    return sum(max(0.0, rho * a - b) for a, b in zip(p, q))


def _stop_call(learner: Callable[..., Any], rho: float, p: Distribution, q: Distribution) -> Any:
    try:
        return learner(rho, p, q)
    except ZeroDivisionError:
        likely = "where rho is 1 the prefix is kept for certain: answer that first."
        raise wrong(
            "a division by 0.", given=typed(rho=rho, p_next=p, q_next=q), got="ZeroDivisionError", mistake=likely
        ) from None


_STOP = Judge(
    "The chance to stop",
    stop_chance,
    [
        Mistake("that is M, the mass itself: divide it by M + 1 - rho.", _mass),
        Mistake("that is rho itself, which is right at the last draft only.", lambda rho, p, q: rho),
        Mistake(
            "M without rho: the sum of max(0, rho p - q).",
            lambda rho, p, q: _mass(1, p, q) / (_mass(1, p, q) + 1 - rho) if rho < 1 else 1,
        ),
        Mistake(
            "the denominator is M + 1 - rho.",
            lambda rho, p, q: _mass(rho, p, q) / (_mass(rho, p, q) + rho) if rho < 1 else 1,
        ),
        Mistake(
            "p and q are swapped: the sum of max(0, rho p - q).",
            lambda rho, p, q: (
                sum(max(0.0, b - rho * a) for a, b in zip(p, q))
                / (sum(max(0.0, b - rho * a) for a, b in zip(p, q)) + 1 - rho)
            ),
        ),
    ],
    NUMBER,
    call=_stop_call,
)


def _stops(rng: random.Random) -> Iterator[Case]:
    """rho below 1, where something is missing; where nothing is; and rho = 1, also with p = q."""
    for rho in (0.5, 0.75, 0.25):
        yield rho, [0.75, 0.125, 0.125], [0.25, 0.25, 0.5]
        yield rho, random_distribution(rng, 4), random_distribution(rng, 4)
    p = random_distribution(rng, 4)
    yield 0.5, p, list(p)
    yield 1, random_distribution(rng, 3), random_distribution(rng, 3)
    yield 1, p, list(p)


_LEFT_ALONE, *_VALUES = rounds.residual.parts  # its values first: their messages say more

BLANKS = {
    "residual": Blank(Check("residual", [*_VALUES, _LEFT_ALONE, _fractions_stay]), residual),
    "visit": Blank(
        judged("visit", _VISIT, programs=_programs, certain=lambda rng: [(_Tree(rng.randrange(3)),)]), visit
    ),
    "ratios": Blank(judged("prefix_ratios", _RATIOS, chains=_chains), prefix_ratios),
    "stop": Blank(judged("stop_chance", _STOP, stops=_stops), stop_chance),
}
