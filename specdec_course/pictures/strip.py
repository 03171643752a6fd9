"""One round as a strip: what was fed, what the target says, what stays, and what each cache holds before and after.

A column is a place in the text: a draft stands above the target's choice for the same place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from specdec_course.pictures.plots import BLACK, BLUE, GREEN, GREY, LIGHT_GREY, ORANGE, RED, SKY, new_figure
from specdec_course.pictures.recorded import REJECTED, CacheLengths, RecordedRound, describe, token_text

_BEFORE = 3  # cached tokens shown before the pending one
_CELL = 0.62  # height of a cell, in units of a line
_STYLES: dict[str, dict[str, Any]] = {
    "held before": {"facecolor": SKY, "edgecolor": "white"},
    "added": {"facecolor": f"{SKY}66", "edgecolor": SKY},
    "taken back": {"facecolor": "white", "edgecolor": RED, "hatch": "////", "linewidth": 0.8},
    "committed, and not in the cache": {"facecolor": "white", "edgecolor": BLUE, "linestyle": ":"},
}
"""The parts of a cache, in the order of a bar."""


def strip_figure(step: RecordedRound, tokenizer: Any = None, choices: Sequence[int] = ()) -> Figure:
    """The round as a picture. Without a tokenizer, tokens are shown as ids.

    choices: the target's choice in each row of the pass, one more than drafts; where they are not given, the rows
        after a rejected draft are shown as not read.
    """
    g, caches = len(step.drafted), [("target's cache", step.target)]
    if step.draft is not None:
        caches.append(("draft's cache", step.draft))
    figure, (ax,) = new_figure(10, 2.4 + 0.55 * len(caches))
    ax.set(xlim=(-2.25, _BEFORE + g + 4.6), ylim=(-3.5 - len(caches), 0.75))
    ax.axis("off")
    context = [token_text(t, tokenizer) for t in step.context[-_BEFORE - 1 : -1]]
    shown = [*[""] * (_BEFORE - len(context)), *context]
    pending = token_text(step.context[-1], tokenizer)

    _label(ax, 0, "fed to the target")
    for i, text in enumerate(shown):
        _cell(ax, i, 0, text, face="white", edge=LIGHT_GREY, ink=GREY)
    _cell(ax, _BEFORE, 0, pending, face=f"{BLUE}22", edge=BLUE)
    ax.text(_BEFORE, 0.55, "pending", ha="center", va="center", color=BLUE, fontsize=9)
    if g:
        ax.text(_BEFORE + (g + 1) / 2, 0.55, "drafts", ha="center", va="center", color=ORANGE, fontsize=9)
    for i, (token, fate) in enumerate(zip(step.drafted, step.fates)):
        _cell(ax, _BEFORE + 1 + i, 0, token_text(token, tokenizer), face=f"{ORANGE}33", edge=ORANGE)
        sign, colour = {"accepted": ("✓", GREEN), REJECTED: ("✗", RED)}.get(fate, ("–", GREY))
        ax.text(_BEFORE + 1 + i, -0.5, sign, ha="center", va="center", color=colour, fontsize=13, weight="bold")

    _label(ax, 1, "the target says")
    for row in range(g + 1):
        x = _BEFORE + 1 + row
        text, edge = _said(step, row, tokenizer, choices)
        ax.annotate(
            "", (x - 0.36, -1 + _CELL / 2), (x - 0.75, -_CELL / 2), arrowprops={"arrowstyle": "->", "color": GREY}
        )
        _cell(ax, x, 1, text, face=f"{edge}22", edge=edge, ink=BLACK if edge != GREY else GREY)
        ax.text(x, -1 - 0.46, f"row {row}", ha="center", va="center", color=GREY, fontsize=7.5)

    _label(ax, 2.2, "committed now")
    for i, text in enumerate([*shown, pending]):
        _cell(ax, i, 2.2, text, face="white", edge=LIGHT_GREY, ink=GREY if i < _BEFORE else BLACK)
    for i, token in enumerate(step.kept):
        last = i == len(step.kept) - 1
        edge = BLUE if last else GREEN
        _cell(ax, _BEFORE + 1 + i, 2.2, token_text(token, tokenizer), face=f"{edge}22", edge=edge)
    ax.text(_BEFORE + len(step.kept) + 0.6, -2.2, "← now pending", va="center", color=BLUE, fontsize=9)

    start = step.committed - len(step.kept) - 1 - _BEFORE  # the place in the text of the first column
    kinds: set[str] = set()
    for i, (name, lengths) in enumerate(caches):
        kinds |= _cache(ax, 3.2 + i, name, lengths, start, step.committed, _BEFORE + g + 2)
    _legend(ax, 3.2 + len(caches), kinds)
    return figure


def strip_words(step: RecordedRound) -> str:
    """What `strip_figure` shows, in words."""
    words = [f"One round. {describe(step)}", _cache_words("target", step.target)]
    if step.draft is not None:
        words.append(_cache_words("draft model", step.draft))
    return " ".join([*words, f"Committed are then {step.committed} tokens, the last of them pending."])


def _cache_words(whose: str, lengths: CacheLengths) -> str:
    taken = lengths.fullest - lengths.after
    return (
        f"The {whose}'s cache holds {lengths.before} tokens before the round, {lengths.fullest} at its fullest "
        f"and {lengths.after} after it, so {taken or 'none'} {'is' if taken == 1 else 'are'} taken back."
    )


def _said(step: RecordedRound, row: int, tokenizer: Any, choices: Sequence[int]) -> tuple[str, str]:
    """The text in a row of the target's, and its colour."""
    if row == step.accepted:
        return token_text(step.token, tokenizer), BLUE
    if row < step.accepted:
        return token_text(step.drafted[row], tokenizer), GREEN
    return (token_text(choices[row], tokenizer) if choices else "not read"), GREY


