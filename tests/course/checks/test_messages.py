"""What a learner reads where a check fails: what was given, and how to have the same inputs again where that helps."""

import pytest

from specdec_course.checks import GRADING_SEED, Check, CheckFailed, guard, wrong


def message(part, learner):
    with pytest.raises(CheckFailed) as failed:
        Check("double", [part])(learner, seed=7)
    return str(failed.value)


def doubles(learner, rng):
    number = rng.randrange(10)
    with guard(f"number={number}"):
        got = learner(number)
    if got != 2 * number:
        raise wrong("twice the number", given=number, got=got, expected=2 * number)


@pytest.fixture(autouse=True)
def at_home(monkeypatch):
    monkeypatch.delenv(GRADING_SEED, raising=False)


def test_a_wrong_value_comes_with_the_seed():
    assert "add seed=7 to this call" in message(doubles, lambda number: -1)


def test_an_error_comes_with_what_was_given_and_its_line():
    text = message(doubles, lambda number: number / 0)
    assert "your code raised ZeroDivisionError" in text and ", line " in text
    assert "\n  given     number=" in text and "add seed=7 to this call" in text


def test_the_line_that_is_shown_is_the_one_that_failed_and_not_the_call():
    def half(number):
        return number / 0

    def calls(number):
        return half(number) + 1

    assert "return number / 0" in message(doubles, calls)


def test_what_is_not_written_yet_asks_for_no_other_inputs():
    def stub(number):
        raise NotImplementedError("write this")

    assert message(doubles, stub) == "double: not written yet (write this)"


def test_an_error_that_is_waited_for_is_not_touched():
    with pytest.raises(KeyError), guard("nothing", passing=KeyError):
        raise KeyError
