"""One submitted notebook: read whatever its state, its tests and given cells restored, its code looked over.

Nothing here runs a line of it. Of a submission only the cells' types, sources and grade ids are taken; outputs, points,
locks and kernels in the file count for nothing.
"""

from __future__ import annotations

import ast
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_BYTES = 30 << 20
CODE_KINDS = ("code", "markdown", "raw")
# Names with which code can reach past its own task. Seldom needed in an exercise, so that a human looks.
# fmt: off
REACHING = {
    "__import__", "importlib", "ctypes", "gc", "inspect", "builtins", "__builtins__", "subprocess", "socket",
    "multiprocessing", "threading", "signal", "get_ipython", "eval", "exec", "compile", "open", "setattr",
}
REACHING_ATTRIBUTES = {
    "_getframe", "settrace", "setprofile", "modules", "environ", "_exit", "fork", "kill", "__globals__",
    "__subclasses__", "__code__", "__closure__", "f_globals", "f_locals", "system", "getoutput",
    "ast_transformers", "set_custom_exc",
}
# fmt: on


class Unreadable(ValueError):
    """A file that is no notebook; the text says what it is instead."""


@dataclass
class Cell:
    """A cell of a submission: what of it counts."""

    kind: str  # "code", "markdown", "raw"
    source: str
    grade_id: str = ""


@dataclass
class Restored:
    """A submission as it will be marked."""

    cells: list[Cell]
    notes: list[str] = field(default_factory=list)  # what was mended; nobody has to act
    look: list[str] = field(default_factory=list)  # what a human has to look at


def read(path: Path) -> tuple[list[Cell], list[str]]:
    """The cells of a submitted notebook, and what was odd about the file. Raises Unreadable."""
    info = os.lstat(path)
    if not stat.S_ISREG(info.st_mode):
        raise Unreadable("not an ordinary file (a link?): not opened")
    if info.st_size > MAX_BYTES:
        raise Unreadable(f"a file of {info.st_size >> 20} MB; at most {MAX_BYTES >> 20} MB are read")
    return parse(path.read_bytes())


def parse(data: bytes) -> tuple[list[Cell], list[str]]:
    """The cells in a notebook's bytes, and what was odd about them. Raises Unreadable."""
    if not data.strip(b"\0 \r\n\t"):
        raise Unreadable("an empty file")
    text, notes = _decode(data)
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError) as error:
        at_the_end = getattr(error, "pos", 0) >= len(text.rstrip()) or not text.rstrip().endswith("}")
        cut = text.lstrip().startswith("{") and at_the_end
        raise Unreadable("a notebook that is cut off" if cut else f"no notebook: {str(error)[:80]}") from None
    if not isinstance(notebook, dict):
        raise Unreadable("no notebook: JSON of another kind")
    version = notebook.get("nbformat")
    if version == 4:
        cells = notebook.get("cells")
    elif version == 3:
        cells = [c for sheet in _listed(notebook.get("worksheets")) for c in _listed(_get(sheet, "cells"))]
        notes.append("an old notebook format (3), read all the same")
    else:
        raise Unreadable(
            f"notebook format {str(version)[:20]}, which is not known here: save it again with JupyterLab 4"
        )
    if not isinstance(cells, list):
        raise Unreadable("a notebook without cells")
    kernel = _get(_get(_get(notebook, "metadata"), "kernelspec"), "name")
    if kernel not in (None, "python3"):
        notes.append(f"made with the kernel {str(kernel)[:40]!r}, run with Python 3")
    read_cells = list(filter(None, map(_cell, cells)))
    if not read_cells:
        raise Unreadable("a notebook without cells")
    return read_cells, notes


def _decode(data: bytes) -> tuple[str, list[str]]:
    for mark, encoding in ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig")):
        if data.startswith(mark):
            try:
                return data.decode(encoding), [f"saved as {encoding}, read all the same"]
            except UnicodeDecodeError:
                break
    try:
        return data.decode("utf-8"), []
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace"), ["not saved as UTF-8, read as Windows-1252"]


def _get(mapping: Any, key: str) -> Any:
    return mapping.get(key) if isinstance(mapping, dict) else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _cell(raw: Any) -> Cell | None:
    """A cell from whatever stands in its place in the file."""
    if not isinstance(raw, dict):
        return None
    kind = "markdown" if raw.get("cell_type") == "heading" else raw.get("cell_type")
    source = raw.get("source", raw.get("input", ""))
    source = "".join(map(str, source)) if isinstance(source, list) else str(source)
    grade_id = _get(_get(raw.get("metadata"), "nbgrader"), "grade_id")
    source = source.encode("utf-8", errors="replace").decode("utf-8")  # halves of surrogate pairs
    return Cell(kind if kind in CODE_KINDS else "raw", source, grade_id if isinstance(grade_id, str) else "")


def graded(cell: Any) -> str:
    """What a cell of the instructor's notebook is: "solve", "written", "test", "locked", or "" for any other."""
    info = cell.metadata.get("nbgrader", {})
    if info.get("solution"):
        return "written" if info.get("grade") else "solve"
    return "test" if info.get("grade") else "locked" if info.get("locked") else ""


