"""Show a generation with each piece of text coloured by where it came from."""

from __future__ import annotations

import html
from typing import Any

from specdec_ref.engine import Generation
from specdec_ref.engine.text import pieces
from specdec_ref.interfaces import ORIGINS

COLOURS = {"accepted": "#009E73", "corrected": "#D55E00", "bonus": "#0072B2"}  # Okabe and Ito: safe for all eyes
_MARK = {"accepted": "solid", "corrected": "double", "bonus": "dotted"}


def tokens_html(generation: Generation, tokenizer: Any, title: str = "") -> str:
    """The text as HTML: colour and underline say where each token came from; hovering names it."""
    spans = "".join(
        f'<span title="{origin}" style="border-bottom: 2px {_MARK[origin]} {COLOURS[origin]}; '
        f'background: {COLOURS[origin]}22">{html.escape(text)}</span>'
        for text, origin in pieces(generation.tokens, generation.stats.origins, tokenizer)
    )
    head = f"<b>{html.escape(title)}</b><br>" if title else ""
    return (
        f'<div style="flex: 1 1 20em; font-family: monospace; white-space: pre-wrap; line-height: 1.6">'
        f"{head}{spans}</div>"
    )


def legend_html(generation: Generation) -> str:
    """What the colours mean, with the count of each in this generation."""
    counts = {origin: generation.stats.origins.count(origin) for origin in COLOURS}
    items = "".join(
        f'<li style="border-left: 0.8em solid {COLOURS[o]}; padding-left: 0.5em; list-style: none">'
        f"<b>{counts[o]} {o}</b>: {ORIGINS[o]}</li>"
        for o in COLOURS
    )
    return f'<ul style="padding: 0">{items}</ul>'
