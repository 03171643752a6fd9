"""Notebooks that ask for points without having earned them: none gets any, and each is named."""

from __future__ import annotations

import shutil

import pytest
from support.grading_course import NAME, cell, code, hand_in, make_course, submission
from support.hostile_cells import FAST, HOSTILE, WRONG

pytest.importorskip("nbgrader")

from specdec_course.grading.auto import grade_all
from specdec_course.grading.bubblewrap import MB, Limits
from specdec_course.grading.course_folder import Course
from specdec_course.grading.gradebook import gradebook, grades

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
LIMITS = Limits(cell_s=8, total_s=80, memory=1500 * MB, disk=32 * MB, file=16 * MB, processes=24, output=200_000)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return Course(make_course(tmp_path_factory.mktemp("hostile")))


def notebook(course, source):
    """The two wrong answers, and the hostile cell."""
    answers = WRONG if "def acceptance" not in source else {**WRONG, "acceptance": source}
    made = submission(course.root, answers)
    if "def acceptance" not in source:
        made.cells.insert(0, code(source))
    return made


def graded(course, names):
    for name in names:
        hand_in(course.root, name, notebook(course, HOSTILE[name]))
    records = grade_all(course, [(NAME, n) for n in names], seed=7, limits=LIMITS)
    return dict(zip(names, records))


@pytest.fixture(scope="module")
def fast(course):
    return graded(course, FAST)


@pytest.fixture(scope="module")
def slow(course):
    return graded(course, [n for n in HOSTILE if n not in FAST])


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in HOSTILE])
def test_it_earns_nothing_and_is_named(name, course, request):
    record = request.getfixturevalue("fast" if name in FAST else "slow")[name]
    with gradebook(course) as book:
        points = [g.points for g in grades(course, book, NAME, name)]
    assert not any(points), (points, record)
    assert record["look"], record


def test_the_same_wrong_answers_without_a_trick_are_zeros_and_need_no_look(course):
    """Else the test above would not show anything."""
    hand_in(course.root, "plain", submission(course.root, WRONG))
    (record,) = grade_all(course, [(NAME, "plain")], seed=7, limits=LIMITS)
    with gradebook(course) as book:
        assert [g.points for g in grades(course, book, NAME, "plain")] == [0, 0, 0]
    assert record["look"] == []


def test_what_was_right_before_the_trick_keeps_its_points(course):
    """The test at its place ran beside code that nobody had touched."""
    late = submission(course.root)
    late.cells.append(code(HOSTILE["builtins replaced"]))
    cell(late, "solve-mean").source = WRONG["mean"]
    hand_in(course.root, "late", late)
    (record,) = grade_all(course, [(NAME, "late")], seed=7, limits=LIMITS)
    with gradebook(course) as book:
        mine = {g.question: g.points if g.points is not None else g.state for g in grades(course, book, NAME, "late")}
    assert mine == {"test-acceptance": 8, "test-mean": "not marked", "written-why": "to be marked"}
    assert any("builtins.abs" in line for line in record["look"])
