"""The commands an instructor types, from release to export, over a course with one tiny problem set."""

from __future__ import annotations

import csv
import html
import json
import re
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
from support.grading_course import NAME, PERFECT, cell, code, hand_in, make_course, submission

pytest.importorskip("nbgrader")

from specdec_course.grading.course_folder import Course, read_json
from specdec_ref.cli import main

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")

HALF = {**PERFECT, "acceptance": "def acceptance(p, q):\n    return sum(map(max, p, q))"}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course that was graded once: anna perfect, bert with a mistake, clara hostile, dora an empty file."""
    folder = make_course(tmp_path_factory.mktemp("flow"))
    given = tmp_path_factory.mktemp("given")
    hostile = submission(folder)
    hostile.cells.insert(0, code("import os\nos._exit(0)"))
    hostile.cells.append(code("acceptance = lambda p, q: 3\nimport specdec_ref\nspecdec_ref.load_model = None"))
    handed = {"anna": submission(folder), "bert": submission(folder, HALF), "clara": hostile}
    for student, notebook in handed.items():
        place = given / student / f"{NAME}.ipynb"
        place.parent.mkdir()
        place.write_text(json.dumps(notebook), encoding="utf-8")
    (given / "dora_ps01.ipynb").write_bytes(b"")
    (given / "readme.txt").write_text("not a notebook", encoding="utf-8")
    assert main(["grade", "--course", str(folder), "collect", str(given)]) == 1  # the text file is told
    assert main(["grade", "--course", str(folder), "auto"]) == 1
    return Course(folder)


def grade(course, *arguments):
    return main(["grade", "--course", str(course.root), *map(str, arguments)])


def exported(course):
    path = course.root / "marks.csv"
    code = grade(course, "export", path)
    with path.open(encoding="utf-8-sig", newline="") as file:
        return code, {
            row["student"]: {k.removeprefix(f"{NAME} "): v for k, v in row.items()} for row in csv.DictReader(file)
        }


def test_the_table_of_marks_says_who_needs_a_look_and_why(course, capsys):
    assert grade(course, "auto", "--json") == 1
    rows = {r["student"]: r for r in json.loads(capsys.readouterr().out)}
    assert rows["anna"]["marks"] == "16 of 16" and rows["anna"]["look"] == []
    assert rows["anna"]["to_mark"] == ["written-why"]
    assert rows["bert"]["by_question"] == {"test-acceptance": 4, "test-mean": 8, "written-why": "to be marked"}
    assert rows["clara"]["by_question"]["test-acceptance"] == 8 and rows["clara"]["by_question"]["test-mean"] == 8
    assert {
        "cell 1: ended the process; it was left out",
        "cell 12: imports specdec_ref; is the reference the answer?",
        "cell 12: assigns to specdec_ref.load_model",
    } <= set(rows["clara"]["look"])
    assert rows["dora"]["marks"] == "not run" and rows["dora"]["look"] == ["an empty file"]
    assert len({r["seed"] for r in rows.values()}) == 1
    assert not any(r["again"] for r in rows.values())  # the second run marks nothing anew


def test_the_csv_has_every_question_and_no_zero_for_what_did_not_run(course, tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_bytes("id;last_name;first_name\nanna;Müller;=Anna\nemil;Späth;Emil\n;x;y\nanna;z;z\n".encode("cp1252"))
    assert grade(course, "roster", roster) == 1  # two lines were left out
    code, rows = exported(course)
    assert code == 1
    assert list(rows["anna"]) == [
        "student", "last name", "first name", "test-acceptance /8", "test-mean /8", "written-why /4",
        "marked so far", "total /20", "needs a look",
    ]  # fmt: skip
    anna, dora, emil = rows["anna"], rows["dora"], rows["emil"]
    assert (anna["last name"], anna["first name"]) == ("Müller", "'=Anna")
    assert (anna["test-mean /8"], anna["written-why /4"], anna["total /20"]) == ("8.0", "to be marked", "")
    assert {v for k, v in dora.items() if "/" in k} == {"not run", ""} and dora["needs a look"] == "an empty file"
    assert {v for k, v in emil.items() if "/" in k} == {"not submitted", ""} and emil["needs a look"] == ""


def test_what_was_marked_by_hand_survives_every_further_run(course):
    path = course.root / "answers.csv"
    assert grade(course, "answers", path) == 0
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {r["student"] for r in rows} == {"anna", "bert", "clara"}
    assert rows[0]["answer"] == PERFECT["why"] and rows[0]["at most"] == "4"
    rows[0] |= {"points": "3,5", "comment": "=nearly: Größe"}
    rows[1] |= {"points": "1", "question": "test-mean"}  # a test's points can be changed by hand, too
    write(path, rows)
    assert grade(course, "mark", path) == 0
    before = exported(course)[1]
    assert before["anna"]["total /20"] == "19.5" and before["bert"]["test-mean /8"] == "1.0"
    assert grade(course, "auto", "--student", "anna", "--force") == 0
    assert exported(course)[1] == before
    # Another submission: points and comment stay, and somebody is told to look.
    changed = submission(course.root, {**PERFECT, "why": "Something else."})
    given = course.root / "late"
    place = given / "anna" / "ps01.ipynb"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(changed), encoding="utf-8")
    assert grade(course, "collect", given) == 1
    assert grade(course, "collect", given, "--replace") == 0
    assert exported(course)[1] == before  # not marked anew yet
    assert grade(course, "auto", "--student", "anna") == 0
    after = exported(course)[1]["anna"]
    assert after["written-why /4"] == "3.5"
    assert after["needs a look"] == "written-why: marked by hand before the submission changed"
    assert grade(course, "feedback") == 1  # none for dora
    page = course.feedback(NAME, "anna").read_text(encoding="utf-8")
    assert "Größe" in page and "Something else." in page


def write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"points": "5"}, "not between 0 and 4"),
        ({"points": "nan"}, "not between 0 and 4"),
        ({"points": "x"}, "not between 0 and 4"),
        ({"points": "1", "question": "written-nothing"}, "no question 'written-nothing'"),
        ({"points": "1", "problem set": "ps99"}, "no question"),
        ({"points": "1", "student": "nobody"}, "nothing of nobody"),
    ],
)
def test_marks_by_csv_are_stored_all_or_none(course, tmp_path, change, said, capsys):
    before = exported(course)
    fine = {"student": "bert", "problem set": NAME, "question": "written-why", "points": "2", "comment": ""}
    write(tmp_path / "marks.csv", [fine, {**fine, **change}])
    assert grade(course, "mark", tmp_path / "marks.csv") == 1
    assert said in capsys.readouterr().err
    assert exported(course) == before


def test_nbgraders_own_autograde_does_not_run_a_submission(course):
    hand_in(course.root, "guarded", submission(course.root, {"mean": "open('/tmp/ran-unguarded', 'w')"}))
    command = [sys.executable, "-m", "nbgrader", "autograde", NAME, "--student", "guarded", "--force"]
    done = subprocess.run(command, cwd=course.root, capture_output=True, text=True)
    assert done.returncode and "specdec grade auto" in done.stdout + done.stderr
    shutil.rmtree(course.submitted / "guarded")


def test_a_release_does_not_touch_marks_and_gives_the_same_bytes(course, capsys):
    before, released = exported(course), course.released(NAME).read_bytes()
    assert grade(course, "release") == 0
    assert "released again, nothing changed" in capsys.readouterr().out
    assert exported(course) == before and course.released(NAME).read_bytes() == released


def test_killed_in_the_middle_it_leaves_what_can_be_gone_on_with(tmp_path):
    """At any moment: marked ones stay marked, the others count as not marked, and a second run completes them."""
    course = Course(make_course(tmp_path))
    for i in range(3):
        hand_in(course.root, f"s{i}", submission(course.root))
    slow = submission(course.root)
    slow.cells.insert(0, code("import time\ntime.sleep(40)"))
    hand_in(course.root, "s3", slow)
    command = [sys.executable, "-m", "specdec_ref.cli", "grade", "--course", str(course.root), "auto", "--jobs", "1"]
    process = subprocess.Popen(command)
    until = time.monotonic() + 90
    while not course.record(NAME, "s0").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, rows = exported(course)
    assert rows["s0"]["test-mean /8"] == "8.0"
    assert rows["s3"]["test-mean /8"] == "not run" and "not graded yet" in rows["s3"]["needs a look"]
    hand_in(course.root, "s3", submission(course.root))
    stored = read_json(course.record(NAME, "s0"))
    assert grade(course, "auto") == 0
    assert read_json(course.record(NAME, "s0")) == stored
    _, rows = exported(course)
    assert all(rows[f"s{i}"]["test-mean /8"] == "8.0" for i in range(4))


def test_interrupted_it_stops_soon_and_says_so(course, tmp_path):
    slow = submission(course.root)
    slow.cells.insert(0, code("import time\ntime.sleep(120)"))
    hand_in(course.root, "slow", slow)
    arguments = ["grade", "--course", str(course.root), "auto", "--student", "slow"]
    process = subprocess.Popen([sys.executable, "-m", "specdec_ref.cli", *arguments], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not psutil.Process(process.pid).children() and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(2)  # the sandbox runs
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=40)
    assert process.returncode == 130 and "stopped" in said
    assert not course.record(NAME, "slow").exists()
    shutil.rmtree(course.submitted / "slow")


def test_errors_are_one_line_that_says_what_to_do(course, tmp_path, capsys, monkeypatch):
    def said(*arguments):
        code = main(["grade", *map(str, arguments)])
        return code, capsys.readouterr().err

    assert said("--course", tmp_path, "release") == (
        1,
        f"specdec: {tmp_path} is not in a course: go to the folder that holds nbgrader_config.py, or name it with "
        "--course\n",
    )
    assert "no problem set begins with 'ps9'" in said("--course", course.root, "auto", "ps9")[1]
    assert "nothing of 'nobody' was collected" in said("--course", course.root, "auto", "--student", "nobody")[1]
    with course.locked():
        assert "another `specdec grade`" in said("--course", course.root, "auto")[1]
    monkeypatch.setenv("PATH", "/nowhere")
    from specdec_course.grading.bubblewrap import require_sandbox

    require_sandbox.cache_clear()
    code, text = said("--course", course.root, "auto", "--force")
    assert code == 1 and "apt install bubblewrap" in text
    require_sandbox.cache_clear()
    monkeypatch.setitem(sys.modules, "nbgrader", None)
    assert said("--course", course.root, "release")[1].endswith("python3 bootstrap.py --extras instructor\n")


def test_the_first_release_in_a_fresh_clone_does_not_claim_to_be_the_second(tmp_path, capsys):
    """A clone has the learners' notebook, and no gradebook."""
    course = Course(make_course(tmp_path))
    (course.grading / "gradebook.db").unlink()
    assert grade(course, "release") == 0
    assert "released; the notebook in exercises/ was up to date" in capsys.readouterr().out
    course.released(NAME).unlink()
    assert grade(course, "release") == 0
    assert "ps01-example: released\n" in capsys.readouterr().out


