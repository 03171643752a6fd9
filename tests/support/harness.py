"""Marks of a solution, without a kernel: the instructor's notebook with some cells replaced, run in this process."""

from __future__ import annotations

import ast
import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest import mock

import nbformat

from specdec_course.checks import Check
from support.paths import ROOT


@dataclass(frozen=True)
class Wrong:
    """A wrong solution: the cells that differ, the test cells that must lose marks, and what the message must say."""

    name: str
    cells: dict[str, str]  # "residual" -> the code of the cell solve-residual
    loses: tuple[str, ...]  # ("residual",): test cells that must not give full points; all others must
    says: str = ""  # a regular expression that names the mistake, searched in what the losing cells print
    parts: str = ""  # names of the parts that must fail, and no others; "name?" fails with some inputs only


def parts_as_they_should(wrong: Wrong, failed: set[str]) -> bool:
    """Whether just the named parts failed, and perhaps some of those with a question mark."""
    must = {name for name in wrong.parts.split() if not name.endswith("?")}
    may = {name.rstrip("?") for name in wrong.parts.split()}
    return must <= failed <= may


@dataclass
class Marks:
    earned: dict[str, float] = field(default_factory=dict)
    points: dict[str, float] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)  # names of parts


def problem_sets() -> list[str]:
    return sorted(p.stem for p in (ROOT / "solutions").glob("ps*/ps*.ipynb"))


def marks(name: str, cells: dict[str, str], stub: bool = False) -> Marks:
    """Run problem set `name` with `cells` in place of the solution's, or as released (`stub`)."""
    folder = "exercises" if stub else "solutions"
    notebook = nbformat.read(ROOT / folder / name / f"{name}.ipynb", as_version=4)
    known = {c.metadata.nbgrader.grade_id for c in notebook.cells if "nbgrader" in c.metadata}
    assert {f"solve-{k}" for k in cells} <= known, f"{name} has no {sorted(set(cells) - known)}"
    result, namespace = Marks(), {"__name__": "submission"}
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        info = cell.metadata.get("nbgrader", {})
        kind, _, key = info.get("grade_id", "").partition("-")
        source = cells.get(key, cell.source) if kind == "solve" else cell.source
        out = io.StringIO()
        with contextlib.redirect_stdout(out), _parts_noted(result.failed):
            may_fail = stub or kind in ("solve", "test") or "raises-exception" in cell.metadata.get("tags", [])
            value = _run(source, namespace, forgiving=may_fail)
        if kind == "test":
            result.points[key] = info["points"]
            result.earned[key] = value if isinstance(value, (int, float)) else 0
            result.printed[key] = out.getvalue()
    return result


@contextlib.contextmanager
def _parts_noted(failed: set[str]) -> Iterator[None]:
    """Adds the parts of checks that fail meanwhile to `failed`."""
    judge = Check._failure

    def noted(check: Check, part: Callable[..., None], learners: Sequence[Any], rng: Random) -> tuple[str, bool]:
        failure, by_inputs = judge(check, part, learners, rng)
        failed.update([part.__name__.strip("_").replace(" ", "_")] if failure else [])
        return failure, by_inputs

    with mock.patch.object(Check, "_failure", noted):
        yield


def _run(source: str, namespace: dict, forgiving: bool) -> object:
    """Run a cell; the value of its last expression. An error counts as no value where `forgiving`."""
    tree = ast.parse(source)
    last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    try:
        exec(compile(tree, "<cell>", "exec"), namespace)
        return eval(compile(last, "<cell>", "eval"), namespace) if last else None
    except Exception as error:
        if not forgiving:
            raise
        print(f"{type(error).__name__}: {error}")
        return None
