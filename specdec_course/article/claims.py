"""The article's claims as recorded in `claims.json`: what it says, what holds, and what settles it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib import resources

Recorded = Decimal | bool | int | str | list[Decimal] | list[int]
"""A recorded value. Decimals keep the digits that they were written with."""

WEIGHTS_70B = 70e9 * 2
"""Bytes of 70 billion weights in 16 bits, the article's own round figure."""


@dataclass(frozen=True)
class Claim:
    """One claim.

    number, where: its place in the article. says: the claim, in our words. verdict: in a word or two.
    holds: what holds, with fields in braces for the values. settled_by: "calculation", "reading" or lessons.
    computation: the function of `computations` that computes the values, or None. values: as recorded.
    """

    number: int
    where: str
    says: str
    verdict: str
    holds: str
    settled_by: tuple[str, ...]
    computation: str | None
    values: Mapping[str, Recorded]


@cache
def claims() -> tuple[Claim, ...]:
    """All claims, in order of their number."""
    text = resources.files(__package__).joinpath("claims.json").read_text(encoding="utf-8")
    rows = json.loads(text, parse_float=Decimal)["claims"]
    return tuple(Claim(**row | {"settled_by": tuple(row["settled_by"])}) for row in rows)