def restore(submitted: Sequence[Cell], source: Any, released: Any) -> Restored:
    """Bring a submission into the shape of the problem set: every test and given cell once, as the instructor wrote it.

    source, released: the instructor's and the learners' notebook (nbformat). Cells that were split or copied keep all
    their code; only one of them keeps the id. Cells that were deleted come back at their place.
    """
    wanted = {c.metadata.nbgrader.grade_id: c for c in source.cells if graded(c)}
    stubs = {c.metadata.nbgrader.grade_id: c for c in released.cells if graded(c)}
    result = Restored([])
    last = {c.grade_id: i for i, c in enumerate(submitted) if c.grade_id in wanted}
    for i, cell in enumerate(submitted):
        true = wanted.get(cell.grade_id)
        if true is None:
            result.cells.append(Cell(cell.kind, cell.source))
            continue
        kind, name = graded(true), cell.grade_id
        if i != last[name]:
            result.notes.append(f"{name}: there twice (split or copied)")
            if kind == "solve":
                result.cells.append(Cell("code", cell.source))
            elif kind == "written":
                # What is read by a human is put together, so that no part of an answer is lost.
                keeper = submitted[last[name]]
                if cell.source.strip() not in (keeper.source.strip(), stubs[name].source.strip()):
                    keeper.source = f"{cell.source}\n\n{keeper.source}"
            continue
        if kind in ("test", "locked"):
            if cell.source.strip() != true.source.strip():
                result.notes.append(f"{name}: changed, restored")
            cell = Cell(true.cell_type, true.source, name)
        elif cell.kind != true.cell_type:
            result.notes.append(f"{name}: its type was changed")
            cell = Cell(true.cell_type, cell.source, name)
        result.cells.append(cell)
    _insert_missing(result, wanted, stubs)
    result.look += list(suspicions(result.cells, wanted, released))
    return result


def _insert_missing(result: Restored, wanted: dict[str, Any], stubs: dict[str, Any]) -> None:
    before = ""
    for name, true in wanted.items():
        if all(c.grade_id != name for c in result.cells):
            kind = graded(true)
            origin = true if kind in ("test", "locked") else stubs[name]
            at = next((i + 1 for i, c in enumerate(result.cells) if before and c.grade_id == before), 0)
            result.cells.insert(at, Cell(origin.cell_type, origin.source, name))
            result.notes.append(f"{name}: deleted, put back" + ("" if kind in ("test", "locked") else " empty"))
        before = name


def suspicions(cells: Sequence[Cell], wanted: dict[str, Any], released: Any) -> Iterator[str]:
    """What in the submission's own code a human should look at."""
    given = {c.source.strip() for c in released.cells}
    tools = {
        n for c in wanted.values() if graded(c) == "locked" and c.cell_type == "code" for n in _bound(c.source, True)
    }
    solved: set[str] = set()
    for number, cell in enumerate(cells, 1):
        true = wanted.get(cell.grade_id)
        kind = graded(true) if true is not None else ""
        if kind == "solve" and true is not None:
            solved |= {n for n in _bound(true.source) if not n.startswith("_")}
        if cell.kind != "code" or kind in ("test", "locked") or cell.source.strip() in given:
            continue
        where = cell.grade_id or f"cell {number}"
        tree = _tree(cell.source)
        if tree is None:
            if kind == "solve":
                yield f"{where}: not valid Python"
            continue
        nodes = list(ast.walk(tree))
        modules = [getattr(n, "module", "") or "" for n in nodes if isinstance(n, ast.ImportFrom)]
        modules += [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
        for module in sorted({m for m in modules if m.split(".")[0] in ("specdec_ref", "specdec_course")}):
            yield f"{where}: imports {module}; is the reference the answer?"
        names = {n.id for n in nodes if isinstance(n, ast.Name)}
        attributes = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        words = [str(n.value) for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, (str, bytes))]
        reaching = REACHING & (names | {m.split(".")[0] for m in modules}) | REACHING_ATTRIBUTES & attributes
        if "get_ipython" not in cell.source:  # that was a magic
            reaching.discard("get_ipython")
        if any("specdec_" in w or "SPECDEC_" in w for w in words):
            reaching.add("specdec_ref as text")
        if kind == "solve" and "checks" in tools & names:
            reaching.add("checks")
        if reaching:
            yield f"{where}: uses {', '.join(sorted(reaching))}"
        again = sorted(solved & _bound(cell.source))
        if again and kind != "solve":
            yield f"{where}: defines {', '.join(again)} again; the last definition was marked"


def _tree(source: str) -> ast.Module | None:
    """A cell's syntax tree, its magics and shell lines translated; None where it is no Python."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        return ast.parse(TransformerManager().transform_cell(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _bound(source: str, imported: bool = False) -> set[str]:
    """Names that a cell binds at its top level; only those of its imports where `imported`."""
    names: set[str] = set()
    for statement in (_tree(source) or ast.Module([], [])).body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            names |= {(a.asname or a.name).split(".")[0] for a in statement.names}
        elif imported:
            continue
        elif isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            names.add(statement.name)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return names
