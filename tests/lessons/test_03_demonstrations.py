"""Lesson 03 fails where a cell no longer shows what it is there for."""

import pytest
from support.lessons import lesson_error

LESSON = "03_paging"


@pytest.mark.parametrize(
    ("old", "new", "at", "says"),
    [
        ('second, 10, "ng")', 'second, 10, "g")', "assert slots[2]", "both sequences wrote"),
        ("append = course.blank(", "unused = course.blank(", "", "a block of its own"),
        ("append(pool, ann, 10, 7)", "append(pool, ann, 10, 2)", "", "two blocks came back"),
        ("list(range(100, 108))", "list(range(100, 109))", "", ""),
        ("hash_block((parent, tuple", 'hash_block((b"", tuple', "", ""),
        ("block_size=16, watermark=0.2)", "block_size=16, watermark=0.01)", "assert careful", ""),
    ],
)
def test_a_dead_demonstration_fails(old, new, at, says):
    error = lesson_error(LESSON, old, new, at)
    assert isinstance(error, AssertionError) and says in str(error)


@pytest.mark.model
@pytest.mark.parametrize(
    ("old", "new", "at", "says"),
    [
        ('keys_of_last("She robbed a bank")', 'keys_of_last("The old river bank")', "", ""),
        (
            "on_pages = SpeculativeEngine(target, NGramDrafter(trust=None)",
            "on_pages = SpeculativeEngine(target, NGramDrafter(max_ngram=30, min_ngram=30)",
            "assert given_back",
            "no wrong guess opened a block",
        ),
        ('"content": system}', '"content": question + system}', "", "found the system prompt"),
        ("samples = [parent.fork() for _ in range(4)]", "samples = [parent.fork()]", "", ""),
    ],
)
def test_a_dead_demonstration_under_the_model_fails(old, new, at, says):
    error = lesson_error(LESSON, old, new, at)
    assert isinstance(error, AssertionError) and says in str(error)
