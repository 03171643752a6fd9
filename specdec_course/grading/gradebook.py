"""The marks: nbgrader's SQLite gradebook, which its formgrader in JupyterLab shows and edits too."""

from __future__ import annotations

import csv
import io
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

from specdec_course.grading.course import Course, read_json

INSTALL = "python3 bootstrap.py --extras instructor"
TO_MARK, NOT_RUN, NOTHING = "to be marked", "not run", "not submitted"


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


def release(course: Course, name: str) -> bool:
    """Make the learners' notebook and tell the gradebook what is marked in it. Whether the notebook changed.

    Raises ValueError where nbgrader refuses.
    """
    target = course.released(name)
    before = target.read_bytes() if target.exists() else b""
    course.grading.mkdir(exist_ok=True)
    code, said = nbgrader(course, "generate_assignment", name, "--force")
    if code or not target.exists():
        raised = re.findall(r"^ *(\w*(?:Error|Exception|Entry): .*)", said, re.MULTILINE)
        raise ValueError(f"{name} was not released: {raised[-1] if raised else said[-300:]}")
    return target.read_bytes() != before


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
    """Store what marking found. Scores, comments and extra points given by hand stay.

    scores: grade id of a test -> points, None where there is none. answers: grade id of a written part -> whether
    anything was written. changed: the submission is another one than marked before, so marks by hand want a look.
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
class Mark:
    """The mark of one question of one student."""

    question: str  # grade id
    most: float
    points: float | None  # None: there is none yet
    state: str = ""  # why there is none
    by_hand: bool = False
    again: bool = False  # marked by hand before the submission changed
    comment: str = ""


def marks(course: Course, book: Any, name: str, student: str) -> list[Mark]:
    """A student's marks in a problem set, in the order of its notebook."""
    from nbgrader.api import MissingEntry

    record = read_json(course.record(name, student)) or {}
    result = []
    for question, most, written in questions(course, name):
        try:
            grade = book.find_grade(question, name, name, student)
        except MissingEntry:
            result.append(Mark(question, most, None, NOT_RUN if course.submission(name, student).exists() else NOTHING))
            continue
        points = grade.manual_score if grade.manual_score is not None else grade.auto_score
        if grade.manual_score is None and record.get("state") != "marked" and not (written and points is None):
            points = None  # a zero of a submission that did not run is none
        state = "" if points is not None else TO_MARK if written and record.get("state") == "marked" else NOT_RUN
        extra = grade.extra_credit or 0.0
        comment = ""
        if written:
            comment = book.find_comment(question, name, name, student).manual_comment or ""
        result.append(
            Mark(
                question,
                most,
                None if points is None else points + extra,
                state,
                grade.manual_score is not None,
                grade.manual_score is not None and bool(grade.needs_manual_grade),
                comment,
            )
        )
    return result


def questions(course: Course, name: str) -> list[tuple[str, float, bool]]:
    """(grade id, points, whether it is marked by hand) of a problem set, in order."""
    import nbformat

    cells = nbformat.read(course.source(name), as_version=4).cells
    info = [c.metadata.get("nbgrader", {}) for c in cells]
    return [(i["grade_id"], float(i["points"]), bool(i.get("solution"))) for i in info if i.get("grade")]


