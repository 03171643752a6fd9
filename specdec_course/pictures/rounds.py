"""Rounds, one by one: what was drafted, what was kept, and what both caches held before and after.

`record_rounds` uses the engine's `on_round` hook; `round_html` and `rounds_figure` are pure functions of its records.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specdec_course.pictures.plots import BLUE, GREEN, GREY, ORANGE, RED, SKY, new_figure
from specdec_course.pictures.tokens import ORIGIN_COLOURS
from specdec_course.pictures.widgets import choice, explorer, slider
from specdec_ref.draft import DraftModelDrafter
from specdec_ref.engine import Generation, Round, Run, SpeculativeEngine, Stats

REJECTED, UNTESTED = "rejected", "not tested"
_FATE_COLOURS: dict[str, str] = {str(k): v for k, v in ORIGIN_COLOURS.items()} | {REJECTED: RED, UNTESTED: GREY}
_SIGNS = {"accepted": "✓", REJECTED: "✗", UNTESTED: "–", "corrected": "→", "bonus": "+", "plain": "·"}
_CONTEXT = 4  # tokens shown before the pending one


@dataclass(frozen=True)
class CacheLengths:
    """Tokens in a cache: before a round, at its fullest, and after the round."""

    before: int
    fullest: int
    after: int


@dataclass(frozen=True)
class RecordedRound:
    """One round of a generation, as plain data.

    context: the last tokens committed before the round; the final one is pending.
    drafted, accepted, token, origin: the proposal and the verdict, see `specdec_ref.interfaces.Verdict`.
    kept: the tokens that became part of the output; fewer than the verdict's if a stop cut them off.
    committed: length of prompt and output after the round, in tokens.
    target, draft: cache lengths; `draft` is None for a drafter without a cache.
    """

    context: tuple[int, ...]
    drafted: tuple[int, ...]
    accepted: int
    token: int
    origin: str
    kept: tuple[int, ...]
    committed: int
    target: CacheLengths
    draft: CacheLengths | None

    @property
    def fates(self) -> list[str]:
        """The fate of each drafted token: "accepted", "rejected" or "not tested"."""
        tail = [REJECTED, *[UNTESTED] * len(self.drafted)]
        return [*["accepted"] * self.accepted, *tail][: len(self.drafted)]


def record_rounds(engine: SpeculativeEngine, prompt: Any, **options: Any) -> tuple[Generation, list[RecordedRound]]:
    """Generate with `engine` and record every round. Takes the options of `SpeculativeEngine.generate`."""
    steps: list[RecordedRound] = []

    def note(run: Run, round_: Round) -> None:
        drafted, verdict, kept = round_.proposal.tokens, round_.verdict, round_.kept
        begin = len(run.tokens) - len(kept)
        before = steps[-1].target.after if steps else run.prompt_length - 1
        assert run.cache is not None  # a round has begun with it
        target = CacheLengths(before, before + 1 + len(drafted), run.cache.length)
        draft = None
        if isinstance(run.drafter, DraftModelDrafter):
            held = steps[-1].draft.after if steps and steps[-1].draft else 0
            # A draft model takes in all committed tokens and every draft but the last.
            draft = CacheLengths(held, begin + len(drafted) - 1 if drafted else held, run.drafter.cache.length)
        steps.append(
            RecordedRound(
                context=tuple(run.tokens[max(0, begin - _CONTEXT - 1) : begin]),
                drafted=tuple(drafted),
                accepted=verdict.accepted,
                token=verdict.token,
                origin=verdict.origin if drafted else "plain",
                kept=tuple(kept),
                committed=len(run.tokens),
                target=target,
                draft=draft,
            )
        )

    return engine.generate(prompt, on_round=note, **options), steps


def round_html(step: RecordedRound, tokenizer: Any = None, title: str = "") -> str:
    """One round as HTML: its tokens by position, the fate of each, and the cache lengths.

    Without a tokenizer, tokens are shown as ids.
    """
    emitted = [*zip(step.drafted[: step.accepted], ["accepted"] * step.accepted), (step.token, step.origin)]
    context = " ".join(_tile(t, "", tokenizer) for t in step.context[:-1])
    places = "".join(f"<th style='text-align: center'>{i}</th>" for i in range(1, len(step.drafted) + 2))
    drafted = "".join(_cell(t, fate, tokenizer) for t, fate in zip(step.drafted, step.fates))
    out = "".join(
        _cell(t, origin if i < len(step.kept) else "cut: after the end", tokenizer)
        for i, (t, origin) in enumerate(emitted)
    )
    table = (
        f"<table><tr><th>position</th>{places}</tr>"
        f"<tr><th>drafted</th>{drafted}</tr><tr><th>emitted</th>{out}</tr></table>"
    )
    return (
        f"<div>{f'<b>{html.escape(title)}</b>' if title else ''}<p>{describe(step)}</p>"
        f"<p>Before: … {context} {_tile(step.context[-1], 'pending', tokenizer)} "
        f"<small>(framed: pending, chosen but not yet in the target's cache)</small></p>{table}{_caches(step)}</div>"
    )


def describe(step: RecordedRound) -> str:
    """The round in one sentence."""
    n, fates = len(step.drafted), step.fates
    parts = [f"{n} drafted, {step.accepted} accepted"]
    if REJECTED in fates:
        parts.append(f"1 rejected, {fates.count(UNTESTED)} not tested")
    cut = step.accepted + 1 - len(step.kept)
    parts.append(f"{cut} cut off after the end" if cut else f"1 {step.origin} token")
    return f"{', '.join(parts)}: the text grows by {len(step.kept)}."


def rounds_figure(runs: Mapping[str, Sequence[tuple[int, int]]]) -> Figure:
    """The tokens of each round: accepted, the target's own, thrown away. One panel per run.

    runs: for each name its rounds, as (drafted, accepted). Raises ValueError where a run has no round.
    """
    if not runs or not all(runs.values()):
        raise ValueError("give at least one run, each with at least one round (drafted, accepted)")
    figure, panels = new_figure(9, 3.2, columns=len(runs))
    most = max(len(rounds) for rounds in runs.values())
    top = max(drafted for rounds in runs.values() for drafted, _ in rounds) + 1
    for ax, (name, rounds) in zip(panels, runs.items()):
        x = range(1, len(rounds) + 1)
        accepted = [a for _, a in rounds]
        dropped = [d - a for d, a in rounds]
        above = [a + 1 for a in accepted]
        ax.bar(x, accepted, color=GREEN, label="accepted")
        ax.bar(x, [1] * len(rounds), bottom=accepted, color=BLUE, hatch="//", edgecolor="white", label="target's own")
        ax.bar(x, dropped, bottom=above, color="none", edgecolor=GREY, linestyle=":", label="thrown away")
        ax.set(title=f"{name}: {len(rounds)} passes", xlabel="round", ylabel="tokens", xlim=(0.3, most + 0.7))
        ax.set_ylim(0, top + 0.4)
        ax.set_yticks(range(top + 1))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.grid(axis="x", visible=False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def time_shares(stats: Stats) -> dict[str, float]:
    """Shares of "draft", "verify" and "rest" in the time of all rounds, prefill excluded.

    Raises ValueError where no round was timed.
    """
    parts = {"draft": stats.draft_seconds, "verify": stats.verify_seconds, "rest": stats.other_seconds}
    total = sum(parts.values())
    if total <= 0:
        raise ValueError("no round was timed: give the stats of a generation with at least one token")
    return {name: seconds / total for name, seconds in parts.items()}


def times_figure(runs: Mapping[str, Stats]) -> Figure:
    """How the time of the rounds is divided, one bar per run."""
    figure, (ax,) = new_figure(8.5, 1.4 + 0.5 * len(runs))
    names, shares = list(runs), [time_shares(stats) for stats in runs.values()]
    left = [0.0] * len(names)
    for part, colour, hatch in (("draft", ORANGE, ".."), ("verify", SKY, "//"), ("rest", GREEN, "")):
        widths = [s[part] for s in shares]
        ax.barh(names, widths, left=left, color=colour, hatch=hatch, edgecolor="white", height=0.6, label=part)
        left = [a + b for a, b in zip(left, widths)]
    ax.set(xlim=(0, 1), xlabel="share of the rounds' time, prefill excluded")
    ax.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def round_stepper(runs: Mapping[str, Sequence[RecordedRound]], tokenizer: Any = None) -> ipywidgets.VBox:
    """Choose a run and step through its rounds; past the end of a shorter run, its last round is shown."""

    def render(run: str, number: int) -> str:
        steps = runs[run]
        i = min(number, len(steps))
        return round_html(steps[i - 1], tokenizer, f"{run}, round {i} of {len(steps)}")

    return explorer(
        render,
        run=choice("drafter", list(runs), next(iter(runs))),
        number=slider("round", 1, 1, max(len(steps) for steps in runs.values())),
    )


def _text(token: int, tokenizer: Any) -> str:
    text = str(token) if tokenizer is None else tokenizer.decode([token])
    return html.escape(text).replace("\n", "↵").replace(" ", "␣") or "∅"


def _tile(token: int, kind: str, tokenizer: Any) -> str:
    frame = "border: 2px solid currentColor; border-radius: 4px" if kind else "opacity: 0.75"
    style = f"font-family: monospace; padding: 2px 4px; {frame}"
    return f'<span title="{kind or "cached"}" style="{style}">{_text(token, tokenizer)}</span>'


def _cell(token: int, fate: str, tokenizer: Any) -> str:
    colour = _FATE_COLOURS.get(fate, GREY)
    struck = "" if fate in ORIGIN_COLOURS else "text-decoration: line-through;"
    return (
        f'<td style="text-align: center; background: {colour}22; border-bottom: 3px solid {colour}">'
        f'<span style="font-family: monospace; {struck}">{_text(token, tokenizer)}</span>'
        f"<br><small>{_SIGNS.get(fate, '✂')} {fate}</small></td>"
    )


def _caches(step: RecordedRound) -> str:
    rows = []
    for name, cache in (("target's cache", step.target), ("draft's cache", step.draft)):
        if cache is None:
            continue
        lacks = step.committed - cache.after
        rows.append(
            f"<tr><th>{name}</th><td>{cache.before}</td><td>{cache.fullest}</td><td>{cache.after}</td>"
            f"<td>{cache.fullest - cache.after}</td><td>{lacks}</td></tr>"
        )
    columns = ("tokens in", "before", "at its fullest", "after", "rolled back", f"lacks, of {step.committed} committed")
    head = "".join(f"<th>{column}</th>" for column in columns)
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"
