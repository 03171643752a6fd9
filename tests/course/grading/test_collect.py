"""Taking submissions in, and reading and restoring them; nothing is run here."""

from __future__ import annotations

import io
import os
import stat
import zipfile

import nbformat
import pytest

from specdec_course.grading.auto import without_html
from specdec_course.grading.collect import collect, identify, student_id
from specdec_course.grading.course import Course
from specdec_course.grading.submission import Cell, Unreadable, parse, restore, suspicions

NAMES = ["ps01-roofline", "ps04-rejection"]


@pytest.fixture
def course(tmp_path):
    for name in NAMES:
        place = tmp_path / "course" / "solutions" / name / f"{name}.ipynb"
        place.parent.mkdir(parents=True)
        place.write_text("{}", encoding="utf-8")
    return Course(tmp_path / "course")


@pytest.fixture
def given(tmp_path):
    folder = tmp_path / "given"
    folder.mkdir()
    return folder


def put(folder, path, data=b"notebook"):
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return place


def archive(entries):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, data in entries.items():
            file.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize(
    "path, who, name",
    [
        ("anna/ps01-roofline/ps01-roofline.ipynb", "anna", "ps01-roofline"),
        ("anna/ps01.ipynb", "anna", "ps01-roofline"),
        ("anna/PS04 final (2).ipynb", "anna", "ps04-rejection"),
        ("anna/homework/ps04-rejection/solution.ipynb", "anna", "ps04-rejection"),
        ("ps04-rejection/anna/ps04-rejection.ipynb", "anna", "ps04-rejection"),
        ("anna_ps04.ipynb", "anna", "ps04-rejection"),
        ("Müller, Jürgen_ps04-rejection.ipynb", "Müller, Jürgen", "ps04-rejection"),
        ("Jürgen Müller_48213_assignsubmission_file_/ps01-roofline.ipynb", "Jürgen Müller", "ps01-roofline"),
        ("mullerjurgen_late_1234_98765_ps01-roofline-2.ipynb", "mullerjurgen", "ps01-roofline"),
        ("anna.zip/ps01-roofline/ps01-roofline.ipynb", "anna", "ps01-roofline"),
    ],
)
def test_who_and_what_by_the_path(path, who, name):
    assert identify(path, NAMES) == (who, name, "")


@pytest.mark.parametrize(
    "path, why",
    [
        ("anna/solution.ipynb", "no problem set in its name"),
        ("anna/ps09.ipynb", "no problem set ps09 here"),
        ("ps01.ipynb", "no student"),
        ("anna/tops01.ipynb", "no problem set in its name"),
    ],
)
def test_what_can_not_be_placed_is_told_why(path, why):
    assert why in identify(path, NAMES)[2]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("Jürgen Müller", "Jürgen Müller"),
        ("Mu\u0308ller", "Müller"),  # one letter written as two
        ("a/b", "a_b"),
        ("../../etc", "_.._etc"),
        ("..", ""),
        ("*?[x]", "___x_"),
        ("=HYPERLINK()", "_HYPERLINK__"),
        ("李雷", "李雷"),
        ("a\x00b\x1b[31m", "a_b__31m"),
        ("  ", ""),
        ("anna@example.org", "anna@example.org"),
        ("x" * 300, "x" * 100),
    ],
)
def test_names_of_students_become_safe(name, expected):
    assert student_id(name) == expected


def test_a_folder_is_placed_whole_and_a_second_time_changes_nothing(course, given):
    put(given, "anna/ps01.ipynb", b"1")
    put(given, "bert_ps04.ipynb", b"2")
    put(given, "clara.zip", archive({"ps01-roofline/ps01-roofline.ipynb": b"3", "__MACOSX/x.ipynb": b""}))
    result = collect(course, given)
    assert sorted(result.placed) == [("ps01-roofline", "anna"), ("ps01-roofline", "clara"), ("ps04-rejection", "bert")]
    assert result.left == []
    assert course.submission("ps01-roofline", "clara").read_bytes() == b"3"
    again = collect(course, given)
    assert again.placed == [] and len(again.same) == 3


