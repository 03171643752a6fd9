"""Tables that go in and out as CSV: marks, the roster, written answers, points given by hand.

nbgrader's own commands do not fit: its roster import takes commas and UTF-8 only, and any id, even a path; its export
has one total for each student, and 0.0 for what was not submitted or not run.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec_course.grading import submission
from specdec_course.grading.collect import student_id
from specdec_course.grading.course_folder import Course, read_json
from specdec_course.grading.gradebook import gradebook, grades, questions, reasons


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
                mine = grades(course, book, name, student)
                have = [m.points for m in mine if m.points is not None]
                row += [m.state if m.points is None else round(m.points, 2) for m in mine]
                row += [round(sum(have), 2) if have else "", round(sum(have), 2) if len(have) == len(mine) else ""]
                row += [_harmless("; ".join(reasons(course, name, student, mine)))]
            rows.append(row)
    return head, rows


def _harmless(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" and text else text


def csv_text(rows: Sequence[Sequence[Any]]) -> bytes:
    """Rows as CSV in UTF-8, with the byte order mark by which spreadsheets know it."""
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
    done: dict[str, int] = {}
    left = []
    with gradebook(course) as book:
        for line, row in enumerate(read_csv(path, ["id"]), 2):
            student = student_id(row["id"])
            if not student:
                left.append(f"line {line}: no usable id ({row['id']!r})")
            elif student in done:
                left.append(f"line {line}: {student} is in line {done[student]} already")
            else:
                done[student] = line
                given = {k: row[k] for k in ("first_name", "last_name", "email") if row.get(k)}
                book.update_or_create_student(student, **given)
    return len(done), left


def import_marks(course: Course, path: Path) -> tuple[int, list[str]]:
    """Store points given by hand in a CSV file: student, problem set, question, points, comment. All or nothing.

    A row without points and comment is skipped. Returns how many were stored, and what is wrong; nothing is stored
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
                wrong.append(f"line {line}: nothing of {student} in {name} was graded ({question})")
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

    cells, _ = submission.read(course.submission(name, student))
    source, released = (nbformat.read(p, as_version=4) for p in (course.source(name), course.released(name)))
    return {c.grade_id: c.source for c in submission.restore(cells, source, released).cells if c.grade_id}


def answers(course: Course, names: Sequence[str]) -> list[list[Any]]:
    """The written parts as rows: student, problem set, question, most points, points, comment, answer."""
    rows: list[list[Any]] = [["student", "problem set", "question", "at most", "points", "comment", "answer"]]
    with gradebook(course) as book:
        for name, student in course.submissions(names):
            record = read_json(course.record(name, student)) or {}
            if record.get("state") != "graded":
                continue
            texts = written_answers(course, name, student)
            for grade, (question, most, written) in zip(grades(course, book, name, student), questions(course, name)):
                if written:
                    points = "" if grade.points is None else f"{grade.points:g}"
                    text = [_harmless(v) for v in (grade.comment, texts.get(question, ""))]
                    rows.append([_harmless(student), name, question, f"{most:g}", points, *text])
    return rows
