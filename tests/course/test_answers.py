"""Answers to what lessons ask for: right, the known mistake, or words for what is not a number."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from specdec_course import answers


@pytest.mark.parametrize("name", answers.QUESTIONS)
def test_an_answer_is_right_or_its_mistake_is_explained(name):
    question = answers.QUESTIONS[name]
    assert answers.check(name, question.right).startswith("Yes: ")
    assert answers.check(name, 1.019 * question.right).startswith("Yes: ") is not question.counted
    for wrong, why in question.mistakes.items():
        assert answers.check(name, wrong).startswith("Not ") and answers.check(name, wrong).endswith(why)
    assert "place of None" in answers.check(name, None)
    assert "more than nothing" in answers.check(name, 0)
    assert "1,000 times too large" in answers.check(name, 1000 * question.right)
    assert "1,000 times too small" in answers.check(name, question.right / 1000)


@pytest.mark.parametrize("given", ["162", "about 160", (162, 5), [162], {}, math.nan, math.inf])
def test_what_is_not_a_number_is_reported(given):
    assert "not a number" in answers.check("chats on eight H100s", given)


@pytest.mark.parametrize("given", [162, 162.0, Fraction(162), np.int64(162), torch.tensor(162)])
def test_any_kind_of_number_will_do(given):
    assert answers.check("chats on eight H100s", given) == "Yes: 162 chats."


def test_what_is_counted_has_to_be_exact():
    assert answers.check("chats on eight H100s", 161).startswith("Not 161, but near")
    assert "round down" in answers.check("chats on eight H100s", 163)
    assert "90% of all the memory" in answers.check("chats on eight H100s", 167)


def test_an_answer_3_percent_off_is_not_right():
    assert not answers.check("ridge of an H100", 1.03 * 295.2).startswith("Yes")


def test_guesses_are_shown_without_judgement():
    assert answers.guess_text(200, 23.93, "tokens/s") == "23.9 tokens/s (you guessed 200)"
    assert answers.guess_text(23, 23.93) == "23.9 (about as you guessed)"
    assert answers.guess_text(1, 162) == "162 (you guessed 1)"


@pytest.mark.parametrize(("guess", "right"), [(1.2, 1.02), (1.1, 1.02), (0.6, 0.5), (10, 8), (20, 16), (0.1, 0.09)])
def test_a_guess_that_misses_the_point_is_not_called_the_same(guess, right):
    assert "you guessed " in answers.guess_text(guess, right)


def test_a_guess_that_was_not_made_is_asked_for():
    assert answers.guess_text(None, 162) == "162 (no guess yet: write one above and run both cells again)"


@pytest.mark.parametrize("guess", ["200", (2, 3), math.nan])
def test_a_guess_that_is_not_a_number_is_answered_with_words(guess):
    assert answers.guess_text(guess, 23.93, "tokens/s") == "23.9 tokens/s (your guess is not a number)"
