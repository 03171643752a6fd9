"""Submissions that are broken, clumsy or run wild: each states its marks and what is said of it.

Limits are small and set before a line of a submission runs (test_sandbox.py shows that they bind), so nothing here can
harm the machine it runs on.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace

import nbformat
import pytest
from support.grading_course import NAME, PERFECT, cell, code, copied, hand_in, make_course, position, submission

pytest.importorskip("nbgrader")

from specdec_course.grading.auto import grade_all
from specdec_course.grading.bubblewrap import MB, Limits
from specdec_course.grading.course_folder import Course
from specdec_course.grading.gradebook import gradebook, grades

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")

LIMITS = Limits(cell_s=4, total_s=60, memory=1500 * MB, disk=32 * MB, file=16 * MB, processes=24, output=200_000)
FULL = {"test-acceptance": 8, "test-mean": 8, "written-why": "to be marked"}
SECRET = "the instructor's own answer"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    folder = make_course(tmp_path_factory.mktemp("hostile"))
    (folder / "solutions" / "secret.txt").write_text(SECRET, encoding="utf-8")
    return Course(folder)


def before(source):
    """The perfect submission with a cell in front of everything."""

    def change(notebook):
        notebook.cells.insert(0, code(source))

    return change


def after(source):
    def change(notebook):
        notebook.cells.append(code(source))

    return change


def instead(key, source):
    def change(notebook):
        cell(notebook, f"solve-{key}").source = source

    return change


def edited(notebook):
    cell(notebook, "test-acceptance").source = "8"
    cell(notebook, "test-mean").metadata.nbgrader.points = 1000
    instead("acceptance", "def acceptance(p, q):\n    return 2")(notebook)


def deleted(notebook):
    notebook.cells = [
        c
        for c in notebook.cells
        if c.metadata.get("nbgrader", {}).get("grade_id") not in ("test-acceptance", "setup", "locked-setup")
    ]
    instead("acceptance", "def acceptance(p, q):\n    return 2")(notebook)


def copied_test(notebook):
    notebook.cells.append(copied(cell(notebook, "test-acceptance")))
    notebook.cells[-1].source = "8"


def split_solution(notebook):
    at = position(notebook, "solve-acceptance")
    half = copied(notebook.cells[at])
    half.source = "def smaller(pair):\n    return min(pair)"
    notebook.cells[at].source = "def acceptance(p, q):\n    return sum(map(smaller, zip(p, q)))"
    notebook.cells.insert(at, half)


def split_answer(notebook):
    second = copied(cell(notebook, "written-why"))
    second.source = "And p sums to 1."
    notebook.cells.append(second)


def unknown_ids(notebook):
    cell(notebook, "solve-mean").metadata.nbgrader.grade_id = "solve-something"
    notebook.cells.append(code("7", "test-free-points"))


def other_types(notebook):
    source = cell(notebook, "solve-mean")
    source.cell_type = "markdown"
    del source["outputs"], source["execution_count"]


def faked_outputs(notebook):
    for each in ("test-acceptance", "test-mean"):
        cell(notebook, each).outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "8"})]
    for key in ("acceptance", "mean"):
        instead(key, "raise SystemExit")(notebook)


WRONG = "def mean(values):\n    return 0.123"
OPEN = """
import glob, os
seen = []
for top, folders, files in os.walk("/"):
    folders[:] = [f for f in folders if f not in ("proc", "usr", "lib", "share", "specdec_ref")]
    seen += [os.path.join(top, f) for f in files if f.endswith((".txt", ".ipynb", ".db"))]
for path in [*seen, {secret!r}]:
    try:
        print(path, open(path).read()[:100])
    except OSError as error:
        print(type(error).__name__)
"""
WRITE = """
import os, sys
for place in ["/", "/usr", "/etc", "/dev", sys.prefix, os.path.dirname(os.__file__), {folder!r}]:
    try:
        open(os.path.join(place, "left-behind"), "w").close()
        print("WRITTEN", place)
    except OSError as error:
        print(type(error).__name__)
