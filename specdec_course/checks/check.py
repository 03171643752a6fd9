"""A check of a learner's code: its parts, how it is run and marked, and how a failure reads; a lesson's blank."""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

GRADING_SEED = "SPECDEC_GRADING_SEED"
PACKAGES = ("specdec_ref", "specdec_course")


class CheckFailed(AssertionError):
    """A part of a check failed; the text is for the learner."""

    def _render_traceback_(self) -> list[str]:
        """IPython shows this in place of a traceback through our code."""
        return str(self).splitlines()


def wrong(what: str, *, given: Any = None, got: Any = None, expected: Any = None, mistake: str = "") -> CheckFailed:
    """The failure to raise: `what` in a sentence, the values, and the mistake that leads to it where it is known."""
    if got is None and expected is not None:
        got = "None (is there a return?)"
    rows = [("given", given), ("got", got), ("expected", expected), ("likely", mistake or None)]
    width = {"given": 1_200}  # code to paste, whose last line is the call
    shown = [f"  {name:9} {_short(value, width.get(name, 300))}" for name, value in rows if value is not None]
    return CheckFailed("\n".join([what, *shown]))


def _short(value: Any, width: int = 300) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= width else text[: width - 4] + " ..."


def raised(error: Exception, given: Any = None, mistake: str = "") -> CheckFailed:
    """The failure to raise for an error of the learner's code, with its line."""
    where = [f for f in traceback.extract_tb(error.__traceback__) if not any(p in f.filename for p in PACKAGES)]
    line = f", line {where[-1].lineno}: {where[-1].line}" if where else ""
    return wrong(f"your code raised {type(error).__name__}: {_short(str(error))}{line}", given=given, mistake=mistake)


@contextmanager
def guard(given: Any, passing: type[Exception] | tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """While the learner's code runs: an error that it raises is shown with what was `given`, unless it is `passing`."""
    try:
        yield
    except (CheckFailed, NotImplementedError):
        raise
    except Exception as error:  # whatever the learner's code raises
        if isinstance(error, passing):
            raise
        raise raised(error, given) from None


class Check:
    """A named check made of parts, each called with the learner's objects and a `random.Random`.

    A part returns where all is well and raises `wrong(...)` where not; what else it raises came from the learner's
    code and is shown as such. Parts are independent: each is tried at marking, and each is worth the same.
    """

    def __init__(self, name: str, parts: Sequence[Callable[..., None]]) -> None:
        self.name, self.parts = name, list(parts)

    def __call__(self, *learners: Any, points: float = 1, seed: int | None = None) -> float:
        """Check the learner's objects. Returns the points earned; raises CheckFailed outside marking.

        seed: of the inputs; drawn afresh where not given, and printed where something fails.
        """
        marking = os.environ.get(GRADING_SEED)
        if seed is None:
            seed = int(marking) if marking else random.SystemRandom().randrange(10**6)
        failures = []
        for part in self.parts:
            failure, by_inputs = self._failure(part, learners, random.Random(f"{seed} {self.name} {part.__name__}"))
            if failure and not marking:
                again = f"\n  again     add seed={seed} to this call, in a cell of your own, for the same inputs"
                raise CheckFailed(failure + again * by_inputs) from None
            failures += [failure] if failure else []
        print("\n".join(failures) or f"{self.name}: right.")
        return round(points * (len(self.parts) - len(failures)) / len(self.parts), 2)

    def _failure(self, part: Callable[..., None], learners: Sequence[Any], rng: random.Random) -> tuple[str, bool]:
        """What to say of this part, "" where it holds, and whether it depends on the inputs."""
        for learner in learners:
            if str(getattr(learner, "__module__", "")).startswith(PACKAGES):
                name = getattr(learner, "__name__", type(learner).__name__)
                return f"{self.name}: this is the package's own function {name}; write yours.", False
        try:
            part(*learners, rng)
        except CheckFailed as failure:
            return f"{self.name}: {failure}", True
        except NotImplementedError as error:
            return f"{self.name}: not written yet ({_short(str(error), 80)})", False
        except Exception as error:  # whatever the learner's code raises
            return f"{self.name}: {raised(error)}", True
        return "", True


@dataclass(frozen=True)
class Blank:
    """What a lesson leaves blank: the `check` of a function, and a `solution` that needs nothing of the lesson."""

    check: Check
    solution: Callable[..., Any]