def test_a_run_that_did_not_start_is_tried_again(tmp_path, monkeypatch, capsys):
    from specdec_course.grading import sandbox

    course = Course(make_course(tmp_path))
    hand_in(course.root, "anna", submission(course.root))
    monkeypatch.setattr(sandbox, "bwrap", lambda *_: ["false"])
    assert grade(course, "auto") == 1
    said = capsys.readouterr().out
    assert "did not start" in said and "tries it again" in said and "not run" in said
    assert exported(course)[1]["anna"]["test-mean /8"] == "not run"
    monkeypatch.undo()
    assert grade(course, "auto") == 0
    assert exported(course)[1]["anna"]["test-mean /8"] == "8.0"


def test_what_has_no_mark_is_no_zero_on_any_page_and_extra_points_count(tmp_path):
    """One part ends its process, one is not marked by hand yet; the third has extra points from formgrader."""
    from specdec_course.grading.gradebook import gradebook

    course = Course(make_course(tmp_path))
    notebook = submission(course.root, {**PERFECT, "mean": "import os\ndef mean(values):\n    os._exit(0)"})
    hand_in(course.root, "anna", notebook)
    assert grade(course, "auto") == 1
    with gradebook(course) as book:
        book.find_grade("test-acceptance", NAME, NAME, "anna").extra_credit = 1.5
        book.db.commit()
    anna = exported(course)[1]["anna"]
    assert anna["test-acceptance /8"] == "9.5" and anna["marked so far"] == "9.5"
    assert (anna["test-mean /8"], anna["written-why /4"], anna["total /20"]) == ("not marked", "to be marked", "")
    assert grade(course, "feedback") == 0
    page = course.feedback(NAME, "anna").read_text(encoding="utf-8")
    for said in (
        "9.5 of 20 so far",
        "acceptance: 9.5 of 8",
        "mean: not marked, of 8",
        "why (in writing): to be marked",
    ):
        assert said in page, said
    assert "0.0" not in page.split("<body", 1)[1] and "Test cell" not in page


