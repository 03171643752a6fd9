"""The table of contents."""

from specdec_course.contents import contents_html, lessons


def test_the_table_links_only_lessons_that_are_there(tmp_path):
    (tmp_path / "00_start_here.ipynb").write_text("", encoding="utf-8")
    page = contents_html(tmp_path)
    assert page.count("<a href") == 1
    assert page.count("still to come") == len(lessons()) - 1
    assert [int(x["lesson"][:2]) for x in lessons()] == list(range(len(lessons())))
