"""The one mechanism of the checks: the learner's function beside the right one and beside known wrong ones."""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from specdec_course.checks.check import Check, CheckFailed, guard, raised, wrong
from specdec_course.checks.numbers import as_number, how_far, near, number_text, typed

Case = tuple[Any, ...]
"""The arguments of one call. Those left out at the end keep their defaults."""


@dataclass(frozen=True)
class Mistake:
    """A way to get it wrong: what the learner reads, and a function that does it, called as the right one is.

    says: text, or a function of the arguments that gives it. A function that raises does not fit that case.
    """

    says: str | Callable[..., str]
    function: Callable[..., Any]


def mistakes(
    function: Callable[[Callable[..., Any]], Callable[..., Any]], formulas: Mapping[str, Any]
) -> list[Mistake]:
    """Mistakes from formulas by what they say, where function(formula) is called as the right function is."""
    return [Mistake(says, function(formula)) for says, formula in formulas.items()]


@dataclass(frozen=True)
class Answer:
    """What sort of value is returned: how to read, compare and show it, and what to say where no mistake fits.

    read(value, what, given): the value in builtin types only, exactly, so that it can be trusted in comparisons;
    CheckFailed for what is no such value. The right function and the mistakes return what `read` gives.
    """

    read: Callable[[Any, str, Any], Any]
    same: Callable[[Any, Any], bool]
    show: Callable[[Any], str] = repr
    hint: Callable[[Any, Any], str] = lambda got, right: ""


NUMBER = Answer(as_number, near, number_text, how_far)