def test_nothing_is_overwritten_unless_asked_and_then_kept(course, given):
    path = put(given, "anna/ps01.ipynb", b"first")
    collect(course, given)
    path.write_bytes(b"second")
    refused = collect(course, given)
    assert "--replace" in refused.left[0][1]
    assert course.submission("ps01-roofline", "anna").read_bytes() == b"first"
    assert collect(course, given, replace=True).replaced == [("ps01-roofline", "anna")]
    assert course.submission("ps01-roofline", "anna").read_bytes() == b"second"
    assert [p.read_bytes() for p in (course.grading / "replaced").rglob("*.ipynb")] == [b"first"]


def test_several_of_one_student_are_not_guessed_at(course, given):
    put(given, "anna/ps01.ipynb", b"1")
    put(given, "anna/ps01-new.ipynb", b"2")
    result = collect(course, given)
    assert result.placed == [] and all("keep one" in why for _, why in result.left) and len(result.left) == 2
    put(given, "anna/ps01-roofline.ipynb", b"3")
    result = collect(course, given)
    assert result.placed == [("ps01-roofline", "anna")] and len(result.left) == 2
    assert course.submission("ps01-roofline", "anna").read_bytes() == b"3"


def test_two_students_never_become_one(course, given):
    put(given, "a*b/ps01.ipynb", b"1")
    put(given, "a?b/ps01.ipynb", b"2")
    result = collect(course, given)
    assert len(result.placed) == 1 and "rename one" in result.left[0][1]


def test_links_and_large_files_are_left_out(course, given, tmp_path):
    secret = tmp_path / "secret"
    put(secret, "ps01.ipynb", b"secret")
    (given / "anna").mkdir()
    (given / "anna" / "ps01.ipynb").symlink_to(secret / "ps01.ipynb")
    (given / "bert").symlink_to(secret)
    with put(given, "clara/ps01.ipynb").open("wb") as file:
        file.truncate(31 << 20)
    result = collect(course, given)
    assert result.placed == []
    assert dict(result.left) == {
        "anna/ps01.ipynb": "a link or a device: not opened",
        "bert": "a link to a folder: not followed",
        "clara/ps01.ipynb": "31 MB: too large",
    }


def test_an_archive_can_not_write_elsewhere_nor_fill_the_memory(course, given):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("../../anna/ps01.ipynb", b"out")
        file.writestr("/tmp/anna/ps01.ipynb", b"out")
        file.writestr("..\\anna\\ps01.ipynb", b"out")
        link = zipfile.ZipInfo("bert/ps01.ipynb")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, "/etc/passwd")
        file.writestr("clara/ps01.ipynb", b"0" * (31 << 20))
        file.writestr("dora/ps01.ipynb", b"fine")
    given_archive = put(given, "export.zip", out.getvalue())
    result = collect(course, given_archive)
    assert result.placed == [("ps01-roofline", "dora")]
    reasons = [why for _, why in result.left]
    assert sum("leads out" in why for why in reasons) == 3
    assert any("link" in why for why in reasons) and any("too large" in why for why in reasons)
    assert [p.name for p in course.submitted.iterdir()] == ["dora"]


def test_an_archive_whose_list_lies_about_a_size(course, given):
    data = bytearray(archive({"anna/ps01.ipynb": b"x" * 1000}))
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = (10).to_bytes(4, "little")
    result = collect(course, put(given, "export.zip", bytes(data)))
    assert result.placed == [] and len(result.left) == 1


def test_damaged_archives_are_told(course, given):
    put(given, "anna.zip", b"PK\x03\x04 broken")
    assert collect(course, given).left == [("anna.zip", "a damaged archive")]
    with pytest.raises(ValueError, match="neither a folder nor"):
        collect(course, put(given, "x.txt"))


def test_parse_takes_sources_as_lists_and_survives_what_is_no_text():
    cells, _ = parse(
        b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": ["a = 1\\n", "b"], "metadata": null}]}'
    )
    assert cells == [Cell("code", "a = 1\nb")]
    cells, _ = parse(
        b'{"nbformat": 4, "cells": [{"cell_type": 7, "source": {"a": 1}, "metadata": {"nbgrader": {"grade_id": []}}}]}'
    )
    assert cells[0].kind == "raw" and cells[0].grade_id == ""
    cells, _ = parse(b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": "x = \'\\ud800\'"}]}')
    cells[0].source.encode("utf-8")
    with pytest.raises(Unreadable):
        parse(b"\0" * 1000)


