"""One submitted notebook: read whatever its state, and brought into the shape of the problem set.

Nothing here runs a line of it. Of a submission only the cells' types, sources and grade ids are taken; outputs, points,
locks and kernels in the file count for nothing.
"""

from __future__ import annotations

import ast
import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_BYTES = 30 << 20
CODE_KINDS = ("code", "markdown", "raw")
WORD = re.compile(r"[^\W\d_]{2,}")
CODE_LINE = re.compile(
    r"^\s*(def |class |import |from \w+ import|for .*:|if .*:|while .*:|return\b|[%!@])", re.MULTILINE
)


class Unreadable(ValueError):
    """A file that can't be read as a notebook; the text says what it is instead."""


@dataclass
class Cell:
    """A cell of a submission: what of it counts."""

    kind: str  # "code", "markdown", "raw"
    source: str
    grade_id: str = ""


@dataclass
class Restored:
    """A submission as it will be graded."""

    cells: list[Cell]
    notes: list[str] = field(default_factory=list)  # what was put right; nobody has to act


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
    pieces: dict[str, list[str]] = {}  # of a written part, those before the last
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
                text = cell.source.strip()
                known = [submitted[last[name]].source, stubs[name].source, *pieces.get(name, ())]
                if text not in map(str.strip, known):
                    pieces.setdefault(name, []).append(text)
            continue
        if name in pieces:  # what is read by a human is put together, so that no part of an answer is lost
            cell = Cell(cell.kind, "\n\n".join([*pieces[name], cell.source]), name)
        if kind in ("test", "locked"):
            if cell.source.strip() != true.source.strip():
                result.notes.append(f"{name}: changed, restored")
            cell = Cell(true.cell_type, true.source, name)
        elif cell.kind != true.cell_type:
            result.notes.append(f"{name}: its type was changed")
            cell = Cell(true.cell_type, cell.source, name)
        result.cells.append(cell)
    _insert_missing(result, wanted, stubs)
    _find_answers(result, wanted, stubs, {c.source.strip() for c in released.cells})
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


def _find_answers(result: Restored, wanted: dict[str, Any], stubs: dict[str, Any], given: set[str]) -> None:
    """Where a written part is empty, take as its answer what the learner wrote in cells of their own instead.

    Such a cell belongs to the last written part before it, or else to the first one after it.
    """
    written = [i for i, c in enumerate(result.cells) if c.grade_id and graded(wanted[c.grade_id]) == "written"]
    found: dict[int, list[str]] = {}
    for i, cell in enumerate(result.cells):
        if not cell.grade_id and cell.source.strip() not in given and is_prose(cell):
            before = [w for w in written if w < i]
            if nearest := (before[-1:] or written[:1]):
                found.setdefault(nearest[0], []).append(cell.source.strip())
    for i, texts in found.items():
        part = result.cells[i]
        if part.source.strip() in ("", stubs[part.grade_id].source.strip()):
            part.source = "\n\n".join(texts)
            result.notes.append(f"{part.grade_id}: answered in a cell of its own, taken from there")


def is_prose(cell: Cell) -> bool:
    """Whether a cell holds an answer in words: text, or a code cell with three words or more and no statement."""
    text = cell.source.strip()
    if cell.kind != "code":
        return bool(text)
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return len(WORD.findall(text)) > 5 and not CODE_LINE.search(text)
    only_text = all(isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in body)
    return only_text and len(WORD.findall(text)) > 2
