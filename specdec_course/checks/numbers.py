"""Numbers that a learner's code returns, of whatever type: read, compared and shown; and inputs as one types them."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from specdec_course.checks.check import wrong

Number = float | Fraction
ROUNDING = 1e-6
"""Largest relative difference that counts as rounding: float32 stays below it."""


def as_items(value: Any) -> list[Any] | None:
    """The items of a tuple, list, array, tensor or other iterable, in a plain list; None for anything else."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (str, bytes, dict)) or not hasattr(type(value), "__iter__"):
        return None
    return list(value)


def as_number(value: Any, what: str, given: Any = None) -> Number:
    """`value` as an int, Fraction or float, of exactly that type: from any number, array or tensor of one element.

    Raises CheckFailed for anything else, and for NaN.
    """
    single = value
    if hasattr(value, "item"):
        with contextlib.suppress(ValueError, RuntimeError):  # of an array with several elements, or none
            single = value.item()
    if isinstance(single, (str, bytes, bool)) or not hasattr(type(single), "__float__") or hasattr(single, "item"):
        got = repr(value) if value is None else f"{value!r} (a {type(value).__name__})"
        mistake = "is there a return?" if value is None else ""
        raise wrong(f"{what} must be a number.", given=given, got=got, mistake=mistake)
    try:
        number = float(single)
    except OverflowError:
        raise wrong(f"{what} is far too large.", given=given, got=f"{value}") from None
    if math.isnan(number):
        raise wrong(f"{what} came out as NaN, not a number.", given=given, got=value)
    if type(single) is Fraction:
        return single
    return operator.index(single) if hasattr(type(single), "__index__") else number


def as_numbers(value: Any, names: Sequence[str], given: Any = None) -> list[Number]:
    """`value` as a list of as many numbers as there are `names`. Raises CheckFailed where it is not."""
    items = as_items(value)
    if items is None or len(items) != len(names):
        what = f"{len(names)} numbers are wanted" + ("." if items is None else f", not {len(items)}.")
        raise wrong(what, given=given, got=repr(value), expected=f"({', '.join(names)})")
    return [as_number(item, name, given) for item, name in zip(items, names)]


def near(a: Number, b: Number, tolerance: float = ROUNDING) -> bool:
    """Whether `a` is `b` but for rounding."""
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-300)


def is_whole(value: Number) -> bool:
    """Whether it is a whole number, of whatever type."""
    return math.isfinite(value) and value == int(value)


def number_text(value: Number) -> str:
    """A number for a message: all digits of a whole one, seven of another."""
    if is_whole(value) and abs(float(value)) < 1e15:
        return f"{int(value):,}"
    return f"{float(value):.7g}"


def how_far(got: Number, right: Number) -> str:
    """By how much a positive number is off, or that it is the right one, rounded."""
    if math.isfinite(got) and (got == math.floor(right) or got in [round(float(right), d) for d in range(7)]):
        return "is it rounded? Return the number in full: no round, no int, / and not //."
    if got <= 0 or right <= 0:
        return ""
    ratio = float(got) / float(right)
    side = "large" if ratio > 1 else "small"
    if 0.99 < ratio < 1.01:
        return f"nearly: too {side} by {number_text(abs(float(got) - float(right)))}."
    return f"{max(ratio, 1 / ratio):.4g} times too {side}."


def typed(**values: Any) -> str:
    """Inputs as one would type them: `batch=4, chip=Chip(rate=989e12, ...)`."""
    return ", ".join(f"{name}={_typed(value)}" for name, value in values.items())


def _typed(value: Any) -> str:
    if hasattr(value, "_asdict"):
        return f"{type(value).__name__}({typed(**value._asdict())})"
    if type(value) is int and abs(value) >= 10_000:
        return f"{value:_}"
    if type(value) is not float:
        return repr(value)
    short = f"{value:.12g}"
    return f"{value:_.0f}" if value == int(value) and ("e" not in short or float(short) != value) else short
