"""Runs a part of a lesson with something changed in it, to show that a demonstration which shows nothing fails."""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import os
from collections.abc import Iterator
from typing import Any

import pytest
from build_lessons import LESSONS, read_source
from IPython.display import display


def lesson_error(name: str, old: str, new: str, at: str = "") -> Exception:
    """What the lesson raises where `old`, which stands in it once, is `new`; the test fails if it raises nothing.

    name: of the source, "05_engine". Only two sorts of cells run: the one with `at` (without `at`, the one with `old`),
    and those before it that make what it needs.
    """
    cells = [c.source for c in read_source(LESSONS / "src" / f"{name}.py").cells if c.cell_type == "code"]
    where = _only(cells, old)
    target = _only(cells, at) if at else where
    assert target >= where, "the cell that is to fail stands before the one that is changed"
    cells[where] = cells[where].replace(old, new)
    chosen = needed(cells, target)
    assert where in chosen, "the cell that is to fail does not need the one that is changed"
    namespace: dict[str, Any] = {"__name__": "__main__", "display": display}
    with _in_the_lessons_folder(), contextlib.redirect_stdout(io.StringIO()):
        for i in chosen:
            file = f"<{name}, cell {i + 1}>"
            linecache.cache[file] = (len(cells[i]), None, cells[i].splitlines(keepends=True), file)
            try:
                exec(compile(cells[i], file, "exec"), namespace)
            except Exception as error:
                return error
    pytest.fail(f"{name}: nothing fails with {new!r} in place of {old!r}")


def needed(cells: list[str], target: int) -> list[int]:
    """The cells up to `target` that make what it uses, directly or through others, in order."""
    chosen, wanted = [target], _names(cells[target])[0]
    for i in range(target - 1, -1, -1):
        uses, makes = _names(cells[i])
        if makes & wanted:
            chosen.append(i)
            wanted |= uses
    return chosen[::-1]


def _names(source: str) -> tuple[set[str], set[str]]:
    """Names that a cell uses, and those that it makes or changes: assigned to, or called by a statement `name.f()`."""
    uses, makes = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (uses if isinstance(node.ctx, ast.Load) else makes).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            makes.add(node.name)
        elif isinstance(node, ast.alias):
            makes.add((node.asname or node.name).split(".")[0])
        changed = None
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            changed = node
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            changed = node.value.func
        while isinstance(changed, (ast.Attribute, ast.Subscript)):
            changed = changed.value
            if isinstance(changed, ast.Name):
                makes.add(changed.id)
    return uses, makes


def _only(cells: list[str], text: str) -> int:
    found = [i for i, cell in enumerate(cells) for _ in range(cell.count(text))]
    assert len(found) == 1, f"{text!r} stands {len(found)} times in the lesson's code, not once"
    return found[0]


@contextlib.contextmanager
def _in_the_lessons_folder() -> Iterator[None]:
    before = os.getcwd()
    os.chdir(LESSONS)
    try:
        yield
    finally:
        os.chdir(before)
