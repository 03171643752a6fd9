"""Checks of the exercises: what was given, what came, what was expected, and the likely mistake.

A check is a list of parts; each looks at the learner's code from one side. In a learner's notebook the first part that
fails raises CheckFailed with its message. At marking (the environment variable SPECDEC_GRADING_SEED holds a seed) every
part runs, what failed is printed, and the value of the call is the points earned.
"""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

GRADING_SEED = "SPECDEC_GRADING_SEED"


class CheckFailed(AssertionError):
    """A part of a check failed; the text is for the learner."""

    by_inputs = True  # False where other inputs would say the same

    def _render_traceback_(self) -> list[str]:
        """IPython shows this in place of a traceback through our code."""
        return str(self).splitlines()


def wrong(what: str, *, given: Any = None, got: Any = None, expected: Any = None, mistake: str = "") -> CheckFailed:
    """The failure to raise: `what` in a sentence, the values, and the mistake that leads to it where it is known."""
    lines = [what]
    lines += [
        f"  {k:9} {_short(v)}" for k, v in [("given", given), ("got", got), ("expected", expected)] if v is not None
    ]
    if got is None and expected is not None:
        lines.insert(-1, "  got       None (is there a return?)")
    return CheckFailed("\n".join([*lines, *([f"  likely    {mistake}"] if mistake else [])]))


def _short(value: Any, width: int = 300) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= width else text[: width - 4] + " ..."


def _raised(error: Exception, given: Any = None) -> CheckFailed:
    """The failure to raise for an error of the learner's code, with the line of it."""
    where = [f for f in traceback.extract_tb(error.__traceback__) if "specdec_" not in f.filename]
    line = f", line {where[-1].lineno}: {where[-1].line}" if where else ""
    return wrong(f"your code raised {type(error).__name__}: {_short(str(error))}{line}", given=given)


@contextmanager
def telling(given: Any, passing: type[Exception] = CheckFailed) -> Iterator[None]:
    """While the learner's code runs: an error that it raises is shown with what was `given`, unless it is `passing`."""
    try:
        yield
    except (CheckFailed, NotImplementedError, passing):
        raise
    except Exception as error:  # whatever the learner's code raises
        raise _raised(error, given) from None


class Check:
    """A named check made of parts, each called with the learner's objects and a `random.Random`.

    A part returns where all is well and raises `wrong(...)` where not; what else it raises came from the learner's
    code and is shown as such. Parts are independent: each is tried at marking, and each is worth the same.
    """

    def __init__(self, name: str, parts: Sequence[Callable[..., None]]) -> None:
        self.name, self.parts = name, list(parts)

    def __call__(self, *learners: Any, points: float = 1, seed: int | None = None) -> float:
        """Check the learner's objects. Returns the points earned; raises CheckFailed outside marking.

        seed: of the inputs; drawn afresh where not given, and told where something fails.
        """
        marking = os.environ.get(GRADING_SEED)
        if seed is None:
            seed = int(marking) if marking else random.SystemRandom().randrange(10**6)
        failures = []
        for part in self.parts:
            failure = self._failure(part, learners, random.Random(f"{seed} {self.name} {part.__name__}"))
            if failure is None:
                continue
            if not marking and not failure.by_inputs:
                raise failure from None
            if not marking:
                again = f"add seed={seed} to this call, in a cell of your own, for the same inputs"
                raise CheckFailed(f"{failure}\n  again     {again}") from None
            failures.append(failure)
        for failure in failures:
            print(failure)
        if not failures:
            print(f"{self.name}: right.")
        earned = points * (len(self.parts) - len(failures)) / len(self.parts)
        return round(earned, 2)

    def _failure(self, part: Callable[..., None], learners: Sequence[Any], rng: random.Random) -> CheckFailed | None:
        for learner in learners:
            if getattr(learner, "__module__", None) and str(learner.__module__).startswith(
                ("specdec_ref", "specdec_course")
            ):
                return wrong(f"{self.name}: this is the package's own {learner.__name__}; write yours.")
        try:
            part(*learners, rng)
        except CheckFailed as failure:
            return CheckFailed(f"{self.name}: {failure}")
        except NotImplementedError as error:
            unwritten = CheckFailed(f"{self.name}: not written yet ({_short(str(error), 80)})")
            unwritten.by_inputs = False
            return unwritten
        except Exception as error:  # whatever the learner's code raises
            return CheckFailed(f"{self.name}: {_raised(error)}")
        return None
