"""Looks over a submission's own code, without running it: what an instructor should read before trusting its marks."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec_course.grading.submission import Cell, graded

# Names with which code can reach past its own task. Seldom needed in an exercise, so a human looks.
# fmt: off
FAR_NAMES = {
    "__import__", "importlib", "gc", "inspect", "builtins", "__builtins__", "subprocess", "socket", "multiprocessing",
    "threading", "_thread", "signal", "get_ipython", "eval", "exec", "compile", "open", "setattr", "delattr", "vars",
    "globals", "atexit", "weakref",
}
FAR_ATTRIBUTES = {
    "modules", "environ", "getenv", "_exit", "fork", "kill", "system", "getoutput", "__dict__", "__class__",
}
FAR_IN_OS = {"read", "write", "dup", "dup2", "open", "close", "pipe", "abort", "killpg", "waitpid", "putenv", "popen"}
# What an exercise has no use for but to reach the grading itself: tests after it give no points, a human decides.
GRADING_NAMES = {"ctypes"}
EQUAL_TO_ALL = {"unittest.mock", "mock", "pytest"}  # modules with objects that equal whatever they are compared with
GRADING_ATTRIBUTES = {
    "_getframe", "_current_frames", "settrace", "setprofile", "__globals__", "__subclasses__", "__code__",
    "__closure__", "f_globals", "f_locals", "f_back", "tb_frame", "gi_frame", "cell_contents", "get_objects",
    "get_referrers", "get_referents", "register_at_fork", "ast_transformers", "set_custom_exc", "addaudithook",
}
# fmt: on
OURS = ("specdec_ref", "specdec_course")


@dataclass
class Review:
    """What was found in the code of a submission."""

    look: list[str] = field(default_factory=list)  # what a human has to look at
    notes: list[str] = field(default_factory=list)  # what nobody has to act on
    reaching: dict[int, str] = field(default_factory=dict)  # cells that reach for the grading, and with what


def review(cells: Sequence[Cell], source: Any, released: Any) -> Review:
    """Look over the learner's cells. source, released: the instructor's and the learners' notebook (nbformat)."""
    wanted = {c.metadata.nbgrader.grade_id: c for c in source.cells if graded(c)}
    handed_out = {c.source.strip() for c in released.cells}
    tools = _tools(wanted)
    result = Review()
    answers: dict[str, str] = {}  # names bound in answer cells so far -> the cell
    for index, cell in enumerate(cells):
        kind = graded(wanted[cell.grade_id]) if cell.grade_id in wanted else ""
        where = cell.grade_id or f"cell {index + 1}"
        if cell.kind != "code":
            continue
        tree = syntax_tree(cell.source)
        if tree is None:
            if kind == "solve":
                result.look.append(f"{where}: not valid Python")
            continue
        bound = _bound(tree)
        for name in sorted(bound & set(answers)):
            if answers[name] != where:
                result.notes.append(f"{name}: bound in {answers[name]}, again in {where}; the better of both counts")
        if kind in ("test", "locked") or cell.source.strip() in handed_out:
            continue
        if kind == "solve":
            answers |= dict.fromkeys(bound, where)
        _look_at(tree, where, tools, kind, "get_ipython" in cell.source, result)
        if what := _reaching(tree):
            result.reaching[index] = ", ".join(what)
            result.look.append(f"{where}: reaches for the grading ({', '.join(what)}); its tests are left to you")
    return result


def _tools(wanted: dict[str, Any]) -> set[str]:
    """Names that the given cells import and the tests use."""
    trees = {kind: [] for kind in ("locked", "test")}  # type: dict[str, list[ast.Module]]
    for cell in wanted.values():
        if cell.cell_type == "code" and graded(cell) in trees and (tree := syntax_tree(cell.source)):
            trees[graded(cell)].append(tree)
    imported = {n for tree in trees["locked"] for n in _bound(tree, (ast.Import, ast.ImportFrom))}
    return imported & {n.id for tree in trees["test"] for n in ast.walk(tree) if isinstance(n, ast.Name)}


