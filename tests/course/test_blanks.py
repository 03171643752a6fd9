"""Blanks of the lessons: right with our solution, a hint for each known mistake, and a lesson that goes on."""

import ast
import importlib
import inspect
import pkgutil

import pytest
from build_lessons import read_source
from support import wrong_blanks
from support.paths import ROOT

import specdec_course as course
from specdec_course.blanks import blanks

LESSONS = [m.name.removeprefix("lesson") for m in pkgutil.iter_modules(wrong_blanks.__path__)]
NAMES = [f"{lesson} {name}" for lesson in LESSONS for name in blanks(lesson)]
SOURCES = {p.stem.split("_")[0]: p for p in sorted((ROOT / "lessons" / "src").glob("*.py"))}
named = pytest.mark.parametrize("name", NAMES)


def find(name):
    lesson, _, short = name.partition(" ")
    return blanks(lesson)[short]


def as_the_learners(function):
    """The same function as if it had been written in a notebook, with no name of ours in reach but imports."""
    names = {n: v for n, v in function.__globals__.items() if inspect.ismodule(v) or inspect.isclass(v)}
    scope = {**names, "__name__": "__main__"}
    exec(compile("from __future__ import annotations\n" + inspect.getsource(function), "<cell>", "exec"), scope)
    return scope[function.__name__]


def test_every_lesson_with_blanks_has_wrong_answers_and_every_blank_is_asked_for():
    modules = [p.stem.removeprefix("lesson") for p in (ROOT / "specdec_course" / "checks").glob("lesson*.py")]
    assert sorted(modules) == sorted(LESSONS)
    for lesson in LESSONS:
        wrong = importlib.import_module(f"support.wrong_blanks.lesson{lesson}").WRONG
        assert set(wrong) == set(blanks(lesson))
        assert all(len(set(hints.values())) >= 2 for hints in wrong.values())


@named
@pytest.mark.parametrize("seed", range(3))
def test_our_solution_is_right(name, seed, capsys):
    learners = as_the_learners(find(name).solution)
    assert course.blank(name, learners, seed=seed) is learners
    assert capsys.readouterr().out.endswith(": right.\n")


@pytest.mark.parametrize(
    "name, function, hint",
    [
        (f"{lesson} {name}", function, hint)
        for lesson in LESSONS
        for name, hints in importlib.import_module(f"support.wrong_blanks.lesson{lesson}").WRONG.items()
        for function, hint in hints.items()
    ],
)
def test_a_wrong_answer_gets_its_hint_and_the_lesson_goes_on(name, function, hint, capsys):
    for seed in range(3):
        assert course.blank(name, function, seed=seed) is find(name).solution
        printed = capsys.readouterr().out
        assert hint in printed
        assert "goes on with our solution" in printed


@named
def test_a_blank_left_empty_is_not_called_wrong(name, capsys):
    def raising(*arguments):
        raise NotImplementedError("write me")

    def empty(*arguments): ...

    def empty_but_described(*arguments):
        """What it should do."""

    for function in (raising, empty, empty_but_described, find(name).solution):
        assert course.blank(name, function) is find(name).solution
        assert "not written yet" in capsys.readouterr().out


@named
def test_the_solution_can_be_printed(name, capsys):
    course.solution(name)
    assert f"def {find(name).solution.__name__}(" in capsys.readouterr().out


def test_an_unknown_blank_is_named_with_those_that_there_are():
    with pytest.raises(KeyError, match="lookup, round"):
        course.blank("00 nothing", len)
    with pytest.raises(KeyError, match="lesson 99 has no blanks"):
        course.blank("99 nothing", len)


def asked(source):
    """(blank, name of the function given) for each call of `course.blank` in a cell."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "course.blank":
            yield node.args[0].value, ast.unparse(node.args[1])


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_lesson_asks_for_each_blank_with_an_unwritten_function_of_the_same_parameters(lesson):
    cells = [c.source for c in read_source(SOURCES[lesson]).cells if c.cell_type == "code"]
    found = {}
    for source in cells:
        functions = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
        for name, given in asked(source):
            assert given in functions, f"{name}: define {given} in the same cell"
            found[name] = functions[given]
            assert "NotImplementedError" in ast.unparse(functions[given]), f"{name}: the cell holds the answer"
    assert set(found) == {n for n in NAMES if n.startswith(f"{lesson} ")}
    for name, function in found.items():
        ours = list(inspect.signature(find(name).solution).parameters)
        assert [a.arg for a in function.args.args] == ours, name
