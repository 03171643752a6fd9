"""Twelve honest learners with odd habits: what each did to the notebook, and the marks that they have earned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nbformat import NotebookNode

from support.grading_course import PERFECT, cell, code, copied, position

FULL = {"test-acceptance": 8, "test-mean": 8, "written-why": "to be marked"}


@dataclass(frozen=True)
class Learner:
    """What a learner handed in, and what must come of it."""

    change: Callable[[NotebookNode], None]
    answers: dict[str, str | None] = field(default_factory=dict)  # in place of the perfect ones; None: left as it was
    expected: dict[str, float | str] = field(default_factory=lambda: FULL)
    look: str = ""  # what an instructor reads; nothing where empty
    answer: str = PERFECT["why"]  # the text in the list of written answers


def nothing(notebook: NotebookNode) -> None:
    """The answers alone are odd."""


def last(source: str) -> Callable[[NotebookNode], None]:
    return lambda notebook: notebook.cells.append(code(source))


def first(source: str) -> Callable[[NotebookNode], None]:
    return lambda notebook: notebook.cells.insert(0, code(source))


def answered_below(notebook: NotebookNode) -> None:
    """The stub stays, the answer is in a cell of its own after it."""
    at = position(notebook, "written-why")
    answer = copied(notebook.cells[at])
    answer.metadata, answer.source = type(answer.metadata)(), "Because min(p, q) is at most p."
    notebook.cells.insert(at + 1, answer)


def answered_anew(notebook: NotebookNode) -> None:
    """The cell was deleted and typed again."""
    answered_below(notebook)
    del notebook.cells[position(notebook, "written-why")]


def answered_in_code(notebook: NotebookNode) -> None:
    """Words in a code cell, as its menu was not seen."""
    notebook.cells.insert(position(notebook, "written-why"), code("Because the smaller of both is never above p"))


def helper_at_the_bottom(notebook: NotebookNode) -> None:
    notebook.cells.append(code("def smaller(a, b):\n    return min(a, b)"))


def names_of_all_kinds(notebook: NotebookNode) -> None:
    notebook.cells.append(code("mean = sum([1, 2]) / 2\nacceptance = checks = law = None"))


STATE = """
import gc, random, sys, traceback, warnings, inspect
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
import numpy as np
sys.path.append("/tmp")
warnings.simplefilter("ignore")
np.set_printoptions(precision=3)
random.seed(1)
gc.collect()
@dataclass(order=True)
class Draft:
    token: int
class Batch(list):
    pass
Pair = namedtuple("Pair", "p q")
pool = ThreadPoolExecutor(2)  # and it stays open
print(sorted([Draft(2), Draft(1)]), list(pool.map(abs, Batch([-1]))), Pair(1, 2), inspect.signature(sorted))
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
"""
LEARNERS = {
    "helpers named as given cells name their numbers": Learner(
        nothing,
        {
            "acceptance": "def price(a, b):\n    return min(a, b)\n"
            "def acceptance(p, q):\n    return sum(map(price, p, q))",
            "mean": "def speed(x):\n    return len(x)\ndef check(x):\n    return sum(x)\ndef law(x):\n    return x\n"
            "def mean(values):\n    return law(check(values) / speed(values))",
        },
    ),
    "answers bound anew in a scratch cell": Learner(names_of_all_kinds, look="binds checks"),
    "a helper below all else": Learner(
        helper_at_the_bottom, {"acceptance": "def acceptance(p, q):\n    return sum(map(smaller, p, q))"}
    ),
    "answered in a cell below": Learner(answered_below, {"why": None}, answer="Because min(p, q) is at most p."),
    "answered in a cell typed anew": Learner(answered_anew, {"why": None}, answer="Because min(p, q) is at most p."),
    "answered in a code cell": Learner(
        answered_in_code, {"why": None}, answer="Because the smaller of both is never above p"
    ),
    "input in a scratch cell": Learner(first('n = int(input("how many? "))'), look="cell 1: waits for input()"),
    "input that can do without": Learner(
        nothing,
        {
            "mean": "try:\n    digits = int(input('digits? '))\nexcept EOFError:\n    digits = 12\n"
            "def mean(values):\n    return round(sum(values) / len(values), digits)"
        },
        look="solve-mean: waits for input()",
    ),
    "input that an answer needs": Learner(
        nothing,
        {"mean": "n = int(input('n? '))\ndef mean(values):\n    return sum(values) / len(values)"},
        {**FULL, "test-mean": "not marked"},
        look="test-mean: no zero, as the submission waits for input()",
    ),
    "numbers from numpy, callables of all kinds": Learner(
        nothing,
        {
            "acceptance": "import numpy as np\nfrom functools import partial\n"
            "acceptance = partial(lambda f, p, q: f(np.array(p), np.array(q)).sum(), np.minimum)",
            "mean": "class Mean:\n    def __call__(self, values):\n        import statistics\n"
            "        return statistics.fmean(values)\nmean = Mean()",
        },
    ),
    "state, threads, magics": Learner(
        lambda notebook: (first(STATE)(notebook), last("%timeit -n1 -r1 mean([1])\n!true")(notebook)),
        look="uses gc, inspect",
    ),
    "split, copied, out of order": Learner(
        lambda notebook: (
            notebook.cells.append(copied(cell(notebook, "test-mean"))),
            notebook.cells.append(notebook.cells.pop(position(notebook, "solve-acceptance"))),
        )
    ),
}
FAST = ["helpers named as given cells name their numbers", "answers bound anew in a scratch cell"]
FAST += ["answered in a cell below", "input in a scratch cell", "state, threads, magics"]