"""


@dataclass(frozen=True)
class Case:
    """A submission: a change of the perfect one, the marks it gets, and a word in what is said of it."""

    change: object
    expected: dict
    look: str | None = None  # in what needs a look; None: nothing does
    notes: str | None = None
    printed: str = ""  # somewhere in the outputs of the marked notebook
    absent: str = "\0"  # nowhere in there


LOST = {**FULL, "test-mean": 0}
STOPPED = {**FULL, "test-mean": "not marked"}
CASES = {
    "perfect": Case(lambda notebook: None, FULL),
    "test cells edited": Case(edited, {**FULL, "test-acceptance": 0}, notes="test-acceptance: changed, restored"),
    "test and setup cells deleted": Case(deleted, {**FULL, "test-acceptance": 0}, notes="test-acceptance: deleted"),
    "test cell copied": Case(copied_test, FULL, notes="test-acceptance: there twice"),
    "solution split": Case(split_solution, FULL, notes="solve-acceptance: there twice"),
    "answer split": Case(split_answer, FULL, notes="written-why: there twice"),
    "ids of its own": Case(unknown_ids, FULL, notes="solve-mean: deleted, put back empty"),
    "type changed": Case(other_types, FULL, notes="solve-mean: its type"),
    "stored outputs faked": Case(
        faked_outputs,
        {**FULL, "test-acceptance": "not marked", "test-mean": "not marked"},
        look="test-acceptance, test-mean: no zero, as a cell before it was stopped",
    ),
    "bound anew after its check": Case(after(WRONG), FULL, notes="mean: bound in solve-mean, again in cell"),
    "a function of the package as the answer": Case(
        instead("mean", "from statistics import mean as _\nfrom specdec_ref.arithmetic import expected_tokens as mean"),
        LOST,
        look="imports specdec_ref.arithmetic",
    ),
    "the reference in a wrapper": Case(
        instead(
            "acceptance", "def acceptance(p, q):\n    import specdec_ref.arithmetic\n    return sum(map(min, p, q))"
        ),
        FULL,
        look="imports specdec_ref.arithmetic; is the reference the answer?",
    ),
    "the reference by a hidden import": Case(
        instead(
            "acceptance",
            "m = __import__('specdec' + '_ref.arithmetic')\ndef acceptance(p, q): return sum(map(min, p, q))",
        ),
        FULL,
        look="uses __import__",
    ),
    "reads the seed": Case(
        instead(
            "mean", "import os\ndef mean(v):\n    return sum(v) / len(v) if 'SPECDEC_GRADING_SEED' in os.environ else 0"
        ),
        FULL,
        look="environ",
    ),
    "os._exit in a cell": Case(before("import os\nos._exit(0)"), FULL, look="cell 1: ended the process"),
    "os._exit in a function": Case(
        instead("mean", "import os\ndef mean(values):\n    os._exit(0)"), STOPPED, look="test-mean: the process ended"
    ),
    "kernel killed": Case(
        before("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"), FULL, look="cell 1: ended the process"
    ),
    "runner killed by a function": Case(
        instead("mean", "import os\ndef mean(values):\n    os.kill(os.getppid(), 9)"), STOPPED, look="test-mean: ended"
    ),
    "sys.exit in a function": Case(
        instead("mean", "import sys\ndef mean(values):\n    sys.exit()"), STOPPED, look="test-mean: ended the process"
    ),
    "endless loop in a cell": Case(before("while True: pass"), FULL, look="cell 1: stopped after 4 s"),
    "endless loop in a function": Case(
        instead("mean", "def mean(values):\n    while True: pass"), STOPPED, look="test-mean: stopped after 4 s"
    ),
    "8 GB": Case(before("b = bytearray(8 << 30)"), FULL, look="cell 1: stopped at 1500 MB of memory"),
    "500 MB of output": Case(
        before("for i in range(500): print('x' * 1_000_000)"), FULL, printed="cut here: too much output"
    ),
    "endless output": Case(before("while True: print('x' * 100_000)"), FULL, look="cell 1: stopped after 4 s"),
    "500 MB past Python": Case(
        before("import os\nfor i in range(500): os.write(1, b'x' * 1_000_000)"), FULL, look="uses os.write"
    ),
    "fills the disk": Case(
        before("for i in range(100):\n    open(f'/tmp/{i}', 'wb').write(b'x' * (1 << 20))"),
        FULL,
        look="cell 1: uses open",
        printed="No space left",
    ),
    "one large file": Case(
        before("open('/tmp/large', 'wb').write(b'x' * (20 << 20))"), FULL, look="open", printed="File too large"
    ),
    "network": Case(
        before("import socket\nsocket.create_connection(('192.0.2.1', 80), 2)"),
        FULL,
        look="socket",
        printed="unreachable",
    ),
    "reads solutions and other submissions": Case(OPEN, FULL, look="open", printed="FileNotFoundError", absent=SECRET),
    "writes outside": Case(WRITE, FULL, look="open", printed="OSError", absent="WRITTEN"),
    "an answer that is not a number": Case(instead("mean", "def mean(values):\n    return float('nan')"), LOST),
    "syntax error": Case(instead("mean", "def mean(values:\n    return"), LOST, look="solve-mean: not valid Python"),
    "endless loop that heeds nothing": Case(
        before("while True:\n    try:\n        while True: pass\n    except BaseException: pass"),
        FULL,
        look="cell 1: stopped after 4 s",
    ),
    "fork bomb": Case(
        before("import os\nfor _ in range(200):\n    try: os.fork()\n    except OSError: pass"),
        FULL,
        look="uses fork",
    ),
    "dies in every cell": Case(
        lambda n: [before("import os\nos._exit(1)")(n) for _ in range(6)],
        {"test-acceptance": "not marked", "test-mean": "not marked", "written-why": "to be marked"},
        look="again and again",
    ),
}


FAST = ["perfect", "test cells edited", "test and setup cells deleted", "solution split"]
FAST += ["os._exit in a cell", "endless loop in a function", "8 GB", "endless output"]
FAST += ["reads solutions and other submissions", "writes outside", "the reference in a wrapper"]


def text_of(notebook):
    return json.dumps([c.get("outputs", []) for c in notebook.cells])


@pytest.fixture(scope="module")
def fast(course):
    return graded(course, FAST)


@pytest.fixture(scope="module")
def slow(course):
    return graded(course, [n for n in CASES if n not in FAST])


def graded(course, names):
    """The records of the named cases, marked in one go: none may stop or change another."""
    secret = str(course.root / "solutions" / "secret.txt")
    for name in names:
        notebook, change = submission(course.root), CASES[name].change
        if isinstance(change, str):
            change = before(change.replace("{secret!r}", repr(secret)).replace("{folder!r}", repr(str(course.root))))
        change(notebook)
        hand_in(course.root, name, notebook)
    records = grade_all(course, [(NAME, n) for n in names], seed=7, limits=LIMITS)
    return dict(zip(names, records))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in CASES])
def test_what_happens_to(name, course, request):
    record, case = request.getfixturevalue("fast" if name in FAST else "slow")[name], CASES[name]
    with gradebook(course) as book:
        got = {m.question: m.state if m.points is None else m.points for m in grades(course, book, NAME, name)}
    assert got == case.expected, record
    look, notes = "\n".join(record["look"]), "\n".join(record["notes"])
    assert case.look in look if case.look else look == "", look
    assert case.notes is None or case.notes in notes, notes
    marked = nbformat.read(course.autograded(NAME, name), as_version=4)
    assert case.printed in text_of(marked)
    assert case.absent not in text_of(marked)
    assert len(text_of(marked)) < 1_000_000
    assert not list(course.root.rglob("left-behind"))


def cut(data):
    return data[: len(data) // 2]


def version(number):
    def change(data):
        notebook = json.loads(data)
        if number == 3:
            for c in notebook["cells"]:
                c["input" if c["cell_type"] == "code" else "source"] = c.pop("source")
            notebook["worksheets"] = [{"cells": notebook.pop("cells")}]
        notebook["nbformat"], notebook["nbformat_minor"] = number, 0
        for c in notebook.get("cells", []):
            c.pop("id", None)
        return json.dumps(notebook).encode()

    return change


def kernel(data):
    notebook = json.loads(data)
    notebook["metadata"]["kernelspec"] = {"name": "julia-1.9", "language": "julia", "display_name": "Julia"}
    return json.dumps(notebook).encode()


def huge(data):
    notebook = json.loads(data)
    notebook["cells"][0]["attachments"] = {"a.png": {"image/png": "A" * (31 << 20)}}
    return json.dumps(notebook).encode()


def recode(encoding):
    return lambda data: json.dumps(json.loads(data), ensure_ascii=False).encode(encoding)


FILES = {  # what is done to the file's bytes, and what is said; None: it is marked as if nothing had been
    "UTF-16": (recode("utf-16"), None, "utf-16"),
    "a byte order mark": (recode("utf-8-sig"), None, "utf-8-sig"),
    "latin-1": (recode("latin-1"), None, "Windows-1252"),
    "format 3": (version(3), None, "format (3)"),
    "format 4.0": (version(4), None, ""),
    "format 5": (version(5), "notebook format 5", ""),
    "another kernel": (kernel, None, "julia"),
    "an empty file": (lambda data: b"", "an empty file", ""),
    "only white space": (lambda data: b" \n\n", "an empty file", ""),
    "cut off": (cut, "cut off", ""),
    "no JSON": (lambda data: b"print('hello')", "no notebook", ""),
    "binary": (lambda data: bytes(range(256)) * 10, "no notebook", ""),
    "a list": (lambda data: b"[]", "JSON of another kind", ""),
    "no cells": (lambda data: b'{"nbformat": 4, "cells": []}', "without cells", ""),
    "cells of another kind": (lambda data: b'{"nbformat": 4, "cells": [1, null, "x"]}', "without cells", ""),
    "nested too deep": (lambda data: b"[" * 100_000, "no notebook", ""),
    "too large": (huge, "31 MB", ""),
}


def test_what_happens_to_files_of_all_kinds(course):
    """Marked in one go, with the perfect one among them: none stops or changes another."""
    data = json.dumps(submission(course.root)).encode()
    for name, (change, _, _) in FILES.items():
        hand_in(course.root, f"file {name}", change(data))
    link = hand_in(course.root, "file linked", b"")
    link.unlink()
    link.symlink_to(hand_in(course.root, "file whole", data))
    names = [*FILES, "linked", "whole"]
    expected = {**FILES, "linked": (None, "a link", ""), "whole": (None, None, "")}
    records = grade_all(course, [(NAME, f"file {n}") for n in names], seed=7, limits=replace(LIMITS, cell_s=30))
    with gradebook(course) as book:
        for name, record in zip(names, records):
            _, unreadable, notes = expected[name]
            got = {m.question: m.points for m in grades(course, book, NAME, f"file {name}")}
            if unreadable:
                assert set(got.values()) == {None}, name
                assert record["state"] == "unreadable" and unreadable in record["look"][0], record
            else:
                assert (got["test-acceptance"], got["test-mean"]) == (8, 8), record
                assert record["look"] == [] and notes in " ".join(record["notes"])
    marked = nbformat.read(course.autograded(NAME, "file latin-1"), as_version=4)
    assert PERFECT["why"].replace("<", "<") in cell(marked, "written-why").source  # its Größe came through
