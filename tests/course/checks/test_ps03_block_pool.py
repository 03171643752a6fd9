"""The checks of problem set 03 see that something happens, and name what is wrong on a pool that can be pasted."""

import re
from collections import deque

import nbformat
import pytest
from support.harness import ROOT, marks
from support.variants.ps03_block_pool import ALLOCATE, RELEASE, WRONG

from specdec_course.checks import GRADING_SEED, CheckFailed
from specdec_course.checks import ps03_block_pool as checks
from specdec_course.checks.ps03_block_pool.pools import Pool, standing_on_right

NAME = "ps03-block-pool"
BODIES = ["pass", "return []", "return 0", "return False", "return True", "return None", "return ()", "return [0]"]
BODIES += ["raise MemoryError", "raise ValueError", "yield"]


def headers():
    cells = nbformat.read(ROOT / "solutions" / NAME / f"{NAME}.ipynb", as_version=4).cells
    ids = {c.metadata.get("nbgrader", {}).get("grade_id", ""): c.source for c in cells}
    return {k[6:]: re.search("^def .*:$", v, re.MULTILINE)[0] for k, v in ids.items() if k.startswith("solve-")}


def named(source, name):
    space = {"deque": deque}
    exec(source, space)
    return space[name]


@pytest.mark.parametrize(
    "body", [pytest.param(b, marks=[pytest.mark.slow] if i > 1 else []) for i, b in enumerate(BODIES)]
)
def test_functions_that_do_nothing_earn_nothing(body, monkeypatch):
    monkeypatch.setenv(GRADING_SEED, "1")
    result = marks(NAME, {key: f"{header}\n    {body}\n" for key, header in headers().items()})
    assert len(result.earned) == 12 and set(result.earned.values()) == {0}, result.earned


def test_a_message_holds_a_pool_and_a_call_that_fail_when_pasted(monkeypatch):
    monkeypatch.delenv(GRADING_SEED, raising=False)
    twice = next(w.cells["release"] for w in WRONG if w.name.startswith("duplicate ids"))
    with pytest.raises(CheckFailed) as failed:
        checks.release(named(twice, "release"), seed=3)
    lines = str(failed.value).splitlines()
    code = [line[12:] for line in lines[1 : next(i for i, line in enumerate(lines) if line.startswith("  got"))]]
    space = {"Pool": Pool, "deque": deque}
    with pytest.raises(ValueError):
        exec("\n".join(code), space | {"release": named(RELEASE, "release")})
    exec("\n".join(code), space | {"release": named(twice, "release")})


def test_right_functions_stand_in_for_others_and_the_notebook_keeps_its_own():
    source = "def allocate(pool, n): return []\ndef helper(pool): return allocate(pool, 2)\n"
    source += "def append(pool): return helper(pool)"
    append = named(source, "append")
    pool = Pool(3, 4)
    assert standing_on_right(append)(pool) == [0, 1] and pool.refs == [1, 1, 0]
    assert append(pool) == []


def test_a_part_that_calls_an_unwritten_function_is_judged_with_a_right_one(monkeypatch):
    monkeypatch.delenv(GRADING_SEED, raising=False)
    unwritten = "def allocate(pool, n): raise NotImplementedError('later')\n"
    append_cow = next(w for w in WRONG if w.name == "no copy on write").cells["append_cow"]
    right = append_cow.replace(" and False", " and pool.refs[table[-1]] > 1")
    assert checks.append_cow(named(unwritten + right, "append_cow")) == 1
    with pytest.raises(CheckFailed, match="without a copy"):
        checks.append_cow(named(unwritten + append_cow, "append_cow"))
    assert checks.allocate(named(ALLOCATE, "allocate")) == 1
