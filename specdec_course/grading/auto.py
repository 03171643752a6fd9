"""Grades all submissions, several at a time: each runs in its own sandbox, a single writer stores the results."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_course.grading import gradebook, sandbox, submission
from specdec_course.grading.bubblewrap import Limits, require_sandbox
from specdec_course.grading.course_folder import Course, digest, read_json, write_json
from specdec_course.grading.graded_notebook import ProblemSet, graded_notebook
from specdec_course.grading.review import review
from specdec_ref.files import write_atomic

Report = Callable[[dict[str, Any], int, int], None]  # the record, how many are done, of how many
# States of a record. A failed run says nothing about the submission, so the next `auto` runs it again.
GRADED, UNREADABLE, FAILED = "graded", "unreadable", "failed"


@dataclass
class Graded:
    """The result of one submission, before it is stored."""

    record: dict[str, Any]
    notebook: Any = None
    scores: dict[str, float | None] = field(default_factory=dict)
    answers: dict[str, bool] = field(default_factory=dict)


def course_seed(course: Course) -> int:
    """The seed of the checks' inputs: drawn once for a course, so that everybody gets the same ones."""
    path = course.grading / "seed.json"
    if (known := read_json(path)) is None:
        known = {"seed": random.SystemRandom().randrange(10**6)}
        write_json(path, known)
    return int(known["seed"])


def grade_all(
    course: Course,
    wanted: Sequence[tuple[str, str]],
    *,
    seed: int | None = None,
    jobs: int = 2,
    confined: bool = True,
    force: bool = False,
    limits: Limits | None = None,
    report: Report | None = None,
) -> list[dict[str, Any]]:
    """Grade (problem set, student) pairs that are new or changed, or whose last run failed.

    Returns the records of all, also of those passed over. Interrupted at any moment, what was stored before stays and
    the rest counts as not graded. Raises ValueError, SandboxMissing.
    """
    sets = {name: ProblemSet.load(course, name) for name in {n for n, _ in wanted}}
    with gradebook.gradebook(course) as book:
        for name in sets:
            if not gradebook.known(book, name):
                raise ValueError(f"the gradebook does not know {name}: run `specdec grade release {name}` first")
    if confined:
        require_sandbox()
    limits = limits or Limits()
    use_seed = course_seed(course) if seed is None else seed
    records: dict[tuple[str, str], dict[str, Any]] = {}
    todo = []
    for name, student in wanted:
        old = read_json(course.record(name, student))
        if force or old is None or not _current(course, sets[name], student, old, seed):
            todo.append((name, student))
        else:
            records[name, student] = {**old, "again": False}
    stop = threading.Event()
    pool = ThreadPoolExecutor(max_workers=max(1, jobs))
    waiting = {}
    try:
        for name, student in todo:
            work = pool.submit(_grade, course, sets[name], student, use_seed, limits, confined, stop)
            waiting[work] = (name, student)
        with gradebook.gradebook(course) as book:
            pending = set(waiting)
            while pending:
                # With a time limit, so that Ctrl-C is heard while all wait.
                done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                for work in done:
                    name, student = waiting[work]
                    records[name, student] = {**_store(course, book, work.result()), "again": True}
                    if report:
                        report(records[name, student], sum(w.done() for w in waiting), len(todo))
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    return [records[pair] for pair in wanted]


def _current(course: Course, problem_set: ProblemSet, student: str, old: dict[str, Any], seed: int | None) -> bool:
    """Whether an earlier run still stands."""
    same = old.get("submission") == _fingerprint(course.submission(problem_set.name, student))
    same = same and old.get("source") == problem_set.fingerprint and seed in (None, old.get("seed"))
    if old.get("state") == GRADED:
        return same and course.autograded(problem_set.name, student).exists()
    return same and old.get("state") == UNREADABLE


def _fingerprint(path: Path) -> str:
    try:
        if path.is_symlink() or path.stat().st_size > submission.MAX_BYTES:
            return f"not read: {path.lstat().st_size}"
        return digest(path.read_bytes())
    except OSError:
        return "not read"


