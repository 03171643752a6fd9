"""Races as pictures and words: speedups beside guesses and predictions, and what two optimisations do together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from specdec_course.pictures.plots import BLACK, BLUE, GREEN, RED, SKY, new_figure
from specdec_ref.engine import Stats
from specdec_ref.measure import Race


def ratio_figure(
    races: Mapping[str, Race], guesses: Sequence[float | None] = (), predicted: Sequence[float] = ()
) -> Figure:
    """Speedups of decoding: a bar for the median, a dot for each pair of runs, a cross for each guess that was made.

    predicted: by the formula, one for each race; or nothing.
    """
    figure, (ax,) = new_figure(8, 1.5 + 0.6 * len(races))
    for y, race in enumerate(races.values()):
        first = y == 0
        ax.barh(y, race.ratio, height=0.5, color=SKY, label="median" if first else None)
        ax.plot(race.ratios, [y] * len(race.ratios), "o", color=BLUE, label="each pair of runs" if first else None)
    if predicted:
        ax.plot(predicted, range(len(races)), "^", color=GREEN, markersize=10, label="predicted")
    made = {y: guess for y, guess in enumerate(guesses) if isinstance(guess, (int, float))}
    if made:
        ax.plot(list(made.values()), list(made), "x", color=RED, markersize=11, mew=3, label="your guess")
    ax.axvline(1, color=BLACK, linestyle="--", linewidth=1)
    ax.set_yticks(range(len(races)), list(races))
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.set_xlabel("speedup of decoding (dashed line: equally fast)")
    figure.legend(loc="outside upper right", ncols=4, frameon=False)
    return figure


def predicted_speedup(stats: Stats, cost: Mapping[int, float]) -> float:
    """Tokens over the cost of their rounds, in passes over one token, where guesses are free.

    stats: of a run with guesses. cost: of a pass over n tokens, by n, for every n that the run's rounds fed.
    """
    return stats.emitted / sum(cost[1 + r.drafted] for r in stats.by_round)


def together_words(alone: Mapping[str, Race], both: Race) -> str:
    """What two optimisations do together, in words for every outcome. All races are against the same first arm.

    alone: the two, by name. They count as clearly apart only where their ranges do not meet.
    """
    product = 1.0
    for race in alone.values():
        product *= race.ratio
    name, best = max(alone.items(), key=lambda item: item[1].ratio)
    parts = ", ".join(f"{n} {r.ratio:.1f}x" for n, r in alone.items())
    head = (
        f"Alone: {parts}. Both would give {product:.1f}x if neither got in the other's way; they give {both.ratio:.1f}x"
    )
    if both.interval[1] < best.interval[0]:
        return f"{head}, slower than {name} alone."
    if both.interval[0] <= best.interval[1]:
        return f"{head}, about as much as {name} alone."
    if both.interval[1] < product:
        share = both.ratio / product
        return f"{head}, {share:.0%} of that: more than either alone, less than the product."
    return f"{head}: here they hardly got in each other's way."
