"""nbgrader's gradebook in SQLite, which its formgrader in JupyterLab shows and edits too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_course.grading.course_folder import Course, read_json

INSTALL = "python3 bootstrap.py --extras instructor"
# Why a part has no mark.
TO_MARK, NOT_MARKED, NOT_RUN, NOTHING = "to be marked", "not marked", "not run", "not submitted"


def require_nbgrader() -> None:
    """Raises ValueError with the command that installs it where nbgrader is missing."""
    try:
        import nbgrader  # noqa: F401
    except ImportError:
        raise ValueError(f"grading needs nbgrader, which learners do without. Install it: {INSTALL}") from None
    # nbgrader starts `alembic` by its bare name, also where the environment is not activated.
    here = str(Path(sys.executable).parent)
    if here not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([here, os.environ.get("PATH", "")])


@contextmanager
def gradebook(course: Course) -> Iterator[Any]:
    """nbgrader's gradebook of the course."""
    require_nbgrader()
    from nbgrader.api import Gradebook
    from sqlalchemy.exc import SAWarning

    warnings.filterwarnings("ignore", category=SAWarning, module="nbgrader")
    course.grading.mkdir(exist_ok=True)
    with Gradebook(course.database, "specdec") as book:
        yield book


def nbgrader(course: Course, *arguments: str) -> tuple[int, str]:
    """Run an nbgrader command in the course's folder. Its exit code and what it said."""
    require_nbgrader()
    command = [sys.executable, "-m", "nbgrader", *arguments, "--log-level=WARN"]
    done = subprocess.run(command, cwd=course.root, capture_output=True, text=True, encoding="utf-8", errors="replace")
    return done.returncode, (done.stdout + done.stderr).strip()


def release(course: Course, name: str) -> str:
    """Make the learners' notebook and record in the gradebook what is graded in it. What that changed, in words.

    Raises ValueError where nbgrader refuses.
    """
    target = course.released(name)
    before = target.read_bytes() if target.exists() else None
    with gradebook(course) as book:
        was_known = known(book, name)
    code, said = nbgrader(course, "generate_assignment", name, "--force")
    if code or not target.exists():
        raised = re.findall(r"^ *(\w*(?:Error|Exception|Entry): .*)", said, re.MULTILINE)
        raise ValueError(f"{name} was not released: {raised[-1] if raised else said[-300:]}")
    if target.read_bytes() != before:
        return "released" if before is None else "released, with a new notebook"
    return "released again, nothing changed" if was_known else "released; the notebook in exercises/ was up to date"


def known(book: Any, name: str) -> bool:
    """Whether the gradebook knows the problem set."""
    from nbgrader.api import MissingEntry

    try:
        return bool(book.find_notebook(name, name).grade_cells)
    except MissingEntry:
        return False


def save(
    book: Any, name: str, student: str, scores: Mapping[str, float | None], answers: Mapping[str, bool], changed: bool
) -> None:
    """Store what grading found. Points, comments and extra points given by hand stay.

    scores: grade id of a test -> points, None where there is none. answers: grade id of a written part -> whether
    anything was written. changed: the submission differs from the one graded before; points given by hand need a look.
    """
    book.update_or_create_student(student)
    book.update_or_create_submission(name, student)
    for cell in book.find_notebook(name, name).grade_cells:
        grade = book.find_grade(cell.name, name, name, student)
        if cell.name in answers:
            grade.auto_score = None if answers[cell.name] else 0.0
            comment = book.find_comment(cell.name, name, name, student)
            comment.auto_comment = None if answers[cell.name] else "No response."
        else:
            grade.auto_score = scores.get(cell.name)
        if grade.manual_score is None:
            grade.needs_manual_grade = grade.auto_score is None
        elif changed:
            grade.needs_manual_grade = True
    book.db.commit()


@dataclass
class Grade:
    """What a student has for one question."""

    question: str  # grade id
    most: float
    points: float | None  # None: there is none yet; extra points given by hand are in it
    state: str = ""  # why there is none
    again: bool = False  # given by hand before the submission changed
    comment: str = ""


def grades(course: Course, book: Any, name: str, student: str) -> list[Grade]:
    """A student's grades in a problem set, in the order of its notebook."""
    from nbgrader.api import MissingEntry

    ran = (read_json(course.record(name, student)) or {}).get("state") == "graded"
    result = []
    for question, most, written in questions(course, name):
        try:
            grade = book.find_grade(question, name, name, student)
        except MissingEntry:
            result.append(
                Grade(question, most, None, NOT_RUN if course.submission(name, student).exists() else NOTHING)
            )
            continue
        by_hand = grade.manual_score is not None
        points = grade.manual_score if by_hand else grade.auto_score if ran else None
        state = ""
        if points is None:
            state = NOT_RUN if not ran else TO_MARK if written else NOT_MARKED
        else:
            points += grade.extra_credit or 0.0
        comment = book.find_comment(question, name, name, student).manual_comment if written else ""
        again = by_hand and bool(grade.needs_manual_grade)
        result.append(Grade(question, most, points, state, again, comment or ""))
    return result


def questions(course: Course, name: str) -> list[tuple[str, float, bool]]:
    """(grade id, points, whether it is graded by hand) of a problem set, in order."""
    import nbformat

    cells = nbformat.read(course.source(name), as_version=4).cells
    info = [c.metadata.get("nbgrader", {}) for c in cells]
    return [(i["grade_id"], float(i["points"]), bool(i.get("solution"))) for i in info if i.get("grade")]


def reasons(course: Course, name: str, student: str, mine: Sequence[Grade]) -> list[str]:
    """Why somebody has to look at a submission."""
    record = read_json(course.record(name, student))
    if not course.submission(name, student).exists():
        return []
    if record is None:
        return ["not graded yet: run `specdec grade auto`"]
    again = [f"{m.question}: marked by hand before the submission changed" for m in mine if m.again]
    settled = all(m.points is not None for m in mine)
    return [*([] if settled and record["state"] != "graded" else record["look"]), *again]
