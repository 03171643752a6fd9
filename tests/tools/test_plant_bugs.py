"""The list of planted bugs fits the code as it is now, and the tool that plants them leaves the checkout alone."""

from __future__ import annotations

import ast

import plant_bugs
import pytest
from support.paths import ROOT
from support.planted_bugs import BUGS, Bug


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_fits_the_code(bug):
    source = plant_bugs.with_bug(bug, (ROOT / bug.file).read_text(encoding="utf-8"))
    ast.parse(source)
    assert bug.old != bug.new and bug.tests and all((ROOT / test).exists() for test in bug.tests)


def test_each_has_a_name_of_its_own():
    assert len(BUGS) >= 50 and len({bug.name for bug in BUGS}) == len(BUGS)


def test_a_bug_whose_text_is_gone_or_there_twice_is_refused():
    for text, times in (("a + b", 0), ("a - b; a - b", 2)):
        with pytest.raises(ValueError, match=f"{times} times"):
            plant_bugs.with_bug(Bug("minus", "m.py", "a - b", "b - a", ()), text)


def test_a_bug_is_gone_after_its_run_also_after_an_error(tmp_path):
    (tmp_path / "m.py").write_text("a - b", encoding="utf-8")
    with pytest.raises(KeyError), plant_bugs.planted(Bug("minus", "m.py", "a - b", "b - a", ()), tmp_path):
        assert (tmp_path / "m.py").read_text(encoding="utf-8") == "b - a"
        raise KeyError
    assert (tmp_path / "m.py").read_text(encoding="utf-8") == "a - b"


PLANTED = Bug("one GB of 1,024", "specdec_ref/arithmetic/units.py", "nbytes / 1e9:", "nbytes / 1.024e9:", ())


@pytest.mark.parametrize("bwrap", [True, False])
def test_only_the_run_sees_the_bug(tmp_path, monkeypatch, bwrap):
    """In a copy, with a test of its own: it passes without the bug, and fails with it."""
    if bwrap and plant_bugs.shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap")
    if not bwrap:
        monkeypatch.setattr(plant_bugs.shutil, "which", lambda name: None)
    plant_bugs.copy_project(tmp_path / "copy")
    test = "from specdec_ref.arithmetic import size_text\ndef test_it(): assert size_text(1e9).startswith('1.00 GB')\n"
    (tmp_path / "copy" / "test_one.py").write_text(test, encoding="utf-8")
    before = (ROOT / PLANTED.file).read_bytes()
    assert plant_bugs.noticed_by(tmp_path / "copy", ["test_one.py"]) == plant_bugs.SURVIVED
    with plant_bugs.planted(PLANTED, tmp_path / "copy"):
        assert plant_bugs.noticed_by(tmp_path / "copy", ["test_one.py"]) == "test_one.py::test_it"
    assert (ROOT / PLANTED.file).read_bytes() == before and not (ROOT / "test_one.py").exists()


def test_tests_that_do_not_end_are_noticed_as_hanging(tmp_path, monkeypatch):
    monkeypatch.setattr(plant_bugs, "SECONDS", 1)
    monkeypatch.setattr(plant_bugs, "in_place_of_the_checkout", lambda copy: ["sh", "-c", "sleep 60", "sh"])
    monkeypatch.setattr(plant_bugs.shutil, "which", lambda name: "bwrap")
    assert plant_bugs.noticed_by(tmp_path, []).startswith("hanging")
