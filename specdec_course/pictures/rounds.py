"""The rounds of a generation: how many tokens each gave, one after the other, and where the time went."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specdec_course.pictures.plots import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, new_figure, show
from specdec_course.pictures.recorded import RecordedRound, describe
from specdec_course.pictures.strip import strip_figure, strip_words
from specdec_course.pictures.widgets import choice, explorer, slider
from specdec_ref.engine import Stats

PARTS = ("draft", "verify", "rest")


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


def round_stepper(
    runs: Mapping[str, Sequence[RecordedRound]], tokenizer: Any = None, number: int = 1
) -> ipywidgets.VBox:
    """Choose a run and step through its rounds; past the end of a shorter run, its last round is shown.

    number: of the round that is shown first.
    """

    def render(run: str, number: int) -> str:
        steps = runs[run]
        i = min(number, len(steps))
        step = steps[i - 1]
        picture = show(strip_figure(step, tokenizer), alt=strip_words(step)).data
        return f"<p><b>{run}, round {i} of {len(steps)}</b>: {describe(step)}</p>{picture}"

    return explorer(
        render,
        run=choice("drafter", list(runs), next(iter(runs))),
        number=slider("round", number, 1, max(len(steps) for steps in runs.values())),
    )


def times_per_token(runs: Mapping[str, Sequence[Stats]]) -> dict[str, list[dict[str, float]]]:
    """For each run and repeat the time per token by part, prefill excluded, in units of the first run's.

    runs: by name the statistics of its repeats, taken in turns with those of the other runs; the first is the measure.
    Raises ValueError where the repeats are not as many for each run, or a repeat was not timed.
    """
    if len({len(repeats) for repeats in runs.values()}) != 1 or not all(runs.values()):
        raise ValueError(f"give each run as many repeats: {', '.join(f'{n} {len(r)}' for n, r in runs.items())}")
    parts = {name: [_seconds_per_token(stats) for stats in repeats] for name, repeats in runs.items()}
    units = [sum(seconds.values()) for seconds in next(iter(parts.values()))]
    return {
        name: [{part: seconds[part] / unit for part in PARTS} for seconds, unit in zip(repeats, units)]
        for name, repeats in parts.items()
    }


def _seconds_per_token(stats: Stats) -> dict[str, float]:
    parts = dict(zip(PARTS, (stats.draft_seconds, stats.verify_seconds, stats.other_seconds)))
    if sum(parts.values()) <= 0:
        raise ValueError("no round was timed: give the stats of a generation with at least one token")
    return {part: seconds / stats.emitted for part, seconds in parts.items()}


def times_figure(runs: Mapping[str, Sequence[Stats]]) -> Figure:
    """Time per token of each run: bars for the medians of its parts, a dot for each repeat, a line at the first run."""
    figure, (ax,) = new_figure(9, 1.5 + 0.5 * len(runs))
    times = times_per_token(runs)
    names, left = list(times), [0.0] * len(times)
    for part, colour, hatch in zip(PARTS, (ORANGE, SKY, GREEN), ("..", "//", "")):
        widths = [statistics.median(repeat[part] for repeat in repeats) for repeats in times.values()]
        ax.barh(names, widths, left=left, color=colour, hatch=hatch, edgecolor="white", height=0.6, label=part)
        left = [a + b for a, b in zip(left, widths)]
    for y, repeats in enumerate(times.values()):
        totals = [sum(repeat.values()) for repeat in repeats]
        label = "each run" if y == 0 else None
        ax.plot(totals, [y] * len(totals), "o", color=BLUE, linestyle="none", markersize=5, label=label)
    ax.axvline(1, color=BLACK, linestyle="--", linewidth=1)
    ax.set(xlim=(0, None), xlabel=f"time per token, prefill excluded, in units of {names[0]} (dashed line)")
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    figure.legend(loc="outside upper center", ncols=4)
    return figure


def times_words(runs: Mapping[str, Sequence[Stats]]) -> list[str]:
    """What `times_figure` shows, a line for each run."""
    lines = []
    for name, repeats in times_per_token(runs).items():
        totals = sorted(sum(repeat.values()) for repeat in repeats)
        parts = ", ".join(f"{part} {statistics.median(r[part] for r in repeats):.2f}" for part in PARTS)
        seen = f" ({totals[0]:.2f} to {totals[-1]:.2f})" if totals[0] < totals[-1] else ""
        lines.append(f"{name}: {statistics.median(totals):.2f}{seen} per token; {parts}")
    return lines
