"""`specdec grade`: release problem sets, collect and grade submissions, write feedback, export marks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from specdec_course.grading.course_folder import Course

FOLDER = click.Path(path_type=Path, exists=True)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
NEW_FILE = click.Path(path_type=Path, dir_okay=False)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
names_argument = click.argument("names", nargs=-1)


@click.group(short_help="Release, collect, grade, give feedback, export (for instructors).")
@click.option("--course", "folder", type=FOLDER, help="The course's folder [default: the current one].")
@click.pass_context
def grade(context: click.Context, folder: Path | None) -> None:
    """Grade the problem sets. The order: release, collect, auto, mark by hand, feedback, export.

    NAMES are problem sets or the beginnings of their names (ps01); without any, all of them. Exit codes: 0 all is well,
    1 something needs a look (it is printed), 2 the command was used wrongly.
    """
    from specdec_course.grading.course_folder import Course
    from specdec_course.grading.gradebook import require_nbgrader

    if context.obj is None:
        require_nbgrader()
        context.obj = Course.find(folder)


def _say(text: str, error: bool = False) -> None:
    click.echo(text, err=error)


@grade.command()
@names_argument
@click.pass_obj
def release(course: Course, names: tuple[str, ...]) -> None:
    """Make the learners' notebooks in exercises/, and record in the gradebook what is graded in them."""
    from specdec_course.grading import gradebook

    with course.locked(), _Progress("releasing") as progress:
        for name in progress(course.problem_sets(names)):
            _say(f"{name}: {gradebook.release(course, name)}")


@grade.command()
@click.argument("file", type=FILE)
@click.pass_obj
def roster(course: Course, file: Path) -> int:
    """Add or update students from a CSV FILE with a column id and, optionally, first_name, last_name, email."""
    from specdec_course.grading.tables import import_roster

    with course.locked():
        count, left = import_roster(course, file)
    _say(f"{count} students")
    for line in left:
        _say(f"left out, {line}", error=True)
    return 1 if left else 0


@grade.command()
@click.argument("given", metavar="FOLDER", type=FOLDER)
@click.option("--replace", is_flag=True, help="Accept newer versions; the old ones are kept in grading/replaced/.")
@json_option
@click.pass_obj
def collect(course: Course, given: Path, replace: bool, as_json: bool) -> int:
    """Collect submissions from a FOLDER or a .zip archive.

    \b
    It may hold  STUDENT/ps01.ipynb or STUDENT/ps01-roofline/ps01-roofline.ipynb,
                 STUDENT_ps01.ipynb, STUDENT.zip, and what Moodle and Canvas export.
    """
    from specdec_course.grading.collect import collect as take

    with course.locked():
        result = take(course, given, replace)
    if as_json:
        _say(json.dumps(vars(result), indent=2, ensure_ascii=False))
    else:
        _say(f"{len(result.placed)} taken, {len(result.same)} here already, {len(result.replaced)} replaced")
        if result.left:
            _table(["not taken", "why"], result.left)
    return 1 if result.left else 0


