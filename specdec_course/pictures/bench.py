"""The benchmark's record as a picture: speedups by domain, each with its confidence interval."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from specdec_course.pictures.plots import BLACK, CYCLE, new_figure
from specdec_ref.bench.run import comparisons, ratio


def bench_figure(record: Mapping[str, Any], pairs: Sequence[tuple[str, str, str]] | None = None) -> Figure:
    """A row per comparison, a mark per domain and their geometric mean in black, with 95% confidence intervals.

    Left panel: decoding alone; right panel: prefill included. Raises ValueError if there is nothing to compare.
    """
    pairs = comparisons(record) if pairs is None else pairs
    if not pairs:
        raise ValueError("the record holds no two arms to compare")
    figure, axes = new_figure(11, 1.6 + 0.8 * len(pairs), columns=2)
    for ax, what, words in zip(axes, ("tpot", "total"), ("decoding alone", "prefill included"), strict=True):
        _column(ax, record, pairs, what)
        ax.set_xlabel(f"speedup, {words}")
    axes[0].set_yticks(range(len(pairs)), [words for _, _, words in pairs])
    axes[1].set_yticks(range(len(pairs)), [""] * len(pairs))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    return figure


def _column(ax: Any, record: Mapping[str, Any], pairs: Sequence[tuple[str, str, str]], what: str) -> None:
    domains = list(dict.fromkeys(p["domain"] for p in record["prompts"].values()))
    styles = list(CYCLE)
    for y, (first, second, _) in enumerate(pairs):
        for i, domain in enumerate([*domains, None]):
            r = ratio(record, first, second, domain, what)
            style = styles[i % len(styles)] if domain else {"color": BLACK, "marker": "|"}
            ax.errorbar(
                [r.mean],
                [y + (i - len(domains) / 2) * 0.11],
                xerr=[[r.mean - r.low], [r.high - r.mean]],
                color=style["color"],
                marker=style["marker"],
                linestyle="none",
                markersize=14 if domain is None else 5,
                linewidth=2.2 if domain is None else 1,
                label=(domain or "all domains") if y == 0 else None,
            )
    ax.axvline(1, color=BLACK, linestyle="--", linewidth=1)
    ax.invert_yaxis()
    ax.set_xscale("log")
    ticks = [0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16]
    ax.set_xticks(ticks, [f"{t:g}x" for t in ticks])
    ax.minorticks_off()


def main(record: str, picture: str) -> None:
    """Draw a record of `specdec bench --out` as a PNG file: `python -m specdec_course.pictures.bench IN OUT`."""
    figure = bench_figure(json.loads(Path(record).read_text(encoding="utf-8")))
    figure.savefig(picture, format="png", dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
