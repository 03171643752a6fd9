"""Collecting submissions from folders and archives."""

from __future__ import annotations

import io
import stat
import zipfile

import pytest

from specdec_course.grading.collect import collect, identify, student_id
from specdec_course.grading.course_folder import Course

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
        ("x" * 100, "x" * 100),
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


def test_two_spellings_of_a_name_are_not_two_students(course, given):
    """Where capitals do not count in names of files, one would overwrite the other."""
    put(given, "Anna/ps01.ipynb", b"1")
    put(given, "anna/ps04.ipynb", b"2")
    result = collect(course, given)
    assert len(result.placed) == 1 and "would both be 'anna': rename one" in result.left[0][1]


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
        "clara/ps01.ipynb": "31 MB: too large (at most 30 MB)",
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


def test_long_names_fit_a_file_system_and_stay_different(course, given):
    """In bytes: a letter may take three of them."""
    long = "\u674e" * 84  # what an archive can hold, and a folder can not
    entries = {f"{long}{end}/ps01.ipynb": end.encode() for end in "ab"}
    result = collect(course, put(given, "export.zip", archive({**entries, "zoe/ps01.ipynb": b"3"})))
    assert result.left == [] and len(result.placed) == 3
    for student in (s for _, s in result.placed):
        assert len(student.encode()) <= 100
    assert student_id(long + "a") != student_id(long + "b")


def test_a_file_that_can_not_be_stored_is_listed_and_the_others_are_taken(course, given):
    for student in ("anna", "bert", "clara"):
        put(given, f"{student}/ps01.ipynb")
    course.submitted.mkdir(parents=True)
    (course.submitted / "bert").write_text("a file where a folder has to be", encoding="utf-8")
    result = collect(course, given)
    assert [s for _, s in result.placed] == ["anna", "clara"]
    ((path, why),) = result.left
    assert path == "bert/ps01.ipynb" and why.startswith("can't be stored: ")


def test_what_is_blown_up_is_not_taken_and_what_stands_after_it_is(course, given):
    out = io.BytesIO()
    blank = b'{"cells": []' + b" " * (29 << 20) + b"}"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for i in range(3):
            file.writestr(f"bomb{i}/ps01.ipynb", blank)
        file.writestr("zoe/ps01.ipynb", b'{"cells": []}')
    result = collect(course, put(given, "export.zip", out.getvalue()))
    assert [s for _, s in result.placed] == ["zoe"]
    assert len(result.left) == 3 and all("compressed" in why for _, why in result.left)


def test_a_whole_run_is_limited_in_bytes(course, given, monkeypatch):
    monkeypatch.setattr("specdec_course.grading.collect.MAX_RUN", 25)
    for student in ("anna", "bert", "clara"):
        put(given, f"{student}/ps01.ipynb", b"0123456789")
    result = collect(course, given)
    assert len(result.placed) == 2
    assert "in one run: collect it by itself" in result.left[0][1]
    assert not list(course.grading.glob(".collect-*"))