def _look_at(tree: ast.Module, where: str, tools: set[str], kind: str, ipython: bool, result: Review) -> None:
    nodes = list(ast.walk(tree))
    modules = [getattr(n, "module", "") or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    modules += [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    for module in sorted({m for m in modules if m.split(".")[0] in OURS}):
        result.look.append(f"{where}: imports {module}; is the reference the answer?")
    names = {n.id for n in nodes if isinstance(n, ast.Name)}
    attributes = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    words = [str(n.value) for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, (str, bytes))]
    far = FAR_NAMES & (names | {m.split(".")[0] for m in modules}) | FAR_ATTRIBUTES & attributes
    far |= {f"os.{n.attr}" for n in nodes if isinstance(n, ast.Attribute) and _root(n) == "os" and n.attr in FAR_IN_OS}
    if not ipython:  # that was a magic
        far.discard("get_ipython")
    if any("specdec_" in w or "SPECDEC_" in w for w in words):
        far.add("the name of the package as text")
    if kind == "solve" and tools & names:
        far |= tools & names
    if any(isinstance(n, ast.Call) and _is_computed_getattr(n) for n in nodes):
        far.add("getattr with a computed name")
    if far:
        result.look.append(f"{where}: uses {', '.join(sorted(far))}")
    replaced = {_dotted(t) for n in nodes for t in _targets(n) if isinstance(t, ast.Attribute) and _root(t) in tools}
    imported = {n for s in nodes if isinstance(s, (ast.Import, ast.ImportFrom)) for n in _bound(ast.Module([s], []))}
    replaced |= {
        _dotted(t) for n in nodes for t in _targets(n) if isinstance(t, ast.Attribute) and _root(t) in imported
    }
    if replaced:
        result.look.append(f"{where}: assigns to {', '.join(sorted(replaced))}")
    if again := sorted(tools & _bound(tree)):
        result.look.append(f"{where}: binds {', '.join(again)}, which the tests use; they get the given one")
    if deciding := sorted({m for n in nodes if isinstance(n, ast.ClassDef) for m in _deciding(n)}):
        result.look.append(f"{where}: a class with {', '.join(deciding)}")


def _deciding(node: ast.ClassDef) -> list[str]:
    decide = {"__eq__", "__ne__", "__hash__", "__bool__", "__sub__", "__rsub__", "__abs__", "__getattribute__"}
    return [s.name for s in node.body if isinstance(s, ast.FunctionDef) and s.name in decide]


def _reaching(tree: ast.Module) -> list[str]:
    found = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)} & GRADING_ATTRIBUTES
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= EQUAL_TO_ALL & {node.module or "", *(f"{node.module}.{a.name}" for a in node.names)}
            found |= GRADING_ATTRIBUTES & {a.name for a in node.names}
            found |= GRADING_NAMES & {(node.module or "").split(".")[0]}
        elif isinstance(node, ast.Import):
            found |= GRADING_NAMES & {a.name.split(".")[0] for a in node.names}
            found |= EQUAL_TO_ALL & {a.name for a in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= GRADING_ATTRIBUTES & {node.value}
    return sorted(found)


def _is_computed_getattr(call: ast.Call) -> bool:
    is_getattr = isinstance(call.func, ast.Name) and call.func.id == "getattr"
    return is_getattr and len(call.args) > 1 and not isinstance(call.args[1], ast.Constant)


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [t for target in node.targets for t in getattr(target, "elts", [target])]
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        return [node.target]
    return list(node.targets) if isinstance(node, ast.Delete) else []


def _root(target: ast.expr) -> str:
    while isinstance(target, (ast.Attribute, ast.Subscript)):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def _dotted(target: ast.expr) -> str:
    return ast.unparse(target)[:60]


def syntax_tree(source: str) -> ast.Module | None:
    """A cell's syntax tree, its magics and shell lines translated; None where it is no Python."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        return ast.parse(TransformerManager().transform_cell(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _bound(tree: ast.Module, kinds: tuple[type[ast.stmt], ...] = (ast.stmt,)) -> set[str]:
    """Names that the statements of these kinds bind at the top level of a cell."""
    names: set[str] = set()
    for statement in (s for s in tree.body if isinstance(s, kinds)):
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            names |= {(a.asname or a.name).split(".")[0] for a in statement.names}
        elif isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            names.add(statement.name)
        else:
            stores = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            names |= {n.id for n in stores}
    return names