def test_a_failed_run_leaves_no_page_of_an_earlier_one(tmp_path):
    course = Course(make_course(tmp_path))
    hand_in(course.root, "anna", submission(course.root))
    assert grade(course, "auto") == 0 and grade(course, "feedback") == 0
    hand_in(course.root, "anna", b"")
    assert grade(course, "auto") == 1 and grade(course, "feedback") == 1
    assert not course.feedback(NAME, "anna").exists()
    anna = exported(course)[1]["anna"]
    assert (anna["test-mean /8"], anna["marked so far"]) == ("not run", ""), "the earlier points are of other code"


def test_what_is_unchanged_is_graded_again_for_another_seed_alone(tmp_path):
    course = Course(make_course(tmp_path))
    hand_in(course.root, "anna", submission(course.root))
    seeds = []
    for options in (["--seed", "5"], ["--seed", "7"], ["--seed", "7"], []):
        assert grade(course, "auto", *options) == 0
        record = read_json(course.record(NAME, "anna"))
        seeds.append((record["seed"], record["time"]))
    assert [seed for seed, _ in seeds] == [5, 7, 7, 7] and seeds[1] == seeds[2] == seeds[3]


def test_a_problem_set_that_was_not_released_is_told(tmp_path, capsys):
    course = Course(make_course(tmp_path))
    hand_in(course.root, "anna", submission(course.root))
    (course.grading / "gradebook.db").unlink()
    assert grade(course, "auto") == 1
    assert "run `specdec grade release ps01-example` first" in capsys.readouterr().err