def table(course: Course, names: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
    """The marks of all as a table: a row a student, columns by question, total and state of each problem set.

    A cell holds a number only where there is a mark; a total only where every part has one.
    """
    head = ["student", "last name", "first name"]
    for name in names:
        head += [f"{name} {q} /{most:g}" for q, most, _ in questions(course, name)]
        head += [f"{name} marked so far", f"{name} total /{sum(m for _, m, _ in questions(course, name)):g}"]
        head += [f"{name} needs a look"]
    rows = []
    with gradebook(course) as book:
        people = {s.id: s for s in book.students}
        for student in sorted({*people, *(s for _, s in course.submissions(names))}):
            person = people.get(student)
            row: list[Any] = [student, getattr(person, "last_name", "") or "", getattr(person, "first_name", "") or ""]
            row = [_harmless(v) for v in row]
            for name in names:
                mine = marks(course, book, name, student)
                have = [m.points for m in mine if m.points is not None]
                row += [m.state if m.points is None else round(m.points, 2) for m in mine]
                row += [round(sum(have), 2) if have else "", round(sum(have), 2) if len(have) == len(mine) else ""]
                row += [_harmless("; ".join(reasons(course, name, student, mine)))]
            rows.append(row)
    return head, rows


def reasons(course: Course, name: str, student: str, mine: Sequence[Mark]) -> list[str]:
    """Why somebody has to look at a submission."""
    record = read_json(course.record(name, student))
    if not course.submission(name, student).exists():
        return []
    if record is None:
        return ["not marked yet: run `specdec grade auto`"]
    again = [f"{m.question}: marked by hand before the submission changed" for m in mine if m.again]
    settled = all(m.points is not None for m in mine)
    return [*([] if settled and record["state"] != "marked" else record["look"]), *again]


def _harmless(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" and text else text


def csv_text(rows: Sequence[Sequence[Any]]) -> bytes:
    """Rows as CSV in UTF-8; the mark in front tells spreadsheets so."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode("utf-8-sig")


def read_csv(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    """Rows of a CSV file by their headings (in lower case), whatever its separator. Raises ValueError."""
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    first = text.split("\n", 1)[0]
    separator = max(",;\t", key=first.count)
    rows = [
        {(k or "").strip().lower(): (v or "").strip() for k, v in row.items() if not isinstance(v, list)}
        for row in csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
    ]
    headings = {h.strip().lower() for h in first.split(separator)}
    if missing := [n for n in needed if n not in {h.strip('"') for h in headings}]:
        raise ValueError(f"{path.name} has no column {missing[0]!r}; it needs {', '.join(needed)} in its first line")
    return rows


def import_roster(course: Course, path: Path) -> tuple[int, list[str]]:
    """Add or update the students of a CSV file. How many, and which lines were left out and why. Removes nobody."""
    from specdec_course.grading.collect import student_id

    done: dict[str, int] = {}
    left = []
    with gradebook(course) as book:
        for line, row in enumerate(read_csv(path, ["id"]), 2):
            student = student_id(row["id"])
            if not student:
                left.append(f"line {line}: no usable id ({row['id']!r})")
            elif student in done:
                left.append(f"line {line}: {student} stands in line {done[student]} already")
            else:
                done[student] = line
                given = {k: row[k] for k in ("first_name", "last_name", "email") if row.get(k)}
                book.update_or_create_student(student, **given)
    return len(done), left


def import_marks(course: Course, path: Path) -> tuple[int, list[str]]:
    """Take marks given by hand from a CSV file: student, problem set, question, points, comment. All or nothing.

    A row without points and comment is passed over. Returns how many were stored, and what is wrong; nothing is stored
    where anything is wrong.
    """
    from nbgrader.api import MissingEntry

    wrong, count = [], 0
    with gradebook(course) as book:
        for line, row in enumerate(read_csv(path, ["student", "problem set", "question", "points"]), 2):
            name, student, question = row["problem set"], row["student"].lstrip("'"), row["question"]
            points, comment = row["points"].replace(",", "."), row.get("comment", "")
            if not points and not comment:
                continue
            try:
                most = {q: m for q, m, _ in questions(course, name)}[question]
                grade = book.find_grade(question, name, name, student)
                if points:
                    if not 0 <= float(points) <= most:
                        raise ValueError
                    grade.manual_score, grade.needs_manual_grade = float(points), False
                if comment:
                    with book.db.no_autoflush:
                        book.find_comment(question, name, name, student).manual_comment = comment
                count += 1
            except (KeyError, OSError):
                wrong.append(f"line {line}: there is no question {question!r} in {name!r}")
            except MissingEntry:
                wrong.append(f"line {line}: nothing of {student} in {name} was marked ({question})")
            except ValueError:
                wrong.append(f"line {line}: {row['points']!r} is not between 0 and {most:g}")
        if wrong:
            book.db.rollback()
        else:
            book.db.commit()
    return (0 if wrong else count), wrong


def written_answers(course: Course, name: str, student: str) -> dict[str, str]:
    """What a student wrote, by grade id, put together where the cell was split."""
    import nbformat

    from specdec_course.grading import submission

    cells, _ = submission.read(course.submission(name, student))
    source, released = (nbformat.read(p, as_version=4) for p in (course.source(name), course.released(name)))
    return {c.grade_id: c.source for c in submission.restore(cells, source, released).cells if c.grade_id}


def answers(course: Course, names: Sequence[str]) -> list[list[Any]]:
    """The written parts as rows: student, problem set, question, most points, points, comment, answer."""
    rows: list[list[Any]] = [["student", "problem set", "question", "at most", "points", "comment", "answer"]]
    with gradebook(course) as book:
        for name, student in course.submissions(names):
            record = read_json(course.record(name, student)) or {}
            if record.get("state") != "marked":
                continue
            texts = written_answers(course, name, student)
            for mark, (question, most, written) in zip(marks(course, book, name, student), questions(course, name)):
                if written:
                    points = "" if mark.points is None else f"{mark.points:g}"
                    text = [_harmless(v) for v in (mark.comment, texts.get(question, ""))]
                    rows.append([_harmless(student), name, question, f"{most:g}", points, *text])
    return rows
