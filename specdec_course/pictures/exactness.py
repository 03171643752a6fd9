"""Exactness: one draft taken apart, histograms and distances that converge or do not, the power of a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ipywidgets
from matplotlib.figure import Figure

from specdec_course.pictures.plots import BLACK, BLUE, GREEN, ORANGE, RED, SKY, new_figure, show
from specdec_course.pictures.widgets import explorer, slider
from specdec_ref.interfaces import Rule
from specdec_ref.proof import round_distribution


class Step(NamedTuple):
    """The two ways in which one draft leads to each token: probability of a kept draft, and of a correction."""

    accepted: list[float]
    corrected: list[float]

    @property
    def emitted(self) -> list[float]:
        """The distribution of what is emitted."""
        return [a + c for a, c in zip(self.accepted, self.corrected, strict=True)]

    @property
    def residual(self) -> list[float]:
        """The distribution of the correction; zeros if nothing is ever rejected."""
        rejected = sum(self.corrected)
        return [c / rejected if rejected > 0 else 0.0 for c in self.corrected]


def one_step(p: Sequence[float], q: Sequence[float], rule: str | Rule = "token") -> Step:
    """Draft one token from `q` and verify it against `p` with the production rule, in every branch.

    p, q: distributions of equal length. Raises ValueError if the lengths differ or a sum is not 1.
    """
    if len(p) != len(q) or any(abs(sum(distribution) - 1) > 1e-9 or min(distribution) < 0 for distribution in (p, q)):
        raise ValueError(f"p and q need equal lengths and a sum of 1 each: {list(p)}, {list(q)}")
    parts = ([0.0] * len(p), [0.0] * len(p))
    for (accepted, tokens), probability in round_distribution(rule, lambda _: p, lambda _: q).items():
        parts[0 if accepted else 1][tokens[0]] += probability
    return Step(*parts)


def percent(distribution: Sequence[float]) -> str:
    """A distribution as text: "60%, 30%, 10%"."""
    return ", ".join(f"{100 * x:.0f}%" for x in distribution)


def rejection_figure(p: Sequence[float], q: Sequence[float]) -> Figure:
    """Three panels: p, q and their overlap; the distribution of the correction; what is emitted, in two parts.

    The second and third come from enumerating the production rule; p is marked on the third for comparison.
    """
    step, tokens = one_step(p, q), range(len(p))
    figure, (both, after, out) = new_figure(10.5, 3.9, columns=3)
    both.bar([x - 0.2 for x in tokens], p, 0.4, color=GREEN, label="target p")
    both.bar([x + 0.2 for x in tokens], q, 0.4, color=SKY, label="draft q")
    shared = [min(a, b) for a, b in zip(p, q, strict=True)]
    both.bar(tokens, shared, 0.8, fill=False, edgecolor=BLACK, hatch="///", label="min(p, q)")
    both.set_title(f"accepted: {sum(step.accepted):.0%} of drafts")
    after.bar(tokens, step.residual, 0.6, color=ORANGE, hatch="..", edgecolor=BLACK)
    after.set_title(f"rejected: {sum(step.corrected):.0%}, redrawn from")
    out.bar(tokens, step.accepted, 0.6, color=BLUE, label="kept drafts")
    out.bar(
        tokens,
        step.corrected,
        0.6,
        bottom=step.accepted,
        color=ORANGE,
        hatch="..",
        edgecolor=BLACK,
        label="corrections",
    )
    out.plot(tokens, p, "D", color=GREEN, markeredgecolor=BLACK, markersize=9, linestyle="none", label="target p")
    out.set_title("emitted")
    top = max(*p, *q, 0.5) * 1.45
    for ax in (both, after, out):
        ax.set_xticks(tokens)
        ax.set_xlabel("token")
        ax.set_ylim(0, max(top, 1.08) if ax is after else top)
    both.set_ylabel("probability")
    both.legend(loc="upper center", fontsize=9, ncols=3, columnspacing=1, handlelength=1.2)
    out.legend(loc="upper center", fontsize=9, ncols=3, columnspacing=1, handlelength=1.2)
    return figure


def step_in_words(p: Sequence[float], q: Sequence[float]) -> str:
    """The numbers of `rejection_figure` in words."""
    step = one_step(p, q)
    correction = f"corrections follow {percent(step.residual)}" if sum(step.corrected) > 0 else "no corrections"
    return (
        f"Target p = {percent(p)}; draft q = {percent(q)}. {sum(step.accepted):.0%} of drafts accepted; "
        f"{correction}; emitted {percent(step.emitted)}."
    )


def rejection_html(p: Sequence[float], q: Sequence[float]) -> str:
    """`rejection_figure` with its numbers above it and in its description."""
    words = step_in_words(p, q)
    return f"<p>{words}</p>{show(rejection_figure(p, q), words).data}"


def exactness_explorer(p: Sequence[int] = (6, 3, 1), q: Sequence[int] = (1, 3, 6)) -> ipywidgets.VBox:
    """Change p and q over three tokens, by weights from 0 to 10 that are divided by their sum."""

    def render(**weights: int) -> str:
        distributions = []
        for name in ("p", "q"):
            distribution = [weights[f"{name}{x}"] for x in range(3)]
            if sum(distribution) == 0:
                return f"<p>All three weights of {name} are 0: raise one of them.</p>"
            distributions.append([w / sum(distribution) for w in distribution])
        return rejection_html(*distributions)

    sliders = {
        f"{name}{x}": slider(f"{name}: weight of token {x}", weights[x], 0, 10)
        for name, weights in (("p", p), ("q", q))
        for x in range(3)
    }
    return explorer(render, **sliders)


def histogram_figure(distribution: Sequence[float], counts: Mapping[int, Sequence[int]]) -> Figure:
    """Relative frequencies beside the distribution, one panel per number of draws.

    counts: for each number of draws, how often each token came.
    """
    figure, panels = new_figure(3.2 * len(counts), 3.2, columns=len(counts))
    tokens = range(len(distribution))
    for ax, (draws, counted) in zip(panels, counts.items(), strict=True):
        ax.bar(tokens, [c / draws for c in counted], 0.6, color=BLUE, label="observed")
        ax.plot(
            tokens, distribution, "D", color=ORANGE, markeredgecolor=BLACK, markersize=9, linestyle="none", label="p"
        )
        ax.set_title(f"{draws:,} draws")
        ax.set_xticks(tokens)
        ax.set_xlabel("token")
        ax.set_ylim(0, 1)
    panels[0].set_ylabel("share of the draws")
    panels[0].legend()
    return figure


def convergence_figure(
    draws: Sequence[int], distances: Mapping[str, Sequence[float]], limits: Mapping[str, float]
) -> Figure:
    """Total variation (TV) between frequencies and p against the number of draws, both axes logarithmic.

    distances: for each program its TV after each of `draws`; a TV of 0 is left out. limits: for each program the exact
        TV of its distribution, drawn as a line unless it is 0.
    """
    figure, (ax,) = new_figure(8, 4.2)
    for name, values in distances.items():
        (line,) = ax.plot(draws, [v if v > 0 else float("nan") for v in values], label=name, markersize=5)
        if limits.get(name, 0) > 0:
            ax.axhline(limits[name], color=line.get_color(), linestyle=":", linewidth=1.5)
            ax.annotate(
                f"exact: {limits[name]:.3f}",
                (draws[-1], limits[name]),
                textcoords="offset points",
                xytext=(0, 5),
                ha="right",
                color=line.get_color(),
            )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("draws")
    ax.set_ylabel("total variation distance to p")
    ax.legend(loc="lower left")
    return figure


def power_figure(
    draws: Sequence[int], observed: Mapping[str, Sequence[float]], computed: Mapping[str, Sequence[float]]
) -> Figure:
    """How often a test rejects, against the number of draws: in an experiment, and as computed."""
    figure, (ax,) = new_figure(8, 3.9)
    for (name, rates), colour, marker in zip(observed.items(), (RED, BLUE, GREEN), "os^", strict=False):
        ax.plot(draws, rates, color=colour, marker=marker, linestyle="none", markersize=8, label=f"{name}: experiment")
        ax.plot(draws, computed[name], color=colour, linestyle="--", marker="", label=f"{name}: computed")
    ax.axhline(0.99, color=BLACK, linewidth=1, linestyle=":")
    ax.annotate("99%", (draws[0], 0.99), textcoords="offset points", xytext=(2, -13))
    ax.set_xscale("log")
    ax.set_ylim(0, 1.05)
    ax.set_xlabel("draws")
    ax.set_ylabel("share of runs in which the test rejects")
    ax.legend(loc="center left")
    return figure
