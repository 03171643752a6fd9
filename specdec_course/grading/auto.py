"""Marks all submissions, several at a time: each run in its sandbox, what came of it stored by one hand."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_course.grading import gradebook, sandbox, submission
from specdec_course.grading.course import Course, digest, read_json, write_json, write_whole

Report = Callable[[dict[str, Any], int, int], None]  # the record, how many are done, of how many


@dataclass(frozen=True)
class ProblemSet:
    """What marking needs of a problem set."""

    name: str
    source: Any
    released: Any
    fingerprint: str

    @classmethod
    def load(cls, course: Course, name: str) -> ProblemSet:
        """Read the instructor's and the learners' notebook. Raises ValueError where it was not released."""
        import nbformat

        if not course.released(name).exists():
            raise ValueError(f"{name} is not released: run `specdec grade release {name}` first")
        data = course.source(name).read_bytes()
        return cls(
            name,
            nbformat.reads(data.decode("utf-8"), as_version=4),
            nbformat.read(course.released(name), as_version=4),
            digest(data),
        )


@dataclass
class Marked:
    """What came of one submission, before it is stored."""

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
    limits: sandbox.Limits | None = None,
    report: Report | None = None,
) -> list[dict[str, Any]]:
    """Mark (problem set, student) pairs that are new or changed. Returns the records of all, also of those passed over.

    Interrupted at any moment, what was stored before stays and the rest counts as not marked. Raises ValueError,
    SandboxMissing.
    """
    sets = {name: ProblemSet.load(course, name) for name in {n for n, _ in wanted}}
    with gradebook.gradebook(course) as book:
        for name in sets:
            if not gradebook.known(book, name):
                raise ValueError(f"the gradebook does not know {name}: run `specdec grade release {name}` first")
    if confined:
        sandbox.require_sandbox()
    limits = limits or sandbox.Limits()
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
            work = pool.submit(_mark, course, sets[name], student, use_seed, limits, confined, stop)
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
    """Whether an earlier marking still stands."""
    same = old.get("submission") == _fingerprint(course.submission(problem_set.name, student))
    same = same and old.get("source") == problem_set.fingerprint and seed in (None, old.get("seed"))
    return same and (old["state"] != "marked" or course.autograded(problem_set.name, student).exists())


def _fingerprint(path: Path) -> str:
    try:
        if path.is_symlink() or path.stat().st_size > submission.MAX_BYTES:
            return f"not read: {path.lstat().st_size}"
        return digest(path.read_bytes())
    except OSError:
        return "not read"


def _mark(
    course: Course,
    problem_set: ProblemSet,
    student: str,
    seed: int,
    limits: sandbox.Limits,
    confined: bool,
    stop: threading.Event,
) -> Marked:
    """Read, restore and run one submission; never raises."""
    path = course.submission(problem_set.name, student)
    record: dict[str, Any] = {
        "problem_set": problem_set.name,
        "student": student,
        "state": "not run",
        "look": [],
        "notes": [],
        "submission": _fingerprint(path),
        "source": problem_set.fingerprint,
        "seed": seed,
        "sandbox": confined,
        "seconds": 0.0,
    }
    result = Marked(record)
    try:
        cells, notes = submission.read(path)
        restored = submission.restore(cells, problem_set.source, problem_set.released)
        record["notes"], record["look"] = [*notes, *restored.notes], restored.look
        run = sandbox.run(_code(restored.cells, problem_set), seed, limits, confined=confined, stop=stop)
        if stop.is_set():
            return result
        record["seconds"] = round(run.seconds, 1)
        if run.failure:
            record["look"].append(run.failure)
        for index, how in sorted(run.ended.items()):
            record["look"].append(f"{restored.cells[index].grade_id or f'cell {index + 1}'}: {how}")
        if run.changed:
            more = f" and {len(run.changed) - 4} more" if len(run.changed) > 4 else ""
            record["look"].append(f"changed, put back before the tests: {', '.join(run.changed[:4])}{more}")
        result.notebook, result.scores, result.answers = notebook(restored.cells, problem_set, run)
        record["state"] = "marked"
        record["unmarked"] = sorted(k for k, v in result.scores.items() if v is None)
        for test in record["unmarked"]:
            if not any(line.startswith(f"{test}:") for line in record["look"]) and not run.failure:
                record["look"].append(f"{test}: gave no mark")
    except submission.Unreadable as error:
        record["look"].append(str(error))
    except Exception as error:  # whatever it is, the others go on
        record["look"].append(f"could not be graded: {type(error).__name__}: {error}")
    record["look"], record["notes"] = _clean(record["look"]), _clean(record["notes"])
    return result


def _clean(lines: Iterable[str]) -> list[str]:
    """Lines that hold what a submission chose, fit for a terminal and a table."""
    return [("".join(c if c.isprintable() else "?" for c in line))[:300] for line in dict.fromkeys(lines)]


def _code(cells: Sequence[submission.Cell], problem_set: ProblemSet) -> list[sandbox.Cell]:
    true = _by_id(problem_set)
    result = []
    for index, cell in enumerate(cells):
        if cell.kind == "code":
            kind = submission.graded(true[cell.grade_id]) if cell.grade_id else ""
            points = float(true[cell.grade_id].metadata.nbgrader.get("points", 0)) if cell.grade_id else 0.0
            is_test = kind == "test"
            result.append(
                sandbox.Cell(index, cell.source, "test" if is_test else "code", kind in ("test", "locked"), points)
            )
    return result


def _by_id(problem_set: ProblemSet) -> dict[str, Any]:
    return {c.metadata.nbgrader.grade_id: c for c in problem_set.source.cells if submission.graded(c)}


def notebook(
    cells: Sequence[submission.Cell], problem_set: ProblemSet, run: sandbox.Run
) -> tuple[Any, dict[str, float | None], dict[str, bool]]:
    """The marked notebook that feedback is made of, each test's score, and which written parts hold an answer."""
    import nbformat
    from nbgrader.utils import compute_checksum

    true = _by_id(problem_set)
    stubs = {c.metadata.nbgrader.grade_id: c.source for c in problem_set.released.cells if submission.graded(c)}
    given = {c.source for c in problem_set.released.cells}
    made = nbformat.v4.new_notebook(metadata=problem_set.released.metadata)
    scores: dict[str, float | None] = {}
    answers: dict[str, bool] = {}
    for index, cell in enumerate(cells):
        new = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}.get(
            cell.kind, nbformat.v4.new_raw_cell
        )(cell.source, id=f"cell-{index:03d}")
        if cell.kind != "code" and cell.source not in given:
            new.source = without_html(cell.source)
        if cell.grade_id:
            new.metadata["nbgrader"] = nbformat.from_dict(dict(true[cell.grade_id].metadata.nbgrader))
            new.metadata.nbgrader["checksum"] = compute_checksum(new)
            kind = submission.graded(true[cell.grade_id])
            if kind == "test":
                score = run.scores.get(index)
                fits = isinstance(score, (int, float)) and 0 <= score <= new.metadata.nbgrader.points
                scores[cell.grade_id] = float(score) if fits and score is not None else None
            elif kind == "written":
                answers[cell.grade_id] = cell.source.strip() not in ("", stubs[cell.grade_id].strip())
        if cell.kind == "code":
            new.outputs = [nbformat.from_dict(o) for o in map(_output, run.outputs.get(index, [])) if o]
            if how := run.ended.get(index):
                new.outputs.append(nbformat.v4.new_output("stream", name="stderr", text=f"{how}\n"))
        made.cells.append(new)
    return made, scores, answers


