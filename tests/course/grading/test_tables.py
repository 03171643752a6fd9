"""Tables for spreadsheets: no text that somebody else wrote is a formula there."""

from __future__ import annotations

import pytest

pytest.importorskip("nbgrader")

from specdec_course.grading import tables


@pytest.mark.parametrize("begins", ["=", "+", "-", "@", "\t", "\r"])
def test_text_that_a_spreadsheet_would_compute_is_marked_as_text(begins):
    assert tables._harmless(f"{begins}1+1") == f"'{begins}1+1"


@pytest.mark.parametrize("text", ["", "p = q", "Größe", "'=1", "1-1"])
def test_other_text_stays_as_it_is(text):
    assert tables._harmless(text) == text
