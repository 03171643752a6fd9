"""The archive for learners works by itself: nothing in it imports what was left out."""

import ast
import os
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import student_kit

OURS = {"specdec_ref", "specdec_course", "support", *(p.stem for p in Path(student_kit.__file__).parent.glob("*.py"))}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kit")
    student_kit.make(folder / "kit.zip")
    with zipfile.ZipFile(folder / "kit.zip") as archive:
        archive.extractall(folder)
    return folder / "specdec-course"


def run(unpacked, code):
    """Python that finds this project's packages only in the archive; metadata still name the grading command."""
    # An editable install finds what the archive lacks in the repository: without it.
    alone = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'Editable' not in str(f)]\n"
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    command = [sys.executable, "-c", alone + code]
    return subprocess.run(command, cwd=unpacked.parent, env=environment, capture_output=True, text=True)


def test_every_name_of_both_faces_is_there(unpacked):
    code = f"""
import importlib.util, specdec_ref, specdec_course
for face in (specdec_ref, specdec_course):
    assert face.__file__.startswith({str(unpacked)!r}), face.__file__
    assert all(getattr(face, name) is not None for name in face.__all__)
assert importlib.util.find_spec("specdec_course.grading") is None
"""
    result = run(unpacked, code)
    assert result.returncode == 0, result.stderr


def test_specdec_works_and_has_no_command_for_grading(unpacked):
    assert "grade" in {entry.name for entry in entry_points(group="specdec.commands")}, "installed, and missing here"
    for arguments in (["--help"], ["kv", "--model", "llama-3-70b", "--context", "8192"]):
        result = run(unpacked, f"from specdec_ref.cli import main; sys.exit(main({arguments}))")
        assert result.returncode == 0 and result.stderr == "", result.stderr
        assert result.stdout and "grade" not in result.stdout


def test_nothing_imports_what_was_left_out(unpacked):
    """Reads every file: packages, tests, tools, set-up."""
    roots = [unpacked, unpacked / "tests", unpacked / "tools"]
    missing = []
    for file in unpacked.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            for name in (n for n in names if n.split(".")[0] in OURS):
                path = name.replace(".", "/")
                if not any((root / f"{path}.py").exists() or (root / path).is_dir() for root in roots):
                    missing.append(f"{file.relative_to(unpacked)}: {name}")
    assert missing == []


def test_its_contracts_hold(unpacked):
    linter = Path(sys.executable).parent / "lint-imports"
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    result = subprocess.run([linter, "--no-cache"], cwd=unpacked, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
