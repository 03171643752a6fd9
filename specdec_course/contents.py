"""The course at a glance: its lessons in order, and which of them are here."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from pathlib import Path
from typing import Any


def lessons() -> list[dict[str, Any]]:
    """All lessons of the course, in order: `lesson` (file name), `title`, `minutes`, `can`."""
    return json.loads(files("specdec_course").joinpath("contents.json").read_text(encoding="utf-8"))


def course_html(folder: str | Path = ".") -> str:
    """A table of the lessons, with links to those in `folder`; the others are said to be still to come."""
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