@grade.command()
@names_argument
@click.option("--student", help="Only this student's.")
@click.option("--seed", type=int, help="Seed of the checks' inputs [default: drawn once for the course].")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1, 64), help="Submissions run at a time.")
@click.option(
    "--seconds", default=300, show_default=True, type=click.IntRange(5), help="Time limit of a submission, in all."
)
@click.option("--memory", default=4096, show_default=True, type=click.IntRange(600), help="Its memory limit in MB.")
@click.option("--force", is_flag=True, help="Grade again what is unchanged; marks given by hand stay.")
@click.option("--no-sandbox", is_flag=True, help="Run submissions with all of your own rights. Dangerous.")
@json_option
@click.pass_obj
def auto(
    course: Course,
    names: tuple[str, ...],
    student: str | None,
    seed: int | None,
    jobs: int,
    seconds: int,
    memory: int,
    force: bool,
    no_sandbox: bool,
    as_json: bool,
) -> int:
    """Run the collected submissions in a sandbox and grade them. What is unchanged is skipped."""
    from specdec_course.grading.auto import course_seed, grade_all
    from specdec_course.grading.bubblewrap import MB, Limits

    limits = Limits(total_s=seconds, cell_s=min(60, seconds), memory=memory * MB)
    with course.locked():
        wanted = course.submissions(course.problem_sets(names), student)
        if not wanted:
            raise click.UsageError("nothing was collected: run `specdec grade collect FOLDER` first")
        with _Progress("grading", len(wanted)) as progress:
            records = grade_all(
                course,
                wanted,
                seed=seed,
                jobs=jobs,
                confined=not no_sandbox,
                force=force,
                limits=limits,
                report=lambda record, done, of: progress.at(done, of, f"{record['problem_set']} {record['student']}"),
            )
        summary = [_summary(course, r) for r in records]
    if as_json:
        _say(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        _table(
            ["problem set", "student", "marks", "to mark by hand", "needs a look", "notes"],
            [
                [
                    s["problem_set"],
                    s["student"],
                    s["marks"],
                    ", ".join(s["to_mark"]),
                    *map("\n".join, (s["look"], s["notes"])),
                ]
                for s in summary
            ],
        )
        new, look = sum(r["again"] for r in records), sum(bool(r["look"]) for r in records)
        used = course_seed(course) if seed is None else seed
        _say(f"{new} graded now, {len(records) - new} unchanged; seed {used}")
        _say(f"{look} of {len(records)} need a look" if look else "none needs a look")
    return 1 if any(r["look"] for r in records) else 0


def _summary(course: Course, record: dict[str, Any]) -> dict[str, Any]:
    """A record with its marks."""
    from specdec_course.grading import gradebook

    name, student = record["problem_set"], record["student"]
    with gradebook.gradebook(course) as book:
        mine = gradebook.grades(course, book, name, student)
    tests = [g for g in mine if g.state != gradebook.TO_MARK]
    have = [g.points for g in tests if g.points is not None]
    without = len(tests) - len(have)
    marks = (
        f"{sum(have):g} so far, {without} not marked" if without else f"{sum(have):g} of {sum(g.most for g in tests):g}"
    )
    return {
        **record,
        "look": gradebook.reasons(course, name, student, mine),
        "marks": marks if record["state"] == "graded" or have else gradebook.NOT_RUN,
        "by_question": {g.question: g.points if g.points is not None else g.state for g in mine},
        "to_mark": [g.question for g in mine if g.state == gradebook.TO_MARK],
    }


@grade.command()
@click.argument("file", type=NEW_FILE)
@names_argument
@click.pass_obj
def answers(course: Course, file: Path, names: tuple[str, ...]) -> None:
    """Write the written parts to a CSV FILE with empty columns points and comment, for `specdec grade mark`."""
    from specdec_course.grading import tables
    from specdec_ref.files import write_atomic

    rows = tables.answers(course, course.problem_sets(names))
    write_atomic(file, tables.csv_text(rows))
    _say(f"{file}: {len(rows) - 1} answers, {sum(not r[4] for r in rows[1:])} of them without points")


@grade.command()
@click.argument("file", type=FILE)
@click.pass_obj
def mark(course: Course, file: Path) -> int:
    """Store the points and comments in a CSV FILE that `specdec grade answers` wrote. All rows or none."""
    from specdec_course.grading.tables import import_marks

    with course.locked():
        count, wrong = import_marks(course, file)
    for line in wrong:
        _say(line, error=True)
    _say("nothing was stored" if wrong else f"{count} marks stored")
    return 1 if wrong else 0


@grade.command()
@names_argument
@click.pass_obj
def feedback(course: Course, names: tuple[str, ...]) -> int:
    """Write a page for each student and problem set to grading/feedback/: code, output, marks, comments."""
    from specdec_course.grading.feedback import write_page
    from specdec_course.grading.gradebook import gradebook

    missing: list[tuple[str, str]] = []
    with course.locked(), gradebook(course) as book, _Progress("writing") as progress:
        for name in progress(course.problem_sets(names)):
            wanted = course.submissions([name])
            without = [pair for pair in wanted if not write_page(course, book, *pair)]
            missing += without
            _say(f"{name}: {len(wanted) - len(without)} pages")
    if missing:
        _table(["problem set", "no page for"], missing)
    return 1 if missing else 0


@grade.command()
@click.argument("file", type=NEW_FILE)
@names_argument
@json_option
@click.pass_obj
def export(course: Course, file: Path, names: tuple[str, ...], as_json: bool) -> int:
    """Write all marks to a CSV FILE, one row per student; where there is no mark it says why."""
    from specdec_course.grading import tables
    from specdec_ref.files import write_atomic

    head, rows = tables.table(course, course.problem_sets(names))
    write_atomic(file, tables.csv_text([head, *rows]))
    looks = [(r[0], head[i].removesuffix(" needs a look"), r[i]) for r in rows for i in _columns(head) if r[i]]
    if as_json:
        _say(json.dumps([dict(zip(head, r)) for r in rows], indent=2, ensure_ascii=False))
    else:
        _say(f"{file}: {len(rows)} students")
        if looks:
            _table(["student", "problem set", "needs a look"], looks)
    return 1 if looks else 0


def _columns(head: list[str]) -> list[int]:
    return [i for i, h in enumerate(head) if h.endswith("needs a look")]


def _table(head: list[str], rows: Iterable[Sequence[object]]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*head, box=SIMPLE, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160
    console.print(table)


class _Progress:
    """A progress bar on standard error, if that is a terminal."""

    def __init__(self, what: str, total: int | None = None) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self.bar = Progress(console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal)
        self.what, self.total = what, total

    def __enter__(self) -> _Progress:
        self.bar.start()
        self.task = self.bar.add_task(self.what, total=self.total)
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, items: list[str]) -> Iterator[str]:
        for done, item in enumerate(items):
            self.at(done, len(items), item)
            yield item

    def at(self, done: int, total: int, now: str) -> None:
        self.bar.update(self.task, completed=done, total=total, description=f"{self.what} {now}")
