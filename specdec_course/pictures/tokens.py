"""A generation as text, each token coloured by where it came from; and an explorer of lookup drafts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import ipywidgets

from specdec_course.pictures.plots import BLUE, GREEN, GREY, RED
from specdec_course.pictures.widgets import choice, explorer, slider
from specdec_ref.draft import NGramDrafter
from specdec_ref.engine import Generation, SpeculativeEngine
from specdec_ref.engine.text import pieces
from specdec_ref.interfaces import ORIGINS, CausalLM, Origin
from specdec_ref.prompts import Prompt

ORIGIN_COLOURS: dict[Origin, str] = {"accepted": GREEN, "corrected": RED, "bonus": BLUE, "plain": GREY}
LINE_STYLES: dict[Origin, str] = {"accepted": "solid", "corrected": "double", "bonus": "dotted", "plain": "dashed"}


def tokens_html(generation: Generation, tokenizer: Any, title: str = "") -> str:
    """The text as HTML: colour and underline show where each token came from; hovering over a token names it."""
    spans = "".join(
        f'<span title="{origin}" style="border-bottom: 2px {LINE_STYLES[origin]} {ORIGIN_COLOURS[origin]}; '
        f'background: {ORIGIN_COLOURS[origin]}22">{html.escape(text)}</span>'
        for text, origin in pieces(generation.tokens, generation.stats.origins, tokenizer)
    )
    head = f"<b>{html.escape(title)}</b><br>" if title else ""
    return (
        f'<div style="flex: 1 1 20em; font-family: monospace; white-space: pre-wrap; line-height: 1.6">'
        f"{head}{spans}</div>"
    )


def legend_html(generation: Generation) -> str:
    """What the colours mean, with the number of tokens of each kind in this generation."""
    items = "".join(
        f'<li style="border-left: 0.8em solid {ORIGIN_COLOURS[origin]}; padding-left: 0.5em; list-style: none">'
        f"<b>{generation.stats.origins.count(origin)} {origin}</b>: {meaning}</li>"
        for origin, meaning in ORIGINS.items()
        if origin != "plain" or origin in generation.stats.origins
    )
    return f'<ul style="padding: 0">{items}</ul>'


def draft_html(target: CausalLM, prompt: Prompt, gamma: int, max_new_tokens: int = 40) -> str:
    """A generation with lookup drafts as coloured HTML, with its counts."""
    got = SpeculativeEngine(target, NGramDrafter(), gamma).generate(prompt.messages, max_new_tokens)
    stats = got.stats
    summary = (
        f"gamma {gamma}: {stats.emitted} tokens in {stats.rounds} target passes, "
        f"{stats.tokens_per_round:.2f} tokens per pass; {stats.drafted} drafted, {stats.tested} tested, "
        f"{stats.accepted} accepted"
    )
    return f"<p>{summary}</p>{tokens_html(got, target.tokenizer)}{legend_html(got)}"


def draft_explorer(target: CausalLM, prompts: Sequence[Prompt], gamma: int = 8) -> ipywidgets.VBox:
    """Choose a prompt and gamma, and see which tokens were drafted."""
    by_name = {f"{p.domain} ({p.id})": p for p in prompts}
    return explorer(
        lambda prompt, gamma: draft_html(target, by_name[prompt], gamma),
        prompt=choice("prompt", list(by_name), next(iter(by_name))),
        gamma=slider("gamma (draft tokens per round)", gamma, 0, 12),
    )
