"""The learner's machine: the roof that was measured, a layer and a decode step under it, words for every outcome."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence

import psutil
from matplotlib.figure import Figure

from specdec_course.pictures.plots import BLUE, GREEN, RED, new_figure
from specdec_course.pictures.roofline import Point, draw_roofs
from specdec_course.progress_line import progress
from specdec_ref.arithmetic import Accelerator, attainable, forward_work, linear_intensity, time_ratio
from specdec_ref.measure import SHORT_NAMES, DecodeTimes, Machine, WeightStream, shape_of
from specdec_ref.models.llama import Llama


def others_text(seconds: float = 0.5) -> str:
    """How busy other programs keep this machine: its processors are watched for `seconds`, in which we do nothing."""
    busy = psutil.cpu_percent(seconds)
    if busy < 10:
        return f"Other programs use {busy:.0f}% of the processors now: a good time to measure."
    return f"Other programs use {busy:.0f}% of the processors now: what you measure will be too slow."


def machine_rows(machine: Machine) -> list[tuple[str, ...]]:
    """Of each measured setting, as text: format, threads, GB/s, GFLOP/s, ridge, and how far the rounds differ."""
    return [
        (
            r.dtype,
            str(r.threads),
            f"{r.bandwidth / 1e9:,.1f}",
            f"{r.matrix_rate / 1e9:,.0f}",
            f"{r.ridge:,.0f}",
            f"{100 * min(r.bandwidths) / r.bandwidth:.0f} to 100%",
        )
        for r in machine.rates
    ]


def layer_points(stream: WeightStream, n_tokens: Sequence[int], repeats: int = 4) -> list[Point]:
    """One linear layer over n tokens, measured: the best of `repeats` rounds, its weights never in a CPU cache."""
    rows, width = stream.rows, stream.width
    best = dict.fromkeys(n_tokens, float("inf"))
    for _ in progress(range(repeats), "rounds"):
        for n in n_tokens:
            best[n] = min(best[n], stream.seconds(n, matrices=4))
    return [
        Point(
            f"{n} token{'s' * (n > 1)}",
            linear_intensity(n, width, rows, stream.dtype.itemsize),
            2 * n * rows * width / seconds,
        )
        for n, seconds in best.items()
    ]


def roof_of(machine: Machine, threads: int, points: Sequence[Point], dtype: str) -> Accelerator:
    """The roof over all that was seen: the fastest reading of any format and any point, the fastest arithmetic too.

    A machine has no datasheet that a program could read, so its roof is the best of what was measured: the true one
    may lie higher, never lower, and no point lies above it.
    """
    plain = machine.accelerator(None, threads)
    seen = [(p.rate, p.rate / p.intensity) for p in points if p.rate is not None]
    rate = max([plain.rate(dtype), *(r for r, _ in seen)])
    bandwidth = max([plain.bandwidth, *(b for _, b in seen)])
    return dataclasses.replace(plain, bandwidth=bandwidth, rates=dict(plain.rates) | {dtype: rate})


def machine_figure(roof: Accelerator, points: Sequence[Point], dtype: str, other: Accelerator) -> Figure:
    """A measured layer under this machine's roof, in GFLOP/s, and beside it that roof under the one of another chip."""
    figure, (near, far) = new_figure(11, 4.2, 2)
    draw_roofs(near, [roof], dtype, [p.intensity for p in points], (1e9, "GFLOP/s"))
    rates = [(p.rate or 0) / 1e9 for p in points]
    near.plot([p.intensity for p in points], rates, color=RED, marker="o", ls="-", lw=1)
    for point, rate in zip(points, rates, strict=True):
        n = point.label.split()[0]
        near.annotate(n, (point.intensity, rate), (6, -13), textcoords="offset points", fontsize=10, color=RED)
    near.set_title("one layer, measured; numbers: tokens in the pass", fontsize=11)
    draw_roofs(far, [other], None, [1.0], bottom=attainable(0.5, roof, dtype) / 2e12)
    x = [0.5, roof.ridge(dtype), far.get_xlim()[1]]
    far.plot(x, [attainable(i, roof, dtype) / 1e12 for i in x], color=RED, ls="--", marker="", lw=2)
    place = (x[2], roof.rate(dtype) / 1e12)
    far.annotate("this machine", place, (-4, 6), textcoords="offset points", color=RED, ha="right")
    far.set_title(f"the same roof, and that of {other.name}", fontsize=11)
    return figure


def layer_words(points: Sequence[Point], roof: Accelerator, dtype: str) -> str:
    """What the measured layer shows about the roof, in words for every outcome."""
    first, last = points[0], points[-1]
    assert first.rate is not None and last.rate is not None
    share = first.rate / attainable(first.intensity, roof, dtype)
    words = f"{first.label}: {100 * share:.0f}% of the fastest reading that we saw, {roof.bandwidth / 1e9:.1f} GB/s. "
    words += (
        "Memory sets its time.\n"
        if share > 0.9
        else "Its kernel or a busy machine sets its time, not the memory.\n"
        "So a plain step is slower than it must be, and that makes further tokens look cheaper than they are.\n"
    )
    gain, top = last.rate / first.rate, last.rate / roof.rate(dtype)
    words += f"{last.label}: {gain:.1f} times as many FLOP/s, {100 * top:.0f}% of the flat roof.\n"
    if gain < 1.5:
        return words + "The layer does not climb: it is compute-bound from the start, or the run was disturbed."
    return words + "The layer climbs the slope" + (" up to the roof." if top > 0.8 else ", and stays below the roof.")


