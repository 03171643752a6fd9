"""Lists of token ids that a learner's code returns: read, compared and shown."""

from __future__ import annotations

from typing import Any

from specdec_course.checks.check import wrong
from specdec_course.checks.mistakes import Answer
from specdec_course.checks.numbers import as_items, as_number, is_whole


def as_tokens(value: Any, what: str, given: Any = None) -> list[int]:
    """`value` as a list of ints: from a list, tuple, array or tensor. Raises CheckFailed for anything else."""
    items = as_items(value)
    if items is None:
        mistake = "is there a return?" if value is None else ""
        raise wrong(f"{what}: a list of tokens is wanted.", given=given, got=repr(value), mistake=mistake)
    numbers = [as_number(item, f"{what}: each token", given) for item in items]
    if not all(map(is_whole, numbers)):
        raise wrong(f"{what}: tokens are whole numbers.", given=given, got=repr(value))
    return [int(n) for n in numbers]


def _length_hint(got: list[int], right: list[int]) -> str:
    if len(got) == len(right):
        return ""
    return f"{len(right)} {'token' if len(right) == 1 else 'tokens'} wanted, not {len(got)}."


TOKENS = Answer(as_tokens, lambda a, b: a == b, repr, _length_hint)
