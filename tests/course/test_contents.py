"""The map of the course: lessons, problem sets, ways."""

import re

import nbformat
from support.paths import ROOT

from specdec_course.contents import contents_html, lessons


def test_the_map_links_only_what_is_there(tmp_path):
    folder = tmp_path / "lessons"
    folder.mkdir()
    (folder / "00_start_here.ipynb").write_text("*31 minutes*", encoding="utf-8")
    page = contents_html(folder)
    assert page.count("<a href") == 1
    assert "31 min" in page
    assert page.count("still to come") == len(lessons()) - 1 + sum(x.set is not None for x in lessons())


def test_the_numbers_run_through_with_optional_lessons_between():
    main = [x.number for x in lessons() if not x.optional]
    assert main == [f"{i:02d}" for i in range(len(main))]
    assert all(re.fullmatch(r"\d\d[a-z]", x.number) for x in lessons() if x.optional)
    assert [x.number for x in lessons()] == sorted(x.number for x in lessons())


def test_the_map_of_this_folder_links_every_lesson_and_problem_set():
    page = contents_html(ROOT / "lessons")
    for path in [*(ROOT / "lessons").glob("*.ipynb"), *(ROOT / "exercises").glob("*/*.ipynb")]:
        assert f'{path.name}"' in page


def test_problem_sets_are_as_long_as_they_say():
    for lesson in lessons():
        if lesson.set:
            path = ROOT / "exercises" / lesson.set.name / f"{lesson.set.name}.ipynb"
            head = nbformat.read(path, as_version=4).cells[0].source
            assert f"*{lesson.set.minutes} minutes" in head
            assert f"· {lesson.set.title}\n" in head


def test_both_ways_pass_every_early_lesson():
    page = contents_html(ROOT / "lessons")
    ways = re.findall(r"<li>.*?</li>", page)
    assert len(ways) == 2
    for way in ways:
        assert {re.match(r"\d\d", step).group() for step in way.split(": ")[1].split(" → ")} == {
            f"{i:02d}" for i in range(6)
        }
