"""What every lesson keeps to; nbval runs them, these tests read them."""

import ast
import importlib
import inspect
import re

import nbformat
import pytest
from build_lessons import read_source
from support.paths import ROOT

import specdec_course

LESSONS = sorted((ROOT / "lessons").glob("*.ipynb"))
FACES = {"specdec_course", "specdec_ref"}
FACES |= {f"specdec_ref.{room}" for room in ("arithmetic", "cache", "measure", "models", "proof", "verify")}
lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)


def cells(path, kind):
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == kind]


def text(path):
    return "\n".join(c.source for c in cells(path, "markdown"))


def test_there_are_lessons():
    assert LESSONS
    assert {p.stem for p in LESSONS} == {p.stem for p in (ROOT / "lessons" / "src").glob("*.py")}


@lesson
def test_notebook_and_source_are_the_same(path):
    ours, source = nbformat.read(path, as_version=4), read_source(ROOT / "lessons" / "src" / f"{path.stem}.py")
    assert [(c.cell_type, c.source, c.id) for c in ours.cells] == [
        (c.cell_type, c.source, c.id) for c in source.cells
    ], f"run tools/build_lessons.py {path.stem[:2]}"


@lesson
def test_metadata_names_no_private_kernel(path):
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata.kernelspec == {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert notebook.metadata.language_info == {"name": "python"}
    assert "widgets" not in notebook.metadata
    nbformat.validate(notebook)


@lesson
def test_every_cell_has_run_and_in_order(path):
    code = cells(path, "code")
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
    assert sum(bool(c.outputs) for c in code) > len(code) // 2
    for cell in code:
        if "nbval-check-output" in cell.metadata.get("tags", []):
            assert cell.outputs, "a checked cell without output checks nothing"
        if "raises-exception" in cell.metadata.get("tags", []):
            assert any(o.output_type == "error" for o in cell.outputs), "this cell is tagged to fail, and did not"
        else:
            assert not any(o.output_type == "error" for o in cell.outputs)


@lesson
def test_outputs_name_no_place_of_a_machine(path):
    outputs = "".join(nbformat.writes(nbformat.v4.new_notebook(cells=[c])) for c in cells(path, "code"))
    without_images = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", outputs)
    assert not re.search(r"/(root|home|tmp|work|Users|usr|opt)/", without_images)
    assert not re.search(r"\b0x[0-9a-f]{8,}", without_images)


@lesson
def test_cells_are_short_and_parse(path):
    for cell in cells(path, "code"):
        ast.parse(cell.source)
        assert len(cell.source.splitlines()) <= 45, f"{cell.id} is too long to be read on one screen"


@lesson
def test_anatomy(path):
    words = text(path)
    assert re.match(rf"# {path.stem.split('_')[0]} · ", words), "the title begins with the lesson's number"
    assert re.search(r"\*\d+ minutes", words)
    for part in ("Check yourself", "In production", "What to remember", "Sources"):
        assert part in words, f"no part {part!r}"
    assert "<details>" in words


def imported(source):
    """(module, name) of everything that a cell imports from this project's packages; name is None for a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specdec"):
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.startswith("specdec"))


@lesson
def test_a_lesson_imports_from_faces_only(path):
    """The course is one name, `course`; what the lesson is about comes from the rooms of `specdec_ref`."""
    found = [pair for c in cells(path, "code") for pair in imported(c.source)]
    assert [m for m, _ in found if m.startswith("specdec_course")] == ["specdec_course"], (
        "import specdec_course as course"
    )
    assert {m for m, _ in found} <= FACES and len({m for m, _ in found}) <= 6
    for module, name in found:
        assert name is None or name in importlib.import_module(module).__all__


def from_the_course(node):
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "course"


@lesson
def test_names_of_the_course_exist_and_calls_fit_them(path):
    for cell in cells(path, "code"):
        nodes = list(ast.walk(ast.parse(cell.source)))
        for node in filter(from_the_course, nodes):
            assert node.attr in specdec_course.__all__, f"{cell.id}: course.{node.attr}"
        for call in (n for n in nodes if isinstance(n, ast.Call) and from_the_course(n.func)):
            if not any(isinstance(a, ast.Starred) for a in call.args):
                signature = inspect.signature(getattr(specdec_course, call.func.attr))
                signature.bind(*call.args, **{k.arg: k.value for k in call.keywords if k.arg})


@lesson
def test_pictures_have_words(path):
    for cell in cells(path, "code"):
        for output in cell.outputs:
            data = output.get("data", {})
            assert "image/png" not in data, f"{cell.id}: use specdec_course.show, which keeps a description"
            for image in re.findall(r"<img [^>]*>", "".join(data.get("text/html", ""))):
                assert re.search(r'alt="[^"]{20,}"', image), f"{cell.id}: a picture without a description"
