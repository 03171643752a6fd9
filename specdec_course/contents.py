"""The map of the course: all lessons and problem sets, with links to those that are here, and two ways through them."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ProblemSet:
    """The problem set of a lesson: its folder's name, its title, its length in minutes."""

    name: str
    title: str
    minutes: int


@dataclass(frozen=True)
class Lesson:
    """A lesson: file name without ending, title, length in minutes, what the learner can do by its end."""

    lesson: str
    title: str
    minutes: int
    can: str
    optional: bool = False
    set: ProblemSet | None = None

    @property
    def number(self) -> str:
        """As in its name: "00", "04b"."""
        return self.lesson.split("_")[0]


@cache
def _contents() -> dict[str, Any]:
    return json.loads(files("specdec_course").joinpath("contents.json").read_text(encoding="utf-8"))


def lessons() -> list[Lesson]:
    """All lessons of the course, in the order of their numbers."""
    return [
        Lesson(**row | {"set": ProblemSet(**row["set"]) if "set" in row else None}) for row in _contents()["lessons"]
    ]


def contents_html(folder: str | Path = ".") -> str:
    """A table of lessons and problem sets, with links to those at `folder`, and the ways through them.

    What is not here is marked as still to come.
    """
    rows = [_row(lesson, Path(folder)) for lesson in lessons()]
    head = "".join(f"<th style='text-align: left'>{h}</th>" for h in ("", "lesson", "", "by its end you can", "then"))
    ways = "".join(
        f"<li><b>{way['name']}</b>, {way['for']}: {' → '.join(way['steps'])}</li>" for way in _contents()["ways"]
    )
    return f"<table><tr>{head}</tr>{''.join(rows)}</table><p>Two ways through the first six:</p><ul>{ways}</ul>"


def _row(lesson: Lesson, folder: Path) -> str:
    path = folder / f"{lesson.lesson}.ipynb"
    name = _link(lesson.title, path.name, path.exists())
    optional = " <small>(optional)</small>" if lesson.optional else ""
    then = ""
    if lesson.set:
        place = f"../exercises/{lesson.set.name}/{lesson.set.name}.ipynb"
        there = (folder / place).exists()
        then = f"problem set {_link(lesson.set.title, place, there)}, {_minutes(lesson.set.minutes)}"
    cells = (lesson.number, f"{name}{optional}", _minutes(_length(lesson, path)), html.escape(lesson.can), then)
    return f"<tr>{''.join(f'''<td style='text-align: left'>{c}</td>''' for c in cells)}</tr>"


def _link(title: str, place: str, there: bool) -> str:
    text = html.escape(title)
    return f'<a href="{place}">{text}</a>' if there else f"{text} <i>(still to come)</i>"


def _minutes(n: int) -> str:
    return f"<span style='white-space: nowrap'>{n} min</span>"


def _length(lesson: Lesson, path: Path) -> int:
    """What the lesson itself says where it is here; else what is planned."""
    found = re.search(r"\*(\d+) minutes", path.read_text(encoding="utf-8")) if path.exists() else None
    return int(found.group(1)) if found else lesson.minutes
