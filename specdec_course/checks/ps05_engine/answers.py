"""The inputs of a call in problem set 05, and what learners return, read into plain types."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from specdec_course.checks import wrong
from specdec_course.checks.distributions import ROUNDING
from specdec_course.checks.mistakes import Answer
from specdec_course.checks.models import tempered
from specdec_course.checks.numbers import as_items
from specdec_ref.models.scripted import Conditional

Ids = list[int]


class Case(NamedTuple):
    """The inputs of one call; each exercise fills in what it needs. p and q: of the target and of the draft model."""

    p: Conditional
    tokens: Ids
    gamma: int = 0
    cached: Ids | None = None
    T: float = 0.0
    drafted: Ids | None = None
    accepted: int | None = None
    token: int | None = None
    q: Any = None
    max_new_tokens: int = 0
    eos: Any = ()
    context: int | None = None
    draft_context: int | None = None
    vocab: int = 9

    def __str__(self) -> str:
        names = {"tokens": "prompt"} if callable(self.q) else {"max_new_tokens": ""}
        names |= {"p": "", "q": "", "vocab": "", "T": "temperature", "cached": "the cache holds"}
        given = [(names.get(name, name), value) for name, value in self._asdict().items()]
        return ", ".join(f"{name} {value}" for name, value in given if name and value is not None and value != ())

    def after(self, i: int, T: float | None = None) -> list[float]:
        """The distribution after the tokens and i drafts, at temperature T or the one asked for."""
        return tempered(self.p, [*self.tokens, *(self.drafted or ())[:i]], self.T if T is None else T)


def as_whole(value: Any, what: str, given: Any = None) -> int:
    """`value` as an int of exactly that type. Raises CheckFailed for a float, and for anything else that is no int."""
    single = value.item() if hasattr(value, "item") and getattr(value, "size", 1) != 0 else value
    try:
        return int(operator.index(single))
    except TypeError:
        got = "None (is there a return?)" if value is None else f"{value!r} (a {type(single).__name__})"
        raise wrong(f"{what} has to be a whole number, an int.", given=given, got=got) from None


def as_ids(value: Any, what: str, given: Any = None) -> Ids:
    """Token ids from a list, tuple, array or tensor. Raises CheckFailed for anything else."""
    items = as_items(value) if hasattr(value, "__len__") else None
    if items is None:
        got = "None (is there a return?)" if value is None else f"a {type(value).__name__}"
        mistake = "a generator can be read only once: return a list." if hasattr(value, "__next__") else ""
        raise wrong(f"{what} has to be a list of token ids.", given=given, got=got, mistake=mistake)
    return [as_whole(item, f"each token id of {what[0].lower() + what[1:]}", given) for item in items]


def as_two(value: Any, what: str, given: Any = None) -> list[Any]:
    """Two things returned together. Raises CheckFailed for anything else."""
    items = as_items(value)
    if items is None or len(items) != 2:
        raise wrong(f"{what} has to return two things, a pair.", given=given, got=repr(value), expected="(..., ...)")
    return items


WHOLE = Answer(as_whole, operator.eq)
IDS = Answer(as_ids, operator.eq)
SEEN = Answer(lambda value, what, given: value, operator.eq)
"""For what a check itself observed."""


def _plain(value: Any) -> Any:
    """Tensors, arrays and sequences as lists, numbers as floats; a dict keeps its keys."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, dict):
        return {key: float(x) for key, x in value.items()}
    return [_plain(x) for x in value] if isinstance(value, (list, tuple)) else value and float(value)


def _near(a: Any, b: Any) -> bool:
    a, b = _plain(a), _plain(b)
    if isinstance(a, dict):
        return all(_near(a.get(key, 0), b.get(key, 0)) for key in {*a, *b})
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_near, a, b))
    return a == b or (isinstance(a, (int, float)) and isinstance(b, (int, float)) and abs(a - b) <= ROUNDING)


def _rounded(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, dict):
        return ", ".join(f"{list(key)}: {x:.3f}" for key, x in sorted(value.items()))
    return f"[{', '.join(map(_rounded, value))}]" if isinstance(value, list) else str(value and round(value, 4))


PROBABILITIES = Answer(lambda value, what, given: _plain(value), _near, _rounded)
"""For distributions: lists in any nesting, or outcome -> probability."""
