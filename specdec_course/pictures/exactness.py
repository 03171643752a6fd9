"""Exactness by counting: distances that converge or do not, the power of a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from specdec_course.pictures.plots import BLACK, BLUE, GREEN, RED, new_figure


def convergence_figure(
    draws: Sequence[int], distances: Mapping[str, Sequence[float]], limits: Mapping[str, float]
) -> Figure:
    """Total variation (TV) between frequencies and p against the number of draws, both axes logarithmic.

    distances: for each program its TV after each of `draws`; a TV of 0 is left out. limits: for each program the exact
        TV of its distribution, drawn as a line unless it is 0.
    """
    figure, (ax,) = new_figure(8, 4.2)
    for name, values in distances.items():
        (line,) = ax.plot(draws, [v if v > 0 else float("nan") for v in values], label=name, markersize=4)
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


def g_figure(values: Mapping[str, Sequence[float]], freedom: int) -> Figure:
    """Histograms of G over many runs of each program, and the chi-square curve that correct code follows."""
    figure, (ax,) = new_figure(8, 3.6)
    end = float(np.quantile(np.concatenate([np.asarray(v) for v in values.values()]), 0.99))
    for (name, found), colour in zip(values.items(), (BLUE, RED, GREEN), strict=False):
        ax.hist(found, bins=np.linspace(0, end, 41).tolist(), density=True, color=colour, alpha=0.5, label=name)
    x = np.linspace(0, end, 300)
    ax.plot(x, stats.chi2.pdf(x, freedom), color=BLACK, marker="", label=f"chi-square, {freedom} degrees of freedom")
    ax.set_xlabel("G")
    ax.set_ylabel("density over the runs")
    ax.legend(loc="upper right")
    return figure


def power_figure(
    draws: Sequence[int],
    observed: Mapping[str, Sequence[float]],
    computed: Mapping[str, Sequence[float]],
    computed_at: Sequence[int],
) -> Figure:
    """How often a test rejects, against the number of draws: in an experiment, and as computed, at `computed_at`."""
    figure, (ax,) = new_figure(8, 3.9)
    for (name, rates), colour, marker in zip(observed.items(), (RED, BLUE, GREEN), "os^", strict=False):
        ax.plot(draws, rates, color=colour, marker=marker, linestyle="none", markersize=8, label=f"{name}: experiment")
        ax.plot(computed_at, computed[name], color=colour, linestyle="--", marker="", label=f"{name}: computed")
    ax.axhline(0.99, color=BLACK, linewidth=1, linestyle=":")
    ax.annotate("99%", (draws[0], 0.99), textcoords="offset points", xytext=(2, -13))
    ax.set_xscale("log")
    ax.set_ylim(0, 1.05)
    ax.set_xlabel("draws")
    ax.set_ylabel("share of runs in which the test rejects")
    ax.legend(loc="center left")
    return figure
