"""Build the lessons' notebooks from their sources: run each one and store its outputs.

    python tools/build_lessons.py                 all lessons
    python tools/build_lessons.py 00 04           lessons whose names start with 00 or 04

A lesson is written in lessons/src/NAME.py (jupytext, py:percent) and read in lessons/NAME.ipynb. Cell ids are the
cells' positions, so that building twice changes nothing but outputs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

from specdec_course.progress_line import TRANSIENT

LESSONS = Path(__file__).resolve().parent.parent / "lessons"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
KEPT = ("tags", "jp-MarkdownHeadingCollapsed")
"""Metadata of cells that a source may give; with the second JupyterLab closes a heading and all that is below it."""


def read_source(source: Path) -> nbformat.NotebookNode:
    """The notebook of a source file, without outputs."""
    notebook = jupytext.read(source)
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for i, cell in enumerate(notebook.cells):
        cell.id = f"cell-{i:03d}"
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in KEPT if cell.metadata.get(key)})
    return notebook


def build(source: Path) -> Path:
    """Run the lesson in `source` and write its notebook. Raises what the lesson raises."""
    notebook = read_source(source)
    where = {"metadata": {"path": str(LESSONS)}}
    NotebookClient(notebook, timeout=600, startup_timeout=300, kernel_name="python3", resources=where).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [still(o) for o in join_streams(without_progress(cell.outputs))]
    notebook.metadata = nbformat.from_dict(METADATA)  # neither this Python's version nor the state of widgets
    check_outputs(notebook, source.stem)
    target = LESSONS / f"{source.stem}.ipynb"
    nbformat.validate(notebook)
    nbformat.write(notebook, target)
    return target


def without_progress(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """The outputs but for lines that said how far the cell was."""
    return [o for o in outputs if o.get("metadata") != TRANSIENT]


def still(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The output, of a widget only its picture: without a kernel JupyterLab says "model not found" in its place."""
    if "text/html" in output.get("data", {}):
        output.data.pop("application/vnd.jupyter.widget-view+json", None)
    return output


def join_streams(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Consecutive pieces of printed text joined into one, as a reader sees it."""
    joined: list[nbformat.NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def check_outputs(notebook: nbformat.NotebookNode, name: str) -> None:
    """Raises ValueError if a stored output contains a path or an address of this machine."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = nbformat.writes(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(outputs=[output])]))
            if found := re.search(r"(/(root|home|tmp|work|Users)/|0x[0-9a-f]{8,})[^\"\\\\]*", text):
                raise ValueError(f"{name}, {cell.id}: an output holds {found.group()!r}")


def main() -> None:
    sources = sorted((LESSONS / "src").glob("*.py"))
    wanted = [s for s in sources if not sys.argv[1:] or any(s.stem.startswith(a) for a in sys.argv[1:])]
    if not wanted:
        sys.exit(f"no lesson starts with {', '.join(sys.argv[1:])}: there are {', '.join(s.stem for s in sources)}")
    for source in wanted:
        print(build(source).relative_to(LESSONS.parent))


if __name__ == "__main__":
    main()
