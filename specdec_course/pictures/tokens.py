"""Generations as text, each token coloured by where it came from."""

from __future__ import annotations

import html
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from specdec_course.pictures.plots import BLUE, GREEN, GREY, RED
from specdec_ref.engine import Generation
from specdec_ref.engine.text import pieces
from specdec_ref.interfaces import ORIGINS, Origin

ORIGIN_COLOURS: dict[Origin, str] = {"accepted": GREEN, "corrected": RED, "bonus": BLUE, "plain": GREY}
LINE_STYLES: dict[Origin, str] = {"accepted": "solid", "corrected": "double", "bonus": "dotted", "plain": "dashed"}


def tokens_html(generation: Generation, tokenizer: Any, title: str = "") -> str:
    """The text as HTML: colour and underline show where each token came from; hovering over a token names it. A
    text without any draft stays plain.

    A thin upright line begins each round: what stands between two of them came from one pass of the target.
    """
    begins = _first_of_rounds(generation)
    spans = "".join(
        f'<span title="{origin}" style="{_style(origin) if generation.stats.drafted else ""}'
        f'{"; border-left: 1px solid" if i in begins else ""}">{html.escape(text)}</span>'
        for i, (text, origin) in enumerate(pieces(generation.tokens, generation.stats.origins, tokenizer))
    )
    head = f"<b>{html.escape(title)}</b><br>" if title else ""
    return (
        f'<div style="flex: 1 1 20em; font-family: monospace; white-space: pre-wrap; line-height: 1.6">'
        f"{head}{spans}</div>"
    )


def side_by_side_html(runs: Mapping[str, Generation], tokenizer: Any) -> str:
    """Generations by name, in columns, with the legend of the last."""
    columns = "".join(tokens_html(generation, tokenizer, name) for name, generation in runs.items())
    last = list(runs.values())[-1]
    return f'<div style="display: flex; gap: 2em; flex-wrap: wrap">{columns}</div>{legend_html(last)}'


def legend_html(generation: Generation) -> str:
    """What the colours and lines mean, with the number of tokens of each kind in this generation."""
    items = "".join(
        f'<li style="list-style: none"><span style="{_style(origin)}">'
        f"<b>{generation.stats.origins.count(origin)} {origin}</b></span>: {meaning}</li>"
        for origin, meaning in ORIGINS.items()
        if origin != "plain" or origin in generation.stats.origins
    )
    return f'<ul style="padding: 0">{items}</ul>'


def _style(origin: Origin) -> str:
    colour = ORIGIN_COLOURS[origin]
    return f"border-bottom: 2px {LINE_STYLES[origin]} {colour}; background: {colour}22"


def _first_of_rounds(generation: Generation) -> set[int]:
    """Indices of the tokens that come first in their rounds, where any round gave several."""
    counts = [r.emitted for r in generation.stats.by_round]
    return set(accumulate(counts[:-1], initial=0)) if max(counts, default=0) > 1 else set()