def without_html(text: str) -> str:
    """Markdown whose tags and links are plain text: it is shown in the instructor's browser, next to the gradebook."""
    text = re.sub(r"<(?=[A-Za-z/!?])", "< ", text)
    return re.sub(r"\](?=\(\s*(?!https?://)|:|\[)", "] ", text)


def _output(raw: Any) -> dict[str, Any] | None:
    """An output as a notebook holds it, made of what is known to be harmless: text and pictures."""
    try:
        kind = raw["output_type"]
        if kind == "stream":
            name = "stderr" if raw["name"] == "stderr" else "stdout"
            return {"output_type": "stream", "name": name, "text": str(raw["text"])}
        if kind == "error":
            trace = [str(line) for line in raw["traceback"]]
            return {
                "output_type": "error",
                "ename": str(raw["ename"]),
                "evalue": str(raw["evalue"]),
                "traceback": trace,
            }
        data = {k: str(v) for k, v in raw["data"].items() if k in ("text/plain", "image/png")}
        if not re.fullmatch(r"[A-Za-z0-9+/=\s]*", data.get("image/png", "")):
            return None
        return {"output_type": "display_data", "data": data, "metadata": {}} if data else None
    except (KeyError, TypeError, AttributeError):
        return None


def _store(course: Course, book: Any, marked: Marked) -> dict[str, Any]:
    """Write the marked notebook, then the gradebook, and last the record, without which it all counts as not done."""
    import nbformat

    record = marked.record
    name, student = record["problem_set"], record["student"]
    old = read_json(course.record(name, student)) or {}
    course.record(name, student).unlink(missing_ok=True)
    try:
        if marked.notebook is not None:
            text = nbformat.writes(marked.notebook)
            write_whole(course.autograded(name, student), text.encode("utf-8"))
            changed = old.get("submission") not in (None, record["submission"])
            gradebook.save(book, name, student, marked.scores, marked.answers, changed)
    except Exception as error:
        book.db.rollback()
        record["state"] = "not run"
        record["look"].append(f"could not be stored: {type(error).__name__}: {error}"[:300])
    record["time"] = time.strftime("%Y-%m-%d %H:%M:%S")
    write_json(course.record(name, student), record)
    return record