def _grade(
    course: Course,
    problem_set: ProblemSet,
    student: str,
    seed: int,
    limits: Limits,
    confined: bool,
    stop: threading.Event,
) -> Graded:
    """Read, restore and run one submission; never raises."""
    path = course.submission(problem_set.name, student)
    record: dict[str, Any] = {
        "problem_set": problem_set.name,
        "student": student,
        "state": FAILED,
        "look": [],
        "notes": [],
        "submission": _fingerprint(path),
        "source": problem_set.fingerprint,
        "seed": seed,
        "sandbox": confined,
        "seconds": 0.0,
    }
    result = Graded(record)
    try:
        cells, notes = submission.read(path)
        restored = submission.restore(cells, problem_set.source, problem_set.released)
        found = review(restored.cells, problem_set.source, problem_set.released)
        record["notes"], record["look"] = [*notes, *restored.notes, *found.notes], found.look
        code = _code(restored.cells, problem_set, found.reaching)
        outcome = sandbox.run(list(code.values()), seed, limits, confined=confined, stop=stop)
        record["seconds"] = round(outcome.seconds, 1)
        if outcome.started and outcome.failure not in (sandbox.MACHINE_FULL, "interrupted"):
            result.notebook, result.scores, result.answers = graded_notebook(restored.cells, problem_set, code, outcome)
            record["state"] = GRADED
            record["look"] += _what_happened(restored.cells, code, outcome)
        elif outcome.failure:
            record["look"].append(f"{outcome.failure}; `specdec grade auto` tries it again")
    except submission.Unreadable as error:
        record["state"] = UNREADABLE
        record["look"].append(str(error))
    except Exception as error:  # whatever it is, the others go on
        record["look"].append(f"could not be graded: {type(error).__name__}: {error}")
    record["look"], record["notes"] = _clean(record["look"]), _clean(record["notes"])
    return result


def _what_happened(
    cells: Sequence[submission.Cell], code: dict[int, sandbox.CodeCell], outcome: sandbox.Outcome
) -> list[str]:
    """What a human has to look at, of a submission that ran."""
    where = [cell.grade_id or f"cell {index + 1}" for index, cell in enumerate(cells)]
    tests = {i for i, c in code.items() if c.kind == "test"}
    look = [outcome.failure] if outcome.failure else []
    look += [f"{where[i]}: {how}; it was left out" for i, how in sorted(outcome.ended.items()) if i not in tests]
    look += [f"{where[i]}: waits for input(), which nobody answers at grading" for i in outcome.asked if i in code]
    if outcome.tampered:
        more = f" and {len(outcome.tampered) - 4} more" if len(outcome.tampered) > 4 else ""
        look.append(f"reached for or replaced: {', '.join([*outcome.tampered][:4])}{more}")
    for i in sorted(tests):
        if names := outcome.rebound.get(i):
            look.append(f"{where[i]}: the name {', '.join(names)} was bound anew; the test got the given one")
    why: dict[str, list[str]] = {}
    for i in sorted(tests):
        if outcome.score(code[i]) is None:
            why.setdefault(outcome.why_undecided(code[i]), []).append(where[i])
    return [*look, *(f"{', '.join(parts)}: {reason}" for reason, parts in why.items())]


def _clean(lines: Iterable[str]) -> list[str]:
    """Lines that hold what a submission chose, fit for a terminal and a table."""
    return [("".join(c if c.isprintable() else "?" for c in line))[:300] for line in dict.fromkeys(lines)]


def _code(
    cells: Sequence[submission.Cell], problem_set: ProblemSet, reaching: dict[int, str]
) -> dict[int, sandbox.CodeCell]:
    """The code cells to run, by their place in the notebook."""
    result = {}
    for index, cell in enumerate(cells):
        if cell.kind == "code":
            true = problem_set.graded_cells.get(cell.grade_id)
            kind = submission.graded(true) if true is not None else ""
            points = float(true.metadata.nbgrader.get("points", 0)) if true is not None else 0.0
            result[index] = sandbox.CodeCell(
                index,
                cell.source,
                "test" if kind == "test" else "code",
                kind in ("test", "locked"),
                points,
                reaching.get(index, ""),
            )
    return result


def _store(course: Course, book: Any, graded: Graded) -> dict[str, Any]:
    """Write the graded notebook, then the gradebook, and last the record, without which it all counts as not done."""
    import nbformat

    record = graded.record
    name, student = record["problem_set"], record["student"]
    old = read_json(course.record(name, student)) or {}
    record["stored"] = old.get("stored")  # the submission that the gradebook's points are of
    course.record(name, student).unlink(missing_ok=True)
    try:
        if graded.notebook is not None:
            write_atomic(course.autograded(name, student), nbformat.writes(graded.notebook))
            changed = record["stored"] not in (None, record["submission"])
            gradebook.save(book, name, student, graded.scores, graded.answers, changed)
            record["stored"] = record["submission"]
    except Exception as error:
        book.db.rollback()
        record["state"] = FAILED
        record["look"].append(f"could not be stored: {type(error).__name__}: {error}"[:300])
    record["time"] = time.strftime("%Y-%m-%d %H:%M:%S")
    write_json(course.record(name, student), record)
    return record
