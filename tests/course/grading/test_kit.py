"""The archive for learners: complete, without answers, the same bytes each time."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile

import pytest
from support.paths import ROOT

SOLUTION = re.compile(r"(?:### |<!-- )BEGIN SOLUTION[^\n]*\n(.*?)(?:### |<!-- )END SOLUTION", re.DOTALL)


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    path = tmp_path_factory.mktemp("kit") / "kit.zip"
    subprocess.run([sys.executable, ROOT / "tools" / "student_kit.py", path], check=True, cwd=path.parent)
    return path


def git(*arguments):
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=True).stdout


def contents(kit):
    with zipfile.ZipFile(kit) as archive:
        return {n.partition("/")[2]: archive.read(n) for n in archive.namelist() if not n.endswith("/")}


def test_learners_find_what_they_need_and_no_answers(kit):
    names = set(contents(kit))
    for needed in ("README.md", "Makefile", "bootstrap.py", "pyproject.toml", "lessons/00_start_here.ipynb"):
        assert needed in names
    committed = subprocess.run(
        ["git", "ls-files", "exercises", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert committed and {n for n in names if n.startswith("exercises/")} <= set(committed)
    for left_out in (
        "solutions/",
        "grading/",
        "specdec_course/grading/",
        "tests/course/checks/",
        "tests/course/grading/",
        "tests/support/variants/",
        "INSTRUCTORS.md",
        "tools/sample_",
    ):
        assert not [n for n in names if n.startswith(left_out)]


def test_no_line_of_a_solution_is_in_it(kit):
    """But in the package, whose reference does the same things, and where the handed-out text has the line too."""
    sources = git("ls-tree", "-r", "--name-only", "HEAD", "solutions/src").split()
    assert sources
    text = {n: d.decode("utf-8", "replace") for n, d in contents(kit).items() if not n.startswith("specdec_ref/")}
    learners = {n: t for n, t in text.items() if n.startswith(("exercises/", "tests/", "tools/"))}
    for source in sources:
        whole = git("show", f"HEAD:{source}")
        given = SOLUTION.sub("", whole)
        for solution in SOLUTION.findall(whole):
            lines = [line.strip() for line in solution.splitlines()]
            for line in (s.removeprefix("# ") for s in lines if len(s) > 30):
                found = [n for n, t in learners.items() if line in t]
                assert not found or line in given, (line, found)
            # A lesson may share a line with a solution, never the whole of it.
            long = [s for s in lines if len(s) > 30]
            assert not any(
                len(long) > 2 and all(s in t for s in long) for n, t in text.items() if n.startswith("lessons/")
            )
    assert not [n for n, t in text.items() if "BEGIN SOLUTION" in t]


def test_the_same_commit_gives_the_same_bytes(kit, tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    again = tmp_path / "again.zip"
    subprocess.run([sys.executable, ROOT / "tools" / "student_kit.py", again], check=True)
    assert again.read_bytes() == kit.read_bytes()


def test_a_change_that_is_not_committed_is_not_in_it(kit):
    stray = ROOT / "exercises" / "stray-file-of-a-test.txt"
    try:
        stray.write_text("answers", encoding="utf-8")
        assert "exercises/stray-file-of-a-test.txt" not in contents(kit)
    finally:
        stray.unlink()
