"""The strip of a round: its columns are places in the text, and its cells say what happened there."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from support.words import Words

from specdec_course.pictures.plots import BLUE, GREEN, GREY, RED
from specdec_course.pictures.recorded import CacheLengths, worked_round
from specdec_course.pictures.strip import strip_figure, strip_words

TEXT = [0, 0, 0, 0, 5, 6, 7, 8]  # eight committed tokens, the last one pending


def cells(figure):
    """{(column, line): text} of all texts that stand in the middle of a cell."""
    (ax,) = figure.axes
    return {(round(t.get_position()[0]), round(-t.get_position()[1], 1)): t.get_text() for t in ax.texts}


def test_lengths_of_a_worked_round():
    step = worked_round(TEXT, [1, 2, 3, 4], 2, 9, draft_cache=True)
    assert step.target == CacheLengths(7, 12, 10) and step.draft == CacheLengths(7, 11, 10)
    assert (step.committed, step.kept, step.origin) == (11, (1, 2, 9), "corrected")
    step = worked_round(TEXT, [1, 2, 3, 4], 4, 9, draft_cache=True)
    assert step.target == CacheLengths(7, 12, 12) and step.draft == CacheLengths(7, 11, 11)
    assert step.committed - step.draft.after == 2
    assert worked_round(TEXT, [], 0, 9).origin == "plain"
    with pytest.raises(ValueError, match="0 to 1"):
        worked_round(TEXT, [1], 2, 9)


def test_a_draft_stands_above_the_targets_choice_for_its_place():
    found = cells(strip_figure(worked_round(TEXT, [1, 2, 3, 4], 2, 9), None, [1, 2, 9, 4, 5]))
    assert [found[x, 0.0] for x in range(8)] == ["5", "6", "7", "8", "1", "2", "3", "4"]
    assert [found[x, 1.0] for x in range(4, 9)] == ["1", "2", "9", "4", "5"]
    assert [found[x, 2.2] for x in range(7)] == ["5", "6", "7", "8", "1", "2", "9"]
    assert [found[x, 0.5] for x in range(4, 8)] == ["✓", "✓", "✗", "–"]
    assert [found[x, 1.5] for x in range(4, 9)] == [f"row {i}" for i in range(5)]


def test_rows_after_a_rejection_are_not_read_where_they_are_not_given():
    found = cells(strip_figure(worked_round(TEXT, [1, 2, 3, 4], 1, 9)))
    assert [found[x, 1.0] for x in range(4, 9)] == ["1", "9", "not read", "not read", "not read"]


def bar(figure, line):
    (ax,) = figure.axes
    found = [p for p in ax.patches if isinstance(p, Rectangle) and abs(p.get_y() + p.get_height() / 2 + line) < 0.01]
    found = [p for p in found if abs(p.get_height() - 0.4) < 0.01]
    return ["cut" if p.get_hatch() else p.get_linestyle() for p in sorted(found, key=lambda p: p.get_x())]


def test_bars_show_what_each_cache_holds_and_lacks():
    figure = strip_figure(worked_round(TEXT, [1, 2, 3, 4], 2, 9, draft_cache=True))
    assert bar(figure, 3.2) == ["solid"] * 6 + ["cut"] * 2, "the target's"
    assert bar(figure, 4.2) == ["solid"] * 6 + ["cut"], "the draft's: the last draft was never fed"
    figure = strip_figure(worked_round(TEXT, [1, 2, 3, 4], 4, 9, draft_cache=True))
    assert bar(figure, 3.2) == ["solid"] * 8 + [":"]
    assert bar(figure, 4.2) == ["solid"] * 7 + [":"] * 2


def test_colours_tell_what_became_of_a_row():
    (ax,) = strip_figure(worked_round(TEXT, [1, 2, 3, 4], 2, 9)).axes
    row = [p for p in ax.patches if abs(p.get_y() + p.get_height() / 2 + 1) < 0.01]
    edges = [to_hex(p.get_edgecolor()).upper() for p in sorted(row, key=lambda p: p.get_x())]
    assert edges == [GREEN, GREEN, BLUE, GREY, GREY]
    assert any(to_hex(line.get_color()).upper() == RED for line in ax.lines), "the cut"


def test_a_short_text_and_words():
    step = worked_round([5], [1], 1, 2)
    found = cells(strip_figure(step, Words(t5="a b", t1="\n")))
    assert found[3, 0.0] == "a␣b" and found[4, 0.0] == "↵"
    assert strip_words(step) == (
        "One round. 1 drafted, 1 accepted, 1 bonus token: the text grows by 2. The target's cache holds 0 tokens "
        "before the round, 2 at its fullest and 2 after it, so none are taken back. Committed are then 3 tokens, the "
        "last of them pending."
    )
    assert "so 1 is taken back" in strip_words(worked_round([5], [1], 0, 2))
