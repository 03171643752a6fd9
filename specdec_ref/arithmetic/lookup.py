"""Look-up of a table's entries by the names that people type."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

Entry = TypeVar("Entry")


class UnknownName(ValueError):
    """A name that no table entry carries; the message gives the nearest known ones."""


def plain_name(name: str) -> str:
    """`name` in lower case, with single hyphens for blanks and underscores."""
    return "-".join(name.strip().lower().replace("_", " ").replace("-", " ").split())


def look_up(table: Mapping[str, Entry], name: str, kind: str) -> Entry:
    """The entry of `table` called `name`; raises `UnknownName` with the nearest known names otherwise."""
    key = plain_name(name)
    if key in table:
        return table[key]
    near = difflib.get_close_matches(key, table, n=3, cutoff=0.4)
    near = [known for known in table if key and known.startswith(key)][:3] or near
    hint = f"nearest known: {', '.join(near)}" if near else f"known: {', '.join(table)}"
    raise UnknownName(f"unknown {kind} {name!r}; {hint}")
