"""The files of a problem set hold together: source, instructor's notebook, released one; a kernel runs both."""

import re
import subprocess
import sys

import build_exercises
import nbformat
import pytest
from support.harness import ROOT, problem_sets

from specdec_course.checks import GRADING_SEED

SETS = problem_sets()
SOURCES = {p.stem.replace("_", "-"): p for p in (ROOT / "solutions" / "src").glob("ps*.py")}
SOLUTION = re.compile(r"(?:### |<!-- )BEGIN SOLUTION[^\n]*\n(.*?)(?:### |<!-- )END SOLUTION", re.DOTALL)
by_set = pytest.mark.parametrize("name", SETS)


def read(folder, name):
    return nbformat.read(ROOT / folder / name / f"{name}.ipynb", as_version=4)


def graded(notebook, kind):
    ids = {c.metadata.get("nbgrader", {}).get("grade_id", ""): c for c in notebook.cells}
    return {k.partition("-")[2]: c for k, c in ids.items() if k.startswith(f"{kind}-")}


def test_every_source_has_its_notebooks_and_the_other_way_round():
    assert SETS and set(SOURCES) == set(SETS)
    assert {p.parent.name for p in (ROOT / "exercises").glob("*/*.ipynb")} == set(SETS)
    stray = [p for p in (ROOT / "exercises").rglob("*") if p.is_file() and p.suffix != ".ipynb"]
    assert stray == [], "a file beside the released notebooks may hold answers"


@by_set
def test_the_instructors_notebook_is_what_its_source_says(name):
    path = ROOT / "solutions" / name / f"{name}.ipynb"
    made = nbformat.writes(build_exercises.read_source(SOURCES[name])) + "\n"
    assert path.read_text(encoding="utf-8") == made, "run `python tools/build_exercises.py`"


def test_releasing_again_gives_the_same_bytes(tmp_path):
    """Of all sets, in a copy, so that no test changes the checkout."""
    import shutil

    pytest.importorskip("nbgrader")
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    for name in SETS:
        shutil.copytree(ROOT / "solutions" / name, tmp_path / "solutions" / name)
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", "--force", "--no-db", "--log-level=WARN"]
    for name in SETS:
        subprocess.run([*command, name], cwd=tmp_path, check=True)
        made = (tmp_path / "exercises" / name / f"{name}.ipynb").read_bytes()
        released = (ROOT / "exercises" / name / f"{name}.ipynb").read_bytes()
        assert made == released, f"run `python tools/build_exercises.py {name}`"


@by_set
def test_released_notebooks_hold_no_line_of_a_solution(name):
    released = (ROOT / "exercises" / name / f"{name}.ipynb").read_text(encoding="utf-8")
    notebook = read("exercises", name)
    assert "BEGIN SOLUTION" not in released and "HIDDEN TESTS" not in released
    given = "\n".join(c.source for c in read("solutions", name).cells)
    given = SOLUTION.sub("", given)  # what a solution has in common with the given text is no secret
    text = "\n".join(c.source for c in notebook.cells)
    for cell in read("solutions", name).cells:
        for solution in SOLUTION.findall(cell.source):
            for line in map(str.strip, solution.splitlines()):
                assert len(line) < 12 or line in given or line not in text, line


@by_set
def test_notebooks_are_stored_without_outputs_and_as_learners_need_them(name):
    for folder in ("solutions", "exercises"):
        notebook = read(folder, name)
        assert notebook.metadata.kernelspec.name == "python3"
        assert all(c.get("outputs", []) == [] and c.get("execution_count") is None for c in notebook.cells)
        tests = graded(notebook, "test")
        assert tests and set(graded(notebook, "solve"))
        assert all("raises-exception" in c.metadata.tags for c in tests.values())
        ids = [c.id for c in notebook.cells]
        assert len(ids) == len(set(ids))


def run(notebook, marking):
    """Execute a notebook in a kernel, as a learner or (with a seed) as at marking. The output of each test cell."""
    from nbclient import NotebookClient

    environment = {GRADING_SEED: "5"} if marking else {}
    client = NotebookClient(notebook, timeout=180, allow_errors=not marking, kernel_name="python3")
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {**environment, "OMP_NUM_THREADS": "1"}.items():
            patch.setenv(key, value)
        client.execute(cwd=str(ROOT / "exercises"))
    return graded(notebook, "test")


# One set in the fast run, all of them in the long one.
executed = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if i else []) for i, n in enumerate(SETS)]
)


@executed
def test_the_solution_gets_full_marks_from_a_kernel(name):
    for key, cell in run(read("solutions", name), marking=True).items():
        values = [o.data["text/plain"] for o in cell.outputs if o.output_type == "execute_result"]
        assert values and float(values[-1]) == cell.metadata.nbgrader.points, (key, cell.outputs)


@executed
def test_run_all_reaches_the_end_of_the_released_notebook_and_every_test_fails(name):
    notebook = read("exercises", name)
    for key, cell in run(notebook, marking=False).items():
        assert any(o.output_type == "error" and o.ename == "CheckFailed" for o in cell.outputs), (key, cell.outputs)
    assert all(c.execution_count for c in notebook.cells if c.cell_type == "code" and c.source.strip())
