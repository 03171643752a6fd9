"""The graders' own test: right solutions of several kinds get full marks, wrong ones lose what they break."""

import importlib
import re

import pytest
from support.harness import marks, parts_as_they_should, problem_sets

from specdec_course.checks import GRADING_SEED

SETS = problem_sets()
VARIANTS = {s: importlib.import_module("support.variants." + s.replace("-", "_")) for s in SETS}


def sampled(cases, kinds):
    """All of them; the first of each kind in the fast run."""
    marks = [[pytest.mark.slow] if kind in kinds[:i] else [] for i, kind in enumerate(kinds)]
    return [pytest.param(*item, id=name, marks=mark) for (item, name), mark in zip(cases, marks)]


RIGHT = [((s, cells), f"{s}: {name}") for s in SETS for name, cells in VARIANTS[s].RIGHT.items()]
WRONG = [((s, w), f"{s}: {w.name}") for s in SETS for w in VARIANTS[s].WRONG]


@pytest.fixture(autouse=True, params=[1, 20_77])
def marking(request, monkeypatch):
    monkeypatch.setenv(GRADING_SEED, str(request.param))


@pytest.mark.parametrize("name, cells", sampled(RIGHT, [i // 5 for i in range(len(RIGHT))]))
def test_a_right_solution_gets_full_marks(name, cells):
    result = marks(name, cells)
    assert result.earned == result.points, result.printed


@pytest.mark.parametrize("name, wrong", sampled(WRONG, [(s, w.loses) for (s, w), _ in WRONG]))
def test_a_wrong_solution_loses_what_it_breaks(name, wrong):
    result = marks(name, wrong.cells)
    lost = {key for key, points in result.points.items() if result.earned[key] < points}
    assert set(wrong.loses) <= lost, f"{wrong.name} keeps its marks: {result.earned}"
    assert lost <= set(wrong.loses), f"{wrong.name} loses more than it breaks: {result.printed}"
    assert parts_as_they_should(wrong, result.failed), f"{wrong.name}: {result.failed} fail, not {wrong.parts}"


@pytest.mark.parametrize("name", SETS)
def test_the_stub_gets_nothing(name):
    result = marks(name, {}, stub=True)
    assert result.points and set(result.earned.values()) == {0}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_messages_name_the_mistake_in_eight_of_ten_cases(name):
    named = []
    for wrong in VARIANTS[name].WRONG:
        printed = "\n".join(marks(name, wrong.cells).printed[key] for key in wrong.loses)
        named.append(bool(wrong.says) and bool(re.search(wrong.says, printed, re.IGNORECASE)))
    assert sum(named) >= 0.8 * len(named), [w.name for w, n in zip(VARIANTS[name].WRONG, named) if not n]


@pytest.mark.parametrize("name", SETS)
def test_there_are_enough_of_each(name):
    assert len(VARIANTS[name].RIGHT) >= 3
    assert len(VARIANTS[name].WRONG) >= 10
    assert not [wrong.name for wrong in VARIANTS[name].WRONG if not wrong.parts], "which parts have to fail?"


@pytest.mark.parametrize("name", SETS)
def test_points_sum_to_twenty(name):
    """With the part in writing, which is marked by hand."""
    import nbformat
    from support.harness import ROOT

    cells = nbformat.read(ROOT / "solutions" / name / f"{name}.ipynb", as_version=4).cells
    points = [c.metadata.nbgrader.points for c in cells if c.metadata.get("nbgrader", {}).get("grade")]
    assert sum(points) == 20
    assert any(c.metadata.get("nbgrader", {}).get("grade_id", "").startswith("written-") for c in cells)
