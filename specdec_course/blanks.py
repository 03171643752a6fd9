"""Blanks of the lessons: functions that the learner writes, checked at once, with ours to go on with meanwhile.

Those of lesson NN are in `specdec_course/checks/lessonNN.py`, in a dict `BLANKS` from a name to its `Blank`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from specdec_course.checks import Blank, CheckFailed

Function = TypeVar("Function", bound=Callable[..., Any])


def blanks(lesson: str) -> dict[str, Blank]:
    """The blanks of a lesson by name. Raises KeyError for a lesson that has none."""
    module = f"specdec_course.checks.lesson{lesson}"
    try:
        return importlib.import_module(module).BLANKS
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise KeyError(f"lesson {lesson} has no blanks") from None


def blank(name: str, function: Function, seed: int | None = None) -> Function:
    """Check what the learner wrote into a blank, such as "03 slot", and say what came of it.

    Returns the learner's function where it is right, our solution where it is not yet, so that the lesson goes on.
    seed: of the inputs, to have the same again; drawn afresh where not given. Raises KeyError for an unknown name.
    """
    asked = _find(name)
    try:
        if function is asked.solution or _is_empty(function):
            raise CheckFailed(f"{asked.check.name}: not written yet")
        asked.check(function, seed=seed)
    except CheckFailed as failure:
        print(f"{failure}\nThe lesson goes on with our solution until yours is right.")
        return asked.solution  # type: ignore[return-value]
    return function


def solution(name: str) -> None:
    """Print our solution of a blank, as a last resort. Raises KeyError for an unknown name."""
    print(inspect.getsource(_find(name).solution))


def _find(name: str) -> Blank:
    lesson, _, short = name.partition(" ")
    found = blanks(lesson)
    if short not in found:
        raise KeyError(f"lesson {lesson} has no blank {short!r}: there are {', '.join(found)}")
    return found[short]


def _is_empty(function: Callable[..., Any]) -> bool:
    """Whether the body is `...` or `pass`, with or without a docstring."""

    def bare() -> None: ...

    def described() -> None:
        """Nothing."""

    code = getattr(function, "__code__", None)
    return code is not None and code.co_code in (bare.__code__.co_code, described.__code__.co_code)
