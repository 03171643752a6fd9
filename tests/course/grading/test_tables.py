"""Tables for spreadsheets: no text that somebody else wrote is a formula there."""

from __future__ import annotations

import pytest

pytest.importorskip("nbgrader")

from specdec_course.grading import tables
from specdec_course.grading.course_folder import Course


@pytest.mark.parametrize("begins", ["=", "+", "-", "@", "\t", "\r"])
def test_text_that_a_spreadsheet_would_compute_is_marked_as_text(begins):
    assert tables._harmless(f"{begins}1+1") == f"'{begins}1+1"


@pytest.mark.parametrize("text", ["", "p = q", "Größe", "'=1", "1-1"])
def test_other_text_stays_as_it_is(text):
    assert tables._harmless(text) == text


def test_a_line_of_the_roster_is_named_as_an_editor_counts_it(tmp_path):
    (tmp_path / "roster.csv").write_text("id,email\nanna,\n..,\nanna,\n", encoding="utf-8")
    done = tables.import_roster(Course(tmp_path), tmp_path / "roster.csv")
    assert done == (1, ["line 3: no usable id ('..')", "line 4: anna is in line 2 already"])
