"""Lessons 04 and 04b: what a cell exists to show is there, and without it the lesson fails."""

import pytest
from support.lessons import lesson_error

PLANTED = {
    "a correction from p is no bug": (
        "    return source.categorical(p)\n\n\narticle =",
        "    return source.categorical(residual(p, q))\n\n\narticle =",
    ),
    "a draft that is drawn is no trap": ("x = q.index(max(q))", "x = source.categorical(q)"),
    "integers in place of floats": ("(as_integers / 1000).astype(np.float32)", "as_integers"),
    "both sides compute the softmax alike": ("q_32 = logits.log_softmax(-1).exp()", "q_32 = logits.softmax(-1)"),
    "a block rule that stops with rho": ("stop_chance(rho[i], p[i], q[i])", "rho[i]"),
    "no rejection in the texts of three tokens": ("texts[text] += chance", "texts[text] = chance"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_demonstration_that_shows_nothing_fails(name):
    old, new = PLANTED[name]
    at = "assert same and len(texts)" if old.startswith("texts[text]") else ""
    assert isinstance(lesson_error("04_exactness", old, new, at), AssertionError)


@pytest.mark.model
def test_texts_that_never_part_fail_the_section_on_rounding():
    """In float32 no near-tie flips."""
    assert isinstance(
        lesson_error("04_exactness", 'for dtype in ("bfloat16", "float32")', 'for dtype in ("float32",)'),
        AssertionError,
    )


def test_a_fault_that_is_not_there_fails_the_lesson_on_power():
    assert isinstance(lesson_error("04b_size_and_power", "mixture(right, article, 0.02)", "right"), AssertionError)


def test_a_wide_border_is_not_the_well_meant_test():
    error = lesson_error("04b_size_and_power", "- right) < 0.02)", "- right) < 0.2)")
    assert isinstance(error, AssertionError)
