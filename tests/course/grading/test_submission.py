"""Reading and restoring a submission, and looking over its code; nothing is run here."""

from __future__ import annotations

import nbformat
import pytest

from specdec_course.grading.graded_notebook import without_html
from specdec_course.grading.review import review
from specdec_course.grading.submission import Cell, Unreadable, is_prose, parse, restore


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
        flags["written"] = (True, True, False)
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
def test_the_review_finds_what_reaches_past_the_task(source, said):
    cells = [Cell("code", SET.cells[0].source, "setup"), Cell("code", source, "f"), Cell("code", "x", "test-f")]
    found = "\n".join(review(cells, SET, SET).look)
    assert said in found if said else found == "", found


def test_a_cell_that_reaches_for_the_grading_is_named_by_its_place():
    cells = [Cell("code", "1"), Cell("code", "import sys\nsys._getframe()")]
    assert review(cells, SET, SET).reaching == {1: "_getframe"}


@pytest.mark.parametrize(
    "kind, text, expected",
    [
        ("markdown", "Because it is.", True),
        ("markdown", "  ", False),
        ("code", "# because the smaller one counts", True),
        ("code", "'because the smaller one counts'", True),
        ("code", "Because min(p, q) is never above p, and p sums to one.", True),
        ("code", "x = 1", False),
        ("code", "", False),
        ("code", "def f(:\n    this is a line with an error in it", False),
        ("code", "%time a line that is some magic of ours", False),
    ],
)
def test_what_counts_as_an_answer_in_words(kind, text, expected):
    assert is_prose(Cell(kind, text)) is expected


def test_restoring_puts_everything_at_its_place_once():
    restored = restore([Cell("code", "y = 1")], SET, SET)
    assert [c.grade_id for c in restored.cells] == ["setup", "f", "test-f", ""]
    mine = [Cell("code", "def f():\n    return 2", "f"), Cell("code", "1", "test-f"), Cell("code", "1", "test-f")]
    restored = restore(mine, SET, SET)
    assert [(c.grade_id, c.source) for c in restored.cells][-2:] == [
        ("f", mine[0].source),
        ("test-f", SET.cells[2].source),
    ]


def test_an_answer_that_was_split_is_put_together_in_its_order():
    question = given_notebook(("written", "why", "Why?"))
    pieces = [Cell("code", text, "why") for text in ("First,", "second,", "third.")]
    (whole,) = restore(pieces, question, question).cells
    assert whole.source.split() == ["First,", "second,", "third."]


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


@pytest.mark.parametrize(
    "text",
    [
        "![x](https://example.org/seen.png)",
        "[![x](https://example.org/seen.png)](https://example.org)",
        "![x][y]\n\n[y]: https://example.org/seen.png",
        "![x]\n\n[x]: https://example.org/seen.png",
        "<img src='https://example.org/seen.png'>",
        "$\\style{background: url(https://example.org/seen.png)}{x}$",
    ],
)
def test_no_picture_is_loaded_from_elsewhere(text):
    from nbconvert.filters.markdown import markdown2html

    page = markdown2html(without_html(text)).lower()
    assert "<img" not in page and "\\style" not in page
