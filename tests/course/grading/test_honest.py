"""A class of honest learners with odd habits: each gets the marks that were earned."""

from __future__ import annotations

import json
import shutil

import nbformat
import pytest
from support.grading_course import NAME, PERFECT, hand_in, make_course, submission
from support.honest_class import FAST, LEARNERS
from support.paths import ROOT

pytest.importorskip("nbgrader")

from specdec_course.grading import sandbox, tables
from specdec_course.grading import submission as submissions
from specdec_course.grading.auto import grade_all
from specdec_course.grading.bubblewrap import MB, Limits
from specdec_course.grading.course_folder import Course
from specdec_course.grading.gradebook import gradebook, grades

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
LIMITS = Limits(cell_s=20, total_s=100, memory=1500 * MB)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return Course(make_course(tmp_path_factory.mktemp("honest")))


def graded(course, names):
    for name in names:
        learner = LEARNERS[name]
        written = {**PERFECT, **learner.answers}
        made = submission(course.root, {k: v for k, v in written.items() if v is not None})
        learner.change(made)
        hand_in(course.root, name, made)
    return dict(zip(names, grade_all(course, [(NAME, n) for n in names], seed=7, limits=LIMITS)))


@pytest.fixture(scope="module")
def fast(course):
    return graded(course, FAST)


@pytest.fixture(scope="module")
def slow(course):
    return graded(course, [n for n in LEARNERS if n not in FAST])


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in LEARNERS])
def test_it_gets_what_it_earned(name, course, request):
    record, learner = request.getfixturevalue("fast" if name in FAST else "slow")[name], LEARNERS[name]
    with gradebook(course) as book:
        mine = {g.question: g.state if g.points is None else g.points for g in grades(course, book, NAME, name)}
    assert mine == learner.expected, record
    look = "\n".join(record["look"])
    assert (learner.look in look) if learner.look else look == "", look
    (answer,) = [row[-1] for row in tables.answers(course, [NAME]) if row[0] == name]
    assert learner.answer in answer


def test_a_name_that_was_bound_anew_is_noted(fast):
    notes = fast["helpers named as given cells name their numbers"]["notes"]
    assert any(note.startswith("price: bound in solve-acceptance, again in cell") for note in notes), notes


# Names that given cells of this problem set bind.
NAMES = [
    "batch",
    "speed",
    "price",
    "plain",
    "check",
    "flop",
    "nbytes",
    "figure",
    "ax",
]


@pytest.mark.slow
def test_a_helper_of_any_name_costs_nothing_in_a_real_problem_set():
    """Each answer calls a helper of its own, whose name a given cell takes later."""
    from specdec_course.grading.auto import _code
    from specdec_course.grading.graded_notebook import ProblemSet

    name = "ps01-roofline"
    problem_set = ProblemSet.load(Course(ROOT), name)
    notebook = nbformat.read(ROOT / "solutions" / name / f"{name}.ipynb", as_version=4)
    helpers = iter(NAMES)
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id", "").startswith("solve-"):
            helper = next(helpers)
            function = cell.source.split("def ", 1)[1].split("(")[0]
            cell.source += f"\n\ndef {helper}(f):\n    return f\n\n{function}_plain = {function}\n\n"
            cell.source += f"def {function}(*a, **k):\n    return {helper}({function}_plain)(*a, **k)\n"
    cells, _ = submissions.parse(json.dumps(notebook).encode())
    restored = submissions.restore(cells, problem_set.source, problem_set.released)
    code = _code(restored.cells, problem_set, {})
    outcome = sandbox.run(list(code.values()), 7, Limits(cell_s=60, total_s=300))
    tests = [c for c in code.values() if c.kind == "test"]
    assert [outcome.score(c) for c in tests] == [c.points for c in tests]
