"""One draft as mass that moves, from where q exceeds p to where p exceeds q; and the tree of a round of one draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from torch import Tensor

from specdec_course.pictures.plots import BLACK, BLUE, GREEN, ORANGE, new_figure, show
from specdec_course.pictures.widgets import Explorer, explorer, slider
from specdec_ref.interfaces import Proposal, Rule, Tokenizer
from specdec_ref.proof import enumerate_distribution, round_distribution
from specdec_ref.sampling import RandomSource
from specdec_ref.verify import RULES

WIDTH = 0.7
"""Of every bar. With one width and one scale, equal heights are equal areas."""


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


def mass_figure(p: Sequence[float], q: Sequence[float], names: Sequence[str] = ()) -> Figure:
    """Left, what the draft proposes, with q's surplus over p and p's deficit; right, what the rule makes of it.

    What is kept and what comes out are those of the production rule, in every branch. names: of the tokens.
    """
    step, tokens = one_step(p, q), range(len(p))
    figure, (before, after) = new_figure(10.5, 4.2, columns=2)
    surplus = [b - a for a, b in zip(step.accepted, q, strict=True)]
    missing = [b - a for a, b in zip(step.accepted, p, strict=True)]
    for ax in (before, after):
        ax.bar(tokens, step.accepted, WIDTH, color=BLUE, label="kept")
    _boxes(before, surplus, step.accepted, f"dropped: {sum(surplus):.2f}", facecolor=ORANGE, hatch="..")
    _boxes(before, missing, step.accepted, f"missing: {sum(missing):.2f}", facecolor="none", linestyle="--")
    _boxes(
        after, step.corrected, step.accepted, f"corrections: {sum(step.corrected):.2f}", facecolor=ORANGE, hatch=".."
    )
    _pour(before, step.accepted, surplus, missing)
    for ax, title in ((before, "drafted: q"), (after, "emitted")):
        ax.hlines(p, [x - 0.45 for x in tokens], [x + 0.45 for x in tokens], color=GREEN, linewidth=4, label="target p")
        ax.set_xticks(tokens, names or [f"token {x}" for x in tokens])
        ax.set_ylim(0, 1.28 * max(*p, *q))
        ax.set_title(title)
        ax.grid(axis="x", visible=False)
        ax.legend(loc="upper center", fontsize=10, ncols=4, columnspacing=1, handlelength=1.3, frameon=False)
    before.set_ylabel("probability")
    if max(map(len, names), default=0) > 8:
        for ax in (before, after):
            ax.tick_params(axis="x", labelrotation=35)
    return figure


def _boxes(ax: Axes, heights: Sequence[float], bottoms: Sequence[float], label: str, **style: Any) -> None:
    """Bars on top of others, for those that have a height."""
    some = [x for x, height in enumerate(heights) if height > 1e-9]
    if some:
        at = ([heights[x] for x in some], WIDTH)
        ax.bar(some, *at, bottom=[bottoms[x] for x in some], label=label, edgecolor=BLACK, linewidth=1.3, **style)


def _pour(ax: Axes, bottoms: Sequence[float], surplus: Sequence[float], missing: Sequence[float]) -> None:
    """An arrow from each surplus to each deficit where much moves, which decides its width; many thin ones hide it."""
    total = sum(surplus)
    for x, too_much in enumerate(surplus):
        for y, too_little in enumerate(missing):
            moved = too_much * too_little / total if total > 1e-9 else 0.0
            if moved > max(0.004, 0.06 * total):
                ends = [(z, bottoms[z] + height / 2) for z, height in ((x, too_much), (y, too_little))]
                bend = f"arc3,rad={0.25 if y < x else -0.25}"
                arrow = FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=12, connectionstyle=bend)
                arrow.set(color=BLACK, alpha=0.75, linewidth=0.8 + 6 * moved, zorder=4)
                ax.add_patch(arrow)


class Bars(NamedTuple):
    """A distribution over a vocabulary in a few bars: p, q and the name of each."""

    p: list[float]
    q: list[float]
    names: list[str]


def likeliest_bars(p: Tensor, q: Tensor, tokenizer: Tokenizer, n: int = 6) -> Bars:
    """The `n` likeliest tokens of p and q `[vocab]`, and two bars for all others: those with p > q, those with p <= q.

    So the bars have the same sum of min(p, q) as the whole vocabulary.
    """
    top = torch.maximum(p, q).topk(n).indices
    rest = torch.ones_like(p, dtype=torch.bool)
    rest[top] = False
    sides = rest & (p > q), rest & (p <= q)
    p_bars, q_bars = ([*each[top].tolist(), *(each[side].sum().item() for side in sides)] for each in (p, q))
    names = [*(repr(tokenizer.decode([t])) for t in top.tolist()), "others, p > q", "others, p ≤ q"]
    return Bars(p_bars, q_bars, names)


def mass_words(p: Sequence[float], q: Sequence[float]) -> str:
    """The numbers of `mass_figure` in words."""
    step = one_step(p, q)
    dropped = sum(step.corrected)
    correction = f"corrections follow {percent(step.residual)}" if dropped > 0 else "nothing to correct"
    return (
        f"Target p = {percent(p)}; draft q = {percent(q)}. {sum(step.accepted):.0%} of drafts kept, {dropped:.0%} "
        f"dropped; {correction}; emitted {percent(step.emitted)}."
    )


def mass_html(p: Sequence[float], q: Sequence[float]) -> str:
    """`mass_figure` with its numbers above it and in its description."""
    words = mass_words(p, q)
    return f"<p>{words}</p>{show(mass_figure(p, q), words).data}"


def mass_explorer(p: Sequence[int] = (3, 6, 1), q: Sequence[int] = (1, 3, 6)) -> Explorer:
    """Change p and q over three tokens, by weights from 0 to 10 that are divided by their sum."""

    def render(**weights: int) -> str:
        distributions = []
        for name in ("p", "q"):
            distribution = [weights[f"{name}{x}"] for x in range(3)]
            if sum(distribution) == 0:
                return f"<p>All three weights of {name} are 0: raise one of them.</p>"
            distributions.append([w / sum(distribution) for w in distribution])
        return mass_html(*distributions)

    sliders = {
        f"{name}{x}": slider(f"{name}: weight of token {x}", weights[x], 0, 10)
        for name, weights in (("p", p), ("q", q))
        for x in range(3)
    }
    return explorer(render, **sliders)


class Leaf(NamedTuple):
    """An end of the tree: the draft, whether it was kept, the token that comes first, and the chance of this way."""

    draft: int
    kept: bool
    token: int
    chance: float


def round_leaves(p: Sequence[float], q: Sequence[float], rule: str | Rule = "token") -> list[Leaf]:
    """Every way through a round of one draft, up to its first token, by the production rule; kept ones first."""
    verify = RULES[rule] if isinstance(rule, str) else rule

    def program(source: RandomSource) -> tuple[int, bool, int]:
        table = torch.tensor([list(p), list(p), list(q)], dtype=torch.float64)
        x = source.categorical(table[2])
        verdict = verify(Proposal([x], table[2:]), table[:2], source)
        return x, verdict.accepted > 0, verdict.emitted([x])[0]

    ways = enumerate_distribution(program)
    leaves = [Leaf(*way, chance) for way, chance in ways.items()]
    return sorted(leaves, key=lambda leaf: (leaf.draft, not leaf.kept, leaf.token))


def tree_figure(p: Sequence[float], q: Sequence[float]) -> Figure:
    """The tree of a round of one draft: draw it, keep or drop it, correct it; with the chance of every step and end."""
    leaves = round_leaves(p, q)
    figure, (ax,) = new_figure(9.5, 0.9 + 0.75 * len(leaves))
    ax.set_axis_off()
    ax.set_xlim(-0.15, 4.6)
    ax.set_ylim(len(leaves) - 0.4, -0.9)
    heads = ((0.5, "draw x from q"), (1.5, "keep it?"), (2.5, "draw a correction"), (3.85, "first token of the round"))
    for x, head in heads:
        ax.text(x, -0.7, head, ha="center", fontsize=11, color=BLACK, style="italic")
    place = {leaf: y for y, leaf in enumerate(leaves)}
    root = (0.0, (len(leaves) - 1) / 2)
    for x in sorted({leaf.draft for leaf in leaves}):
        mine = [leaf for leaf in leaves if leaf.draft == x]
        node = (1.0, sum(place[leaf] for leaf in mine) / len(mine))
        _branch(ax, root, node, f"{x}: {q[x]:.2g}")
        for kept in (True, False):
            ends = [leaf for leaf in mine if leaf.kept == kept]
            share = sum(leaf.chance for leaf in ends) / q[x]
            if not ends:
                continue
            mark = (2.0, sum(place[leaf] for leaf in ends) / len(ends))
            _branch(ax, node, mark, f"{'yes' if kept else 'no'}: {share:.2g}", BLUE if kept else ORANGE)
            for leaf in ends:
                here, within = (3.0, place[leaf]), leaf.chance / q[x] / share
                _branch(ax, mark, here, "" if kept else f"{leaf.token}: {within:.2g}", BLUE if kept else ORANGE)
                ax.plot(*here, "o", color=BLUE if kept else ORANGE, markersize=22, markeredgecolor=BLACK)
                ax.text(*here, str(leaf.token), ha="center", va="center", fontsize=13, weight="bold", color="white")
                ax.text(3.3, here[1], f"token {leaf.token}, in {leaf.chance:.0%} of rounds", va="center", fontsize=11)
    ax.plot(*root, "o", color=BLACK, markersize=7)
    return figure


def _branch(ax: Axes, start: tuple[float, float], end: tuple[float, float], text: str, colour: str = BLACK) -> None:
    ax.plot([start[0], end[0]], [start[1], end[1]], color=colour, linewidth=2, linestyle="-", marker="", zorder=1)
    if text:
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        ax.text(*middle, text, ha="center", va="center", fontsize=11, bbox=box)


def tree_words(p: Sequence[float], q: Sequence[float]) -> str:
    """The ways of `tree_figure` in words."""
    ways = [
        f"draft {leaf.draft} {'kept' if leaf.kept else f'dropped, correction {leaf.token}'}: {leaf.chance:.2g}"
        for leaf in round_leaves(p, q)
    ]
    return f"The ways through a round of one draft. {'; '.join(ways)}."


def pushes_figure(pushes: Mapping[str, Sequence[float]]) -> Figure:
    """How much probability each of several changes moves to the tokens that a draft prefers, place by place."""
    figure, panels = new_figure(9.5, 3.4, columns=len(pushes))
    largest = max(abs(x) for values in pushes.values() for x in values)
    for ax, (name, values), colour in zip(panels, pushes.items(), (BLUE, ORANGE, GREEN), strict=False):
        mean = sum(values) / len(values)
        ax.bar(range(len(values)), values, 0.8, color=colour, edgecolor=BLACK, linewidth=0.5)
        ax.axhline(mean, color=BLACK, linestyle="--", linewidth=1.3, label=f"mean {mean:+.3f}")
        ax.axhline(0, color=BLACK, linewidth=0.8)
        ax.set_title(name)
        ax.set_xlabel("place in the text")
        ax.set_ylim(-1.15 * largest, 1.15 * largest)
        ax.legend(loc="lower right", frameon=False)
    panels[0].set_ylabel("mass moved to\nthe draft's favourites")
    return figure
