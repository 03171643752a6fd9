"""The end of a test run says what this machine could not test."""

import os
import subprocess
import sys

import pytest
from support.not_tested import not_tested
from support.paths import ROOT

ONE = """
import pytest

@pytest.mark.skipif(True, reason="needs bubblewrap")
@pytest.mark.parametrize("i", range(3))
def test_in_a_sandbox(i): pass

def test_with_a_browser():
    pytest.skip("needs Chromium")

def test_by_moonlight():
    pytest.skip("no moon tonight")

def test_that_runs(): pass
"""
WHOLE = """
import pytest
pytest.importorskip("nbgrader_of_another_world", reason="could not import 'nbgrader'")

def test_a(): pass
def test_b(): pass
"""


def pytest_in(folder, *options):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "support.not_tested", *options, "--rootdir", folder, folder]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "two workers"])
def test_each_missing_thing_has_one_line_with_its_number_of_tests(tmp_path, workers):
    (tmp_path / "test_one.py").write_text(ONE, encoding="utf-8")
    (tmp_path / "test_whole.py").write_text(WHOLE, encoding="utf-8")
    run = pytest_in(tmp_path, *workers)
    assert run.returncode == 0, run.stdout + run.stderr
    lines = run.stdout.split("not tested on this machine")[1].splitlines()
    for line in (
        "bubblewrap: 3 tests. To have it: install your system's package `bubblewrap`",
        "Chromium: 1 test. To have it: install your system's package `chromium`",
        "nbgrader: at least 2 tests. To have it: python bootstrap.py --extras test,instructor",
        "no moon tonight: 1 test",
    ):
        assert lines.count(line) == 1, run.stdout


def test_where_nothing_is_skipped_nothing_is_said(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(): pass", encoding="utf-8")
    run = pytest_in(tmp_path)
    assert run.returncode == 0 and "not tested" not in run.stdout


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("no 4-bit kernel on this machine", "4-bit kernels"),
        ("no oneDNN bfloat16 products on this machine", "bfloat16 arithmetic"),
        ("triton is not installed: the kernel stays untested", "Triton"),
        ("needs a GPU: the interpreter multiplies bfloat16's bits as whole numbers", "a GPU"),
    ],
)
def test_the_reasons_of_this_projects_tests_are_known(reason, name):
    (line,) = not_tested([("file", 1, f"Skipped: {reason}")])
    assert line.startswith(f"{name}: 1 test. To have it: ")
