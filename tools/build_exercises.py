"""Make the instructor's notebooks from their sources, and the learners' from those.

    python tools/build_exercises.py               all problem sets
    python tools/build_exercises.py ps01 ps04     those whose names begin so

A problem set is written in solutions/src/NAME.py (jupytext, py:percent), kept as solutions/NAME/NAME.ipynb, and
released to exercises/NAME/NAME.ipynb by nbgrader. A cell says what it is in its header:

    # %% solve="residual"               the learner writes here; between ### BEGIN SOLUTION and ### END SOLUTION
    # %% test="residual" points=4       a check that is marked; its last line is the number of points
    # %% [markdown] written="why" points=3        an answer in words, marked by hand (<!-- BEGIN SOLUTION -->)
    # %% locked="setup"                 given code that is restored before marking
    # %%   and   # %% [markdown]        text, and code to play with
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parent.parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
KINDS = ("solve", "test", "written", "locked")


def nbgrader_cell(cell: nbformat.NotebookNode) -> dict[str, object] | None:
    """What nbgrader has to know of a cell, from the words of its header; None for a plain cell."""
    kinds = [k for k in KINDS if k in cell.metadata]
    if not kinds:
        return None
    if len(kinds) > 1:
        raise ValueError(f"a cell is one of {', '.join(KINDS)}, this one is {' and '.join(kinds)}: {cell.source[:60]}")
    kind = kinds[0]
    made: dict[str, object] = {
        "schema_version": 3,
        "grade_id": f"{kind}-{cell.metadata[kind]}",
        "grade": kind in ("test", "written"),
        "solution": kind in ("solve", "written"),
        "locked": kind in ("test", "locked"),
        "task": False,
        "cell_type": cell.cell_type,
    }
    if made["grade"]:
        made["points"] = cell.metadata["points"]
    return made


def read_source(source: Path) -> nbformat.NotebookNode:
    """The instructor's notebook of a source file, without outputs."""
    notebook = jupytext.read(source)
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for i, cell in enumerate(notebook.cells):
        nbgrader = nbgrader_cell(cell)
        cell.id = nbgrader["grade_id"] if nbgrader else f"cell-{i:03d}"
        # Run All in the learner's notebook goes on past what is not written yet.
        tags = ["raises-exception"] if "test" in cell.metadata else list(cell.metadata.get("tags", []))
        cell.metadata = nbformat.from_dict(
            {**({"nbgrader": nbgrader} if nbgrader else {}), **({"tags": tags} if tags else {})}
        )
    nbformat.validate(notebook)
    return notebook


def build(source: Path) -> Path:
    """Write the instructor's notebook of `source`."""
    name = re.sub(r"^(ps\d+)_", r"\1-", source.stem).replace("_", "-")
    target = ROOT / "solutions" / name / f"{name}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(read_source(source), target)
    return target


def release(name: str) -> None:
    """The learners' notebook, by nbgrader; the same bytes each time."""
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", name, "--force", "--no-db"]
    subprocess.run([*command, "--log-level=WARN"], cwd=ROOT, check=True)


def main() -> None:
    sources = sorted((ROOT / "solutions" / "src").glob("*.py"))
    wanted = [s for s in sources if not sys.argv[1:] or any(s.stem.startswith(a) for a in sys.argv[1:])]
    if not wanted:
        sys.exit(f"no problem set begins with {', '.join(sys.argv[1:])}: {', '.join(s.stem for s in sources)}")
    for source in wanted:
        target = build(source)
        release(target.stem)
        print(target.relative_to(ROOT))


if __name__ == "__main__":
    main()
