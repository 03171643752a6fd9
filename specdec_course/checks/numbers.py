"""Numbers that a learner gives back, of whatever type, beside the right ones and those that known slips lead to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from specdec_course.checks import wrong

Number = float | Fraction
Slips = Iterable[tuple[Number, str]]
"""Values that known mistakes lead to, each with the mistake in words; the first that fits is told."""


def as_number(value: Any, what: str, given: Any = None) -> float:
    """`value` as a float or int: a Python number, a Fraction, or an array or tensor with a single element.

    Raises CheckFailed for anything else, and for NaN.
    """
    plain = value.item() if hasattr(value, "item") and getattr(value, "size", 1) != 0 else value
    if isinstance(plain, (str, bytes, bool)) or not hasattr(plain, "__float__"):
        mistake = "is there a return?" if value is None else ""
        got = repr(value) if value is None else f"{value!r} (a {type(value).__name__})"
        raise wrong(f"{what} must be a number.", given=given, got=got, mistake=mistake)
    number = plain if isinstance(plain, int) else float(plain)
    if math.isnan(number):
        raise wrong(f"{what} came out as NaN, not a number.", given=given, got=value)
    return number


def as_numbers(value: Any, names: Sequence[str], given: Any = None) -> list[float]:
    """`value` as a list of as many numbers as there are `names`: from a tuple, list, array or tensor."""
    expected = f"({', '.join(names)})"
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__iter__"):
        raise wrong(f"{len(names)} numbers are wanted.", given=given, got=value, expected=expected)
    values = list(value)
    if len(values) != len(names):
        raise wrong(f"{len(names)} numbers are wanted, not {len(values)}.", given=given, got=value, expected=expected)
    return [as_number(v, name, given) for v, name in zip(values, names)]


def near(a: Number, b: Number, tolerance: float = 1e-6) -> bool:
    """Whether `a` is `b` up to rounding: 1e-6 of it lets 32-bit floats pass."""
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-300)


def number_text(value: Number) -> str:
    """A number for a message: all digits of a whole one, seven of another."""
    if math.isfinite(value) and value == int(value) and abs(float(value)) < 1e15:
        return f"{int(value):,}"
    return f"{float(value):.7g}"


def looks_rounded(number: Number, right: Number) -> bool:
    """Whether `number` is `right` cut or rounded to at most six decimals."""
    if near(number, right) or not math.isfinite(number):
        return False
    return number == math.floor(right) or any(number == round(float(right), digits) for digits in range(7))


def _how_far(number: float, right: Number) -> str:
    """In what measure a wrong positive number is off, or that it is the right one, rounded."""
    if looks_rounded(number, right):
        return "is it rounded? Return the number in full: no round, no int, / and not //."
    if number <= 0 or right <= 0:
        return ""
    ratio = float(number) / float(right)
    side = "large" if ratio > 1 else "small"
    if 0.99 < ratio < 1.01:
        return f"nearly: too {side} by {number_text(abs(float(number) - float(right)))}."
    return f"{max(ratio, 1 / ratio):.4g} times too {side}."


def compare(what: str, got: Any, right: Number, given: Any = None, slips: Slips = ()) -> None:
    """Raise CheckFailed unless the learner's `got` is `right`, with the slip that leads there, or how far off it is."""
    number = as_number(got, what, given)
    if near(number, right):
        return
    mistake = next((why for value, why in slips if near(number, value) and not near(value, right)), "")
    mistake = mistake or _how_far(number, right)
    shown = {"got": number_text(number), "expected": number_text(right)}
    raise wrong(f"{what} came out wrong.", given=given, mistake=mistake, **shown)
