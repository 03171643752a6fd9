"""Lesson 00 fails where it would show nothing: texts that differ, guesses that are never right."""

import pytest
from support.lessons import lesson_error

pytestmark = pytest.mark.model


def test_two_texts_that_differ_are_not_shown_as_one():
    error = lesson_error(
        "00_start_here",
        "by_guess = guessing.generate(rewrite.messages, max_new_tokens=48)",
        "by_guess = guessing.generate(chat.messages, max_new_tokens=48)",
        at="the two texts should be the same",
    )
    assert isinstance(error, AssertionError) and "the same, token for token" in str(error)


@pytest.mark.slow
def test_a_prompt_on_which_lookup_finds_nothing_is_no_demonstration():
    error = lesson_error(
        "00_start_here",
        'course.prompt("chat-1"), course.prompt("rewrite-1")',
        'course.prompt("rewrite-1"), course.prompt("chat-1")',
        at="too few guesses were right",
    )
    assert isinstance(error, AssertionError) and "too few guesses" in str(error)


@pytest.mark.slow
def test_a_text_without_a_wrong_guess_does_not_explain_what_is_tested():
    error = lesson_error(
        "00_start_here",
        'summary = course.prompt("summary-1")',
        "summary = rewrite",
        at="all kinds of guesses",
    )
    assert isinstance(error, AssertionError) and "all kinds of guesses" in str(error)