def test_feedback_holds_no_script_of_a_submission(course):
    notebook = submission(course.root)
    picture = "![x](https://example.org/seen.png) <img src=https://example.org/seen.png>"
    cell(notebook, "written-why").source = f"<script>alert('w')</script> [x](javascript:alert(1)) {picture}"
    notebook.cells.append(code("from IPython.display import HTML\nHTML('<script>alert(2)</script>')"))
    hand_in(course.root, "script", notebook)
    assert grade(course, "auto", "--student", "script") == 0
    grade(course, "feedback")
    page = course.feedback(NAME, "script").read_text(encoding="utf-8")
    assert "<script>alert" not in page and 'href="javascript' not in page
    assert "alert('w')" in page  # it is there, as text
    assert 'src="https://example.org' not in page and "<img src=https" not in page


def test_feedback_loads_nothing_from_a_network_and_formulas_stay_readable(tmp_path):
    course = Course(make_course(tmp_path))
    hand_in(
        course.root, "anna", submission(course.root, {**PERFECT, "why": "It is $\\sum_x \\min(p(x), q(x))$, so <= 1."})
    )
    assert grade(course, "auto") == 0 and grade(course, "feedback") == 0
    page = course.feedback(NAME, "anna").read_text(encoding="utf-8")
    assert "<script" not in page and not re.search(
        r"""(src|href)=["'](https?:)?//|url\(["']?(https?:)?//|@import""", page
    )
    assert r"$\sum_x \min(p(x), q(x))$" in html.unescape(page)
