"""The helper that plants a change in a lesson: it runs what is needed, and fails where nothing fails."""

import pytest
from support import lessons
from support.lessons import lesson_error, needed


def write(folder, *cells):
    (folder / "src").mkdir()
    (folder / "src" / "99_example.py").write_text("\n\n".join(f"# %%\n{c}" for c in cells), encoding="utf-8")


CELLS = (
    "import math\nbase = 2",
    "raise SystemExit('not needed')",
    "found = []\nfound.append(math.pow(base, 3))",
    "assert found[0] == 8, 'no cube'",
)


@pytest.fixture
def example(tmp_path, monkeypatch):
    monkeypatch.setattr(lessons, "LESSONS", tmp_path)
    write(tmp_path, *CELLS)


def test_the_error_of_a_planted_change_comes_back(example):
    error = lesson_error("99_example", "base = 2", "base = 3", at="assert found")
    assert isinstance(error, AssertionError) and "no cube" in str(error)


def test_a_change_that_nothing_notices_fails_the_test(example):
    with pytest.raises(pytest.fail.Exception, match="nothing fails"):
        lesson_error("99_example", "base = 2", "base = 2.0", at="assert found")


def test_a_text_that_does_not_stand_there_once_is_refused(example):
    with pytest.raises(AssertionError, match="stands 0 times"):
        lesson_error("99_example", "base = 4", "base = 3")
    with pytest.raises(AssertionError, match="stands 3 times"):
        lesson_error("99_example", "found", "lost")


def test_a_cell_is_needed_that_changes_what_is_used():
    assert needed([*CELLS], 3) == [0, 2, 3]
    assert needed(["a = {}", "a['x'] = 1", "b = 1", "print(a)"], 3) == [0, 1, 3]
    assert needed(["import torch as t", "def f():\n    return t", "f()"], 2) == [0, 1, 2]
