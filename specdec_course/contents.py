"""The table of contents: all lessons of the course in order, with links to those that are here."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from pathlib import Path
from typing import TypedDict


class Lesson(TypedDict):
    """A lesson: file name without ending, title, length in minutes, and what the learner can do afterwards."""

    lesson: str
    title: str
    minutes: int
    can: str


def lessons() -> list[Lesson]:
    """All lessons of the course, in order."""
    return json.loads(files("specdec_course").joinpath("contents.json").read_text(encoding="utf-8"))


def contents_html(folder: str | Path = ".") -> str:
    """A table of the lessons, with links to those in `folder`; the others are marked as still to come."""
    rows = []
    for number, lesson in enumerate(lessons()):
        name = f"{lesson['lesson']}.ipynb"
        title = html.escape(lesson["title"])
        here = (Path(folder) / name).exists()
        cell = f'<a href="{name}">{title}</a>' if here else f"{title} <i>(still to come)</i>"
        rows.append(
            f"<tr><td>{number:02d}</td><td style='text-align: left'>{cell}</td><td>{lesson['minutes']} min</td>"
            f"<td style='text-align: left'>{html.escape(lesson['can'])}</td></tr>"
        )
    head = "<tr><th></th><th>lesson</th><th></th><th style='text-align: left'>afterwards you can</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"