@dataclass(frozen=True)
class Judge:
    """Holds a learner's function against the right one.

    what: the value in words, "The bytes of a token". given: the arguments in a message; by default as one types them,
    by the right function's names. refuses: errors that are answers: where `right` raises one, the learner must, too.
    call: how the learner's function is called, (function, *arguments), where its result is not yet the value.
    """

    what: str
    right: Callable[..., Any]
    mistakes: Sequence[Mistake] = ()
    answer: Answer = NUMBER
    given: Callable[..., str] | None = None
    refuses: tuple[type[Exception], ...] = ()
    call: Callable[..., Any] = lambda function, *arguments: function(*arguments)

    def __call__(self, learner: Callable[..., Any], cases: Iterable[Case]) -> None:
        """Raise CheckFailed at the first case where the learner's value differs.

        The mistake that it names gives what the learner's function gave in all cases or, if none does, in this one.
        """
        seen: list[tuple[Case, Any]] = []
        left = iter(cases)
        for case in left:
            failure = self._failure(learner, case, seen)
            if failure is not None:
                for other in islice(left, 30):
                    self._failure(learner, other, seen)
                raise self._failure(learner, case, seen, loosely=True) or failure

    def search(
        self, learner: Callable[..., Any], cases: SearchStrategy[Case], rng: random.Random, examples: int = 100
    ) -> None:
        """Raise CheckFailed for the smallest case that Hypothesis finds among those of a strategy."""
        seen: list[tuple[Case, Any]] = []
        known: dict[str, bool] = {}  # a function that goes another way each time must not confuse the search

        def fails(case: Case) -> bool:
            key = repr(case)
            if key not in known:
                known[key] = self._failure(learner, case, seen) is not None
            return known[key]

        options = settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        set_hypothesis_home_dir(os.devnull)  # or it leaves files in the learner's folder
        try:
            smallest = find(cases, fails, settings=options, random=random.Random(rng.random()))
        except NoSuchExample:
            return
        finally:
            set_hypothesis_home_dir(None)
        what = f"{self.what}: different results for the same input."
        raise self._failure(learner, smallest, seen[:30], loosely=True) or wrong(what, given=self._given(smallest))

    def _given(self, case: Case) -> str:
        if self.given:
            return self.given(*case)
        bound = inspect.signature(self.right).bind(*case)
        bound.apply_defaults()
        return typed(**bound.arguments)

    def _failure(
        self, learner: Callable[..., Any], case: Case, seen: list[tuple[Case, Any]], loosely: bool = False
    ) -> CheckFailed | None:
        """What is wrong with this case; what the learner's function gave is added to `seen`."""
        given = self._given(case)
        right = self._outcome(self.right, case)
        arguments = deepcopy(case)
        try:
            with guard(given, passing=self.refuses):
                got = self.call(learner, *arguments)
        except CheckFailed as failure:
            return failure
        except self.refuses as error:
            seen.append((case, error))
            if self._same(error, right):
                return None
            return raised(error, given, self._likely(seen, loosely))
        if not unchanged(case, arguments):
            return wrong(
                "Your function changed what it was given.",
                given=given,
                got=typed(**dict(zip(inspect.signature(self.right).parameters, arguments))),
                expected="the same arguments as before",
                mistake="its caller still needs them: compute without changing them, or work on a copy.",
            )
        try:
            value = self.answer.read(got, self.what, given)
        except CheckFailed as failure:
            if not isinstance(right, self.refuses):
                return failure
            return wrong(f"{self.what}: this should be refused.", given=given, got=repr(got), expected=_error(right))
        seen.append((case, value))
        if self._same(value, right):
            return None
        mistake = self._likely(seen, loosely)
        shown = self.answer.show(value)
        if isinstance(right, self.refuses):
            what = f"{self.what}: this should be refused."
            return wrong(what, given=given, got=shown, expected=_error(right), mistake=mistake)
        return wrong(
            f"{self.what} came out wrong.",
            given=given,
            got=shown,
            expected=self.answer.show(right),
            mistake=mistake or self.answer.hint(value, right),
        )

    def _outcome(self, function: Callable[..., Any], case: Case) -> Any:
        """The value, or the error where that is an answer."""
        try:
            return function(*deepcopy(case))
        except self.refuses as error:
            return error

    def _same(self, got: Any, other: Any) -> bool:
        if isinstance(got, self.refuses) or isinstance(other, self.refuses):
            return isinstance(got, type(other))
        return self.answer.same(got, other)

    def _likely(self, seen: Sequence[tuple[Case, Any]], loosely: bool) -> str:
        """What the first mistake says that gives the same in all cases seen; `loosely`: or else in the last."""
        for cases in (seen, seen[-1:]) if loosely else (seen,):
            for mistake in self.mistakes:
                try:
                    fits = all(self._same(got, self._outcome(mistake.function, case)) for case, got in reversed(cases))
                except Exception:  # not a mistake to be made with these arguments
                    continue
                if fits:
                    return mistake.says if isinstance(mistake.says, str) else mistake.says(*cases[-1][0])
        return ""


def parts(
    *judges: Judge, which: int = 0, **cases: Callable[[random.Random], Iterable[Case]]
) -> list[Callable[..., None]]:
    """Parts of a Check by their names: cases that are drawn, and judged by each of the `judges`.

    which: of the learner's functions, where the check is given several.
    """

    def part(name: str, draw: Callable[[random.Random], Iterable[Case]]) -> Callable[..., None]:
        def look(*arguments: Any) -> None:
            drawn = list(draw(arguments[-1]))
            for judge in judges:
                judge(arguments[which], drawn)

        look.__name__ = name
        return look

    return [part(name, draw) for name, draw in cases.items()]


def judged(name: str, *judges: Judge, **cases: Callable[[random.Random], Iterable[Case]]) -> Check:
    """The check of a single function, made of parts as above."""
    return Check(name, parts(*judges, which=0, **cases))


def _error(error: Exception) -> str:
    return f"{type(error).__name__}{f': {error}' if str(error) else ''}"


def unchanged(before: Any, after: Any) -> bool:
    """Whether `after` is still what its copy `before` is, of the same types all through."""
    if type(before) is not type(after):
        return False
    if isinstance(before, dict):
        return unchanged(list(before.items()), list(after.items()))
    if isinstance(before, (list, tuple)):
        return len(before) == len(after) and all(map(unchanged, before, after))
    return before is after or not isinstance(before, (str, int, float, type(None))) or before == after