def _cache(
    ax: Axes, line: float, name: str, lengths: CacheLengths, start: int, committed: int, columns: int
) -> set[str]:
    """One bar, and the kinds of cells in it; a line where the cache is cut."""
    _label(ax, line, name)
    kinds = set()
    for x in range(columns):
        place = start + x  # tokens before this one in the text
        if place < 0:
            continue
        if place < lengths.after:
            kind = "held before" if place < lengths.before else "added"
        elif place < lengths.fullest:
            kind = "taken back"
        elif place < committed:
            kind = "committed, and not in the cache"
        else:
            break
        kinds.add(kind)
        ax.add_patch(Rectangle((x - 0.45, -line - 0.2), 0.9, 0.4, **_STYLES[kind]))
    if lengths.after < lengths.fullest:
        at = lengths.after - start - 0.5
        ax.plot([at, at], [-line - 0.38, -line + 0.38], color=RED, linewidth=2, marker="", linestyle="-")
    counts = f"{lengths.before} → {lengths.fullest} → {lengths.after}, lacks {committed - lengths.after}"
    ax.text(columns - 0.35, -line, counts, va="center", fontsize=9.5)
    return kinds


def _legend(ax: Axes, line: float, kinds: Collection[str]) -> None:
    x = 0.0
    for kind, style in _STYLES.items():
        if kind not in kinds:
            continue
        ax.add_patch(Rectangle((x - 0.45, -line - 0.12), 0.4, 0.24, **style))
        ax.text(x + 0.05, -line, kind, va="center", fontsize=8.5, color=GREY)
        x += 0.8 + 0.135 * len(kind)


def _label(ax: Axes, line: float, text: str) -> None:
    ax.text(-0.65, -line, text, ha="right", va="center", fontsize=9.5)


def _cell(ax: Axes, x: float, line: float, text: str, face: str, edge: str, ink: str = BLACK) -> None:
    ax.add_patch(Rectangle((x - 0.45, -line - _CELL / 2), 0.9, _CELL, facecolor=face, edgecolor=edge, linewidth=1.3))
    size = min(9.0, 62 / max(7, len(text)))
    ax.text(x, -line, text, ha="center", va="center", fontsize=size, family="monospace", color=ink)
