"""A line that says how far a long cell is, and goes when it is done."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import TypeVar

from IPython.core.getipython import get_ipython
from IPython.display import HTML, display

T = TypeVar("T")
TRANSIENT = {"specdec": "progress"}
"""Metadata of an output that is no result: lessons are stored without it."""


def progress(steps: Collection[T], what: str = "") -> Iterator[T]:
    """The steps one by one, with a line of how many are done and how long the rest may take, in notebooks only.

    Fits wherever `specdec_ref` takes a `progress`, as tqdm does: `race(plain, speculative, progress=course.progress)`.
    """
    if get_ipython() is None:
        yield from steps
        return
    begin = time.monotonic()
    line = display(HTML(_text(what, 0, len(steps), 0.0)), display_id=True, metadata=TRANSIENT)
    try:
        for done, step in enumerate(steps):
            if done:
                line.update(HTML(_text(what, done, len(steps), time.monotonic() - begin)), metadata=TRANSIENT)
            yield step
    finally:
        line.update(HTML(""), metadata=TRANSIENT)


def _text(what: str, done: int, total: int, seconds: float) -> str:
    left = f", about {seconds / done * (total - done):.0f} s to go" if done else ""
    return f"<i>{what or 'working'}: {done} of {total} done{left} …</i>"
