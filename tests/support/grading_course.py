"""A course with one tiny problem set, and submissions to it: what the tests of the grading work on."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import nbformat

from support.paths import ROOT

NAME = "ps01-example"
SOURCE = '''\
# %% [markdown]
# # Example

# %% locked="setup"
from specdec_course.checks import example as checks

# %% [markdown]
# ## Part 1

# %% solve="acceptance"
def acceptance(p, q):
    """The probability that a draft from q is accepted for p."""
    ### BEGIN SOLUTION
    return sum(map(min, p, q))
    ### END SOLUTION

# %%
print("play here")

# %% test="acceptance" points=8
checks.acceptance(acceptance, points=8)

# %% solve="mean"
def mean(values):
    """The mean of a list of numbers."""
    ### BEGIN SOLUTION
    return sum(values) / len(values)
    ### END SOLUTION

# %% test="mean" points=8
checks.mean(mean, points=8)

# %% tags=["raises-exception"]
for price in (1, 2):
    speed = price * acceptance([1.0], [1.0])
check, law = "done", [speed, price]

# %% [markdown] written="why" points=4
# Why is it never above 1?
#
# <!-- BEGIN SOLUTION -->
# Because min(p, q) is at most p, and p sums to 1.
# <!-- END SOLUTION -->
'''
PERFECT = {
    "acceptance": "def acceptance(p, q):\n    return sum(min(a, b) for a, b in zip(p, q))",
    "mean": "def mean(values):\n    return sum(values) / len(values)",
    "why": "Each term is at most p(x), and those sum to 1. Größe: p < q & q > p.",
}


def make_course(folder: Path) -> Path:
    """A course in `folder`, released; nbgrader is needed once, its result is copied afterwards."""
    import build_exercises

    from specdec_course.grading.course_folder import Course
    from specdec_course.grading.gradebook import release

    shutil.copy(ROOT / "nbgrader_config.py", folder)
    source = folder / "ps01_example.py"
    source.write_text(SOURCE, encoding="utf-8")
    target = folder / "solutions" / NAME / f"{NAME}.ipynb"
    target.parent.mkdir(parents=True)
    nbformat.write(build_exercises.read_source(source), target)
    release(Course(folder), NAME)
    return folder


def submission(course: Path, cells: dict[str, str] | None = None) -> nbformat.NotebookNode:
    """A learner's notebook: the released one with `cells` (perfect ones where none are given) filled in."""
    notebook = nbformat.read(course / "exercises" / NAME / f"{NAME}.ipynb", as_version=4)
    cells = PERFECT if cells is None else cells
    for cell in notebook.cells:
        kind, _, key = cell.metadata.get("nbgrader", {}).get("grade_id", "").partition("-")
        if kind in ("solve", "written") and key in cells:
            cell.source = cells[key]
    return notebook


def cell(notebook: nbformat.NotebookNode, grade_id: str) -> nbformat.NotebookNode:
    return next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


def position(notebook: nbformat.NotebookNode, grade_id: str) -> int:
    return notebook.cells.index(cell(notebook, grade_id))


def code(source: str, grade_id: str = "") -> nbformat.NotebookNode:
    made = nbformat.v4.new_code_cell(source)
    if grade_id:
        made.metadata = nbformat.from_dict(
            {"nbgrader": {"grade_id": grade_id, "grade": False, "solution": True, "locked": False, "schema_version": 3}}
        )
    return made


def hand_in(course: Path, student: str, notebook: nbformat.NotebookNode | bytes) -> Path:
    """Put a submission where `collect` would."""
    path = course / "grading" / "submitted" / student / NAME / f"{NAME}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    data = notebook if isinstance(notebook, bytes) else json.dumps(notebook).encode("utf-8")
    path.write_bytes(data)
    return path


def copied(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    return copy.deepcopy(notebook)