def decode_rows(times: DecodeTimes) -> list[tuple[str, str]]:
    """A decode step taken apart, as text: bytes, bandwidth, overhead, their sum as the prediction, the measurement."""
    bandwidth = statistics.median(times.bandwidths)
    reading, overhead = (round(1e3 * s, 1) for s in (times.work.bytes / bandwidth, statistics.median(times.overheads)))
    return [
        ("bytes to read (by arithmetic)", f"{times.work.bytes / 1e6:,.1f} MB"),
        ("bandwidth for such weights (measured)", f"{bandwidth / 1e9:,.1f} GB/s"),
        ("so reading takes", f"{reading:,.1f} ms"),
        ("the framework's overhead (measured)", f"{overhead:,.1f} ms"),
        ("predicted step: the sum", f"{reading + overhead:,.1f} ms"),
        ("measured step", f"{statistics.median(times.measured) * 1e3:,.1f} ms"),
    ]


def decode_verdict(times: DecodeTimes, tolerance: float = 0.3) -> str:
    """Whether the prediction holds within `tolerance`, in words for both outcomes."""
    allowed = f"{100 * tolerance:.0f}%"
    if times.within(tolerance):
        return f"Round by round, the prediction is {times}: within {allowed}. Reading and overhead explain the step."
    direction = "slower" if times.ratio < 1 else "faster"
    return (
        f"Round by round, the prediction is {times}: not within {allowed}. The step was {direction} than bytes, "
        "bandwidth and overhead explain. Look at how much the rounds differ; if the machine was busy, run it again."
    )


def predicted_pass_cost(
    model: Llama, times: DecodeTimes, matrix_rate: float, n_tokens: Iterable[int], context: int = 64
) -> dict[int, float]:
    """T(n) / T(1) on the measured roofline, the framework's overhead included; `matrix_rate` in FLOP/s."""
    name = SHORT_NAMES[model.dtype]
    bandwidth, overhead = statistics.median(times.bandwidths), statistics.median(times.overheads)

    def seconds(n: int) -> float:
        work = forward_work(shape_of(model), n, context, weights=name, kv=name)
        return max(work.bytes / bandwidth, work.flops / matrix_rate) + overhead

    v = time_ratio(seconds)
    return {n: v(n - 1) for n in n_tokens}


def cost_ranges(seconds: Mapping[int, Sequence[float]]) -> dict[int, tuple[float, float, float]]:
    """(Lowest, median, highest) time of a pass over n tokens, in median passes over one, from repeated measurements."""
    one = statistics.median(seconds[1])
    return {n: (min(all_) / one, statistics.median(all_) / one, max(all_) / one) for n, all_ in seconds.items()}


def predicted_cost_figure(ranges: Mapping[int, tuple[float, float, float]], predicted: Mapping[int, float]) -> Figure:
    """The measured cost of a pass over n tokens with the range of its repeats, beside the roofline's prediction."""
    figure, (ax,) = new_figure(7.5, 3.8)
    n = sorted(ranges)
    low, middle, high = zip(*(ranges[i] for i in n), strict=True)
    top = 1.25 * max(*high, *predicted.values(), 2.0)
    ax.plot(n, n, color=RED, marker="s", ls="--", label="n passes over one token each")
    ax.plot(n, [predicted[i] for i in n], color=GREEN, marker="^", ls="-.", label="one pass, predicted by the roofline")
    spread = [[m - a for m, a in zip(middle, low, strict=True)], [b - m for m, b in zip(middle, high, strict=True)]]
    ax.errorbar(
        n, middle, spread, color=BLUE, marker="o", ls="-", capsize=4, label="one pass, measured, with its range"
    )
    ax.set(xlabel="tokens n in the pass", ylabel="time, in passes over one token", ylim=(0, top))
    ax.set_xticks(n)
    ax.legend(fontsize=10)
    return figure


def cost_words(ranges: Mapping[int, tuple[float, float, float]], predicted: Mapping[int, float]) -> str:
    """Where measurement and prediction differ most, and what passes cheaper than one over one token mean."""
    middle = {n: m for n, (_, m, _) in ranges.items()}
    worst = max(middle, key=lambda n: abs(middle[n] / predicted[n] - 1))
    most = max(middle)
    words = [f"Largest gap: n = {worst}, measured {middle[worst]:.2f}, predicted {predicted[worst]:.2f}."]
    if cheap := [n for n in middle if middle[n] < 0.97]:
        apart = all(ranges[n][2] < ranges[1][0] for n in cheap)
        words.append(
            f"A pass over {' or '.join(map(str, cheap))} tokens took less than one over a single token, which no "
            "roofline allows"
            + (
                ": the kernel for one token is the slower one, so the unit of this figure is too large."
                if apart
                else "; but the ranges overlap, so it may be noise."
            )
        )
    room = "speculation has room here." if middle[most] < most / 2 else "little room here: drafts must be very good."
    words.append(f"{most} tokens in one pass cost {middle[most]:.1f} plain passes: {room}")
    return "\n".join(words)