def given_notebook(*cells):
    made = nbformat.v4.new_notebook()
    for kind, name, source in cells:
        flags = {"solve": (False, True, False), "test": (True, False, True), "locked": (False, False, True), "": None}
        cell = nbformat.v4.new_code_cell(source)
        if flags[kind]:
            grade, solution, locked = flags[kind]
            info = {"grade_id": name, "grade": grade, "solution": solution, "locked": locked, "points": 1}
            cell.metadata["nbgrader"] = nbformat.from_dict(info)
        made.cells.append(cell)
    return made


SET = given_notebook(
    ("locked", "setup", "from specdec_course.checks import example as checks"),
    ("solve", "f", "def f():\n    return 1"),
    ("test", "test-f", "checks.f(f, points=1)"),
)


@pytest.mark.parametrize(
    "source, said",
    [
        ("from specdec_ref.verify import residual_distribution as f", "imports specdec_ref.verify"),
        ("def f():\n    import specdec_ref\n    return specdec_ref", "imports specdec_ref"),
        ("import importlib\nf = importlib.import_module('specdec_ref')", "importlib"),
        ("f = checks.f.parts[0]", "checks"),
        ("f = eval('1')", "eval"),
        ("import sys\nf = sys.modules", "modules"),
        ("f = (lambda: 0).__globals__", "__globals__"),
        ("def f(:", "not valid Python"),
        ("%time f = 1", ""),
        ("!ls\ndef f():\n    return 1", "system"),
        ("%matplotlib inline\nf = 1", ""),
        ("get_ipython().ast_transformers.append(1)", "get_ipython"),
        ("import math, torch\ndef f():\n    return torch.compile", ""),
        ("from fractions import Fraction\ndef f():\n    return Fraction(1)", ""),
    ],
)
def test_the_look_over_finds_what_reaches_past_the_task(source, said):
    cells = [Cell("code", SET.cells[0].source, "setup"), Cell("code", source, "f"), Cell("code", "x", "test-f")]
    wanted = {c.metadata.nbgrader.grade_id: c for c in SET.cells}
    found = "\n".join(suspicions(cells, wanted, SET))
    assert said in found if said else found == "", found


def test_restoring_puts_everything_at_its_place_once():
    restored = restore([Cell("code", "y = 1")], SET, SET)
    assert [c.grade_id for c in restored.cells] == ["setup", "f", "test-f", ""]
    mine = [Cell("code", "def f():\n    return 2", "f"), Cell("code", "1", "test-f"), Cell("code", "1", "test-f")]
    restored = restore(mine, SET, SET)
    assert [(c.grade_id, c.source) for c in restored.cells][-2:] == [
        ("f", mine[0].source),
        ("test-f", SET.cells[2].source),
    ]
    assert restored.look == []


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "[x]( javascript:alert(1))",
        "[x][y]\n\n[y]: javascript:alert(1)",
        "<javascript:alert(1)>",
        "<!-- --><svg/onload=alert(1)>",
        "![x](javascript:alert(1))",
    ],
)
def test_no_tag_or_script_of_a_submission_reaches_the_page(text):
    from nbconvert.filters.markdown import markdown2html

    page = markdown2html(without_html(text)).lower()
    assert (
        "<script" not in page
        and "<img" not in page
        and "<svg" not in page
        and "<a" not in page.replace('<a href="#', "")
    )


def test_markdown_without_tags_stays_as_it_is():
    text = "p < q, $a < b$, **bold**, [source](https://example.org), `x[0]`"
    assert without_html(text) == text


def test_files_are_written_whole(tmp_path, monkeypatch):
    from specdec_course.grading.course import write_whole

    path = tmp_path / "marks.csv"
    write_whole(path, b"old")

    def fails(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["marks.csv"]
