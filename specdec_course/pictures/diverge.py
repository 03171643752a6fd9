"""Two outputs beside each other: how far they agree, and what each says from there."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token in which `a` and `b` differ (one may just end there); None where they are equal."""
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def diverging_html(outputs: dict[str, Sequence[int]], tokenizer: Any) -> str:
    """The first output in full, then each other one, with what departs from the first in bold and underlined."""
    first, *others = outputs.items()
    parts = [_paragraph(first[0], tokenizer.decode(list(first[1])), "")]
    for name, tokens in others:
        at = first_difference(first[1], tokens)
        if at is None:
            parts.append(_paragraph(f"{name}: the same {len(tokens)} tokens", tokenizer.decode(list(tokens)), ""))
            continue
        head, tail = tokenizer.decode(list(tokens[:at])), tokenizer.decode(list(tokens[at:]))
        ended = "" if tail else " ⟂"  # nothing more: this output ended early
        parts.append(_paragraph(f"{name}: the same for {at} tokens, then not", head, tail + ended))
    return "".join(parts)


def _paragraph(title: str, same: str, different: str) -> str:
    mark = f'<b style="border-bottom: 2px solid #D55E00">{html.escape(different)}</b>' if different else ""
    return (
        f'<p style="margin: 0.8em 0 0.2em"><i>{html.escape(title)}</i></p>'
        f'<div style="font-family: monospace; white-space: pre-wrap; line-height: 1.5; margin: 0 0 0.8em 1.5em">'
        f"{html.escape(same)}{mark}</div>"
    )
