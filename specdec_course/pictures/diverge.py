"""Outputs side by side: how far they agree, and what each says after that."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_course.pictures.plots import RED


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token at which `a` and `b` differ (or one of them ends); None where they are equal."""
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def diverging_html(outputs: Mapping[str, Sequence[int]], tokenizer: Any) -> str:
    """The first output in full, then each of the others, with everything after its divergence bold and underlined.

    outputs: token ids by name; `tokenizer` is a transformers tokenizer.
    """
    (name, reference), *others = outputs.items()
    parts = [_paragraph(name, tokenizer.decode(list(reference)), "")]
    for name, tokens in others:
        at = first_difference(reference, tokens)
        if at is None:
            parts.append(_paragraph(f"{name}: the same {len(tokens)} tokens", tokenizer.decode(list(tokens)), ""))
            continue
        head, tail = tokenizer.decode(list(tokens[:at])), tokenizer.decode(list(tokens[at:]))
        ended = "" if tail else " ⟂"  # no more text: this output ended early
        parts.append(
            _paragraph(f"{name}: the same for {at} token{'' if at == 1 else 's'}, then different", head, tail + ended)
        )
    return "".join(parts)


def _paragraph(title: str, same: str, different: str) -> str:
    mark = f'<b style="border-bottom: 2px solid {RED}">{html.escape(different)}</b>' if different else ""
    return (
        f'<p style="margin: 0.8em 0 0.2em"><i>{html.escape(title)}</i></p>'
        f'<div style="font-family: monospace; white-space: pre-wrap; line-height: 1.5; margin: 0 0 0.8em 1.5em">'
        f"{html.escape(same)}{mark}</div>"
    )
