"""Planted bugs, and the suites that have to find them.

A mutant is an edit of the production code, shown as the lines that change: bugs that people really made. `planted`
swaps it in for the length of a `with` block, `kill` says which check notices. One that lives is a missing test.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any, NamedTuple

from specdec_ref.proof.exact import TOLERANCE, Check, core_checks
from specdec_ref.proof.mutant_list import MUTANTS, Edit, Mutant
from specdec_ref.proof.statistical import SIZE, StatisticalCheck, suite

__all__ = ["MUTANTS", "Edit", "Kill", "Mutant", "kill", "planted", "report"]


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The production code with this bug in it, until the block ends.

    Raises ValueError where the text to change is not there, or not once: then the code has moved on, and the mutant
    has to follow it.
    """
    with ExitStack() as stack:
        for edit in mutant.edits:
            stack.enter_context(_edited(edit))
        yield


@contextmanager
def _edited(edit: Edit) -> Iterator[None]:
    function = find(edit.function)
    before = function.__code__
    function.__code__ = _compiled(function, edit)
    try:
        yield
    finally:
        function.__code__ = before


def find(name: str) -> Any:
    """The plain function that "package.module:Class.method" names."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return inspect.unwrap(found)


def _compiled(function: Any, edit: Edit) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in edit.changes:
        if source.count(old) != 1:
            raise ValueError(f"{edit.function} holds {source.count(old)} times, instead of once: {old}")
        source = source.replace(old, new)
    tree = ast.parse(source)
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []  # they wrap the function that is edited, and stay as they are
    scope: dict[str, Any] = {}
    exec(compile(tree, f"<{edit.function}>", "exec", flags=_ANNOTATIONS), dict(function.__globals__), scope)
    return scope[definition.name].__code__


_ANNOTATIONS = __future__.annotations.compiler_flag


class Kill(NamedTuple):
    """The suite ("exact" or "statistical") and the check that noticed, and what it saw."""

    suite: str
    check: str
    seen: str


def kill(
    mutant: Mutant,
    exact: Callable[[], Sequence[Check]] = core_checks,
    statistical: Callable[[], Sequence[StatisticalCheck]] = suite,
) -> Kill | None:
    """The first check that finds the mutant; None if it lives. The exact checks come first, they see more for less."""
    with planted(mutant):
        for check in exact():
            try:
                deviation = check.deviation()
            except Exception as error:
                return Kill("exact", check.name, f"{type(error).__name__}: {str(error)[:60]}")
            if not deviation <= TOLERANCE:
                return Kill("exact", check.name, f"off by {deviation:.2g}")
    for sampled in (checks := statistical()):
        with planted(mutant):
            p_value = sampled.test().p_value
        if p_value < SIZE / len(checks):
            return Kill("statistical", sampled.name, f"p-value {p_value:.1g}")
    return None


def report(mutants: Sequence[Mutant] = tuple(MUTANTS)) -> str:
    """A table, in Markdown: each mutant, what kills it, and what was seen. Takes about a minute."""
    lines = ["| mutant | killed by | check | seen |", "|---|---|---|---|"]
    for mutant in mutants:
        by = kill(mutant) or Kill("nobody", "", "")
        lines.append(f"| {mutant.name} | {by.suite} | {by.check} | {by.seen} |")
    return "\n".join(lines)
