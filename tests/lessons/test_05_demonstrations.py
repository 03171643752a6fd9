"""Lesson 05 fails where one of its demonstrations shows nothing: each change below takes the subject away."""

import pytest
from support.lessons import lesson_error

pytestmark = [pytest.mark.slow, pytest.mark.model]


@pytest.mark.parametrize(
    ("old", "new", "at"),
    [
        ("owls_plain[:10]", "owls_plain[:13]", "assert 0 < accepted"),  # a round in which all drafts are accepted
        ("course.suspect(1)", "course.suspect(5)", ""),  # an engine whose fault this text does not show
        ("course.suspect(6)", "course.suspect(8)", ""),  # an engine that keeps the budget
        (
            "P[sum(tokens) % 3]",
            "P[0]",
            "assert found_by[0]",
        ),  # a target that looks at no token: wrong caches don't show
        ("course.suspect(8)", "course.suspect(7)", ""),  # a rule that is right
        ("min_ngram=2, trust=None), gamma=4)\nby_itself", "min_ngram=2), gamma=4)\nby_itself", ""),  # other rounds
    ],
)
def test_a_dead_demonstration_fails(old, new, at):
    error = lesson_error("05_engine", old, new, at)
    assert isinstance(error, AssertionError), repr(error)
