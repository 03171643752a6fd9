"""Outputs side by side: the first difference, and what each says after it."""

import pytest
from support.words import Words

from specdec_course.pictures.diverge import diverging_html, first_difference


@pytest.mark.parametrize(
    ("a", "b", "at"), [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([1, 2], [1], 1), ([], [], None)]
)
def test_first_difference(a, b, at):
    assert first_difference(a, b) == at


def test_diverging_texts():
    page = diverging_html({"right": [1, 2, 3], "same": [1, 2, 3], "other": [1, 4], "short": [1]}, Words(t4="<4>"))
    assert "same: the same 3 tokens" in page
    assert "other: the same for 1 token, then different" in page
    assert 'w1<b style="border-bottom: 2px solid #D55E00">&lt;4&gt;</b>' in page
    assert "⟂" in page.split("short")[1]
