"""The blanks of lesson 01: the roof, the intensity of a layer, and the time of a pass made of several kernels."""

from __future__ import annotations

import random
from collections.abc import Sequence

from specdec_course.checks import Blank
from specdec_course.checks.mistakes import Case, Judge, judged, mistakes


def attainable(intensity: float, rate: float, bandwidth: float) -> float:
    """FLOP/s that work of this intensity can reach at most, on a chip of this rate (FLOP/s) and bandwidth (bytes/s)."""
    return min(rate, intensity * bandwidth)


def layer_intensity(n_tokens: int, width: int) -> float:
    """FLOP/byte of n tokens through a layer of width x width weights, all in 16 bits.

    The pass moves the weights once, and for each token `width` numbers in and `width` numbers out.
    """
    flop = 2 * n_tokens * width**2
    nbytes = 2 * (width**2 + 2 * n_tokens * width)
    return flop / nbytes


def pass_seconds(kernels: list[tuple[float, float]], rate: float, bandwidth: float) -> float:
    """Seconds that a pass takes at least: its kernels, each (FLOP, bytes), run one after the other."""
    return sum(max(flop / rate, nbytes / bandwidth) for flop, nbytes in kernels)


_ROOF = Judge(
    "The attainable FLOP/s",
    attainable,
    mistakes(
        lambda function: function,
        {
            "the larger of the two limits; both hold, so it is the smaller one.": (
                lambda intensity, rate, bandwidth: max(rate, intensity * bandwidth)
            ),
            "nothing computes faster than the chip's rate.": lambda intensity, rate, bandwidth: intensity * bandwidth,
            "work that has to wait for its bytes does not reach the rate.": lambda intensity, rate, bandwidth: rate,
            "FLOP/byte times bytes/s is FLOP/s: multiply.": (
                lambda intensity, rate, bandwidth: min(rate, bandwidth / intensity)
            ),
            "a share of the rate; FLOP/s are wanted.": (
                lambda intensity, rate, bandwidth: min(1.0, intensity * bandwidth / rate)
            ),
            "that is for the H100; use rate and bandwidth as given.": (
                lambda intensity, rate, bandwidth: min(989e12, intensity * 3.35e12)
            ),
        },
    ),
)


def _on_a_chip(rng: random.Random, *times: float) -> list[Case]:
    """Work of `times` a ridge's intensity, on a chip that is nobody's."""
    rate, bandwidth = rng.randrange(50, 900) * 1e12, rng.randrange(30, 95) * 1e10
    return [(round(x * rate / bandwidth, 3), rate, bandwidth) for x in times]


_LAYER = Judge(
    "The intensity",
    layer_intensity,
    mistakes(
        lambda formula: lambda n, d: formula(n, d),
        {
            "a multiplication and an addition are 2 FLOP.": lambda n, d: n * d / (2 * (d + 2 * n)),
            "a number in 16 bits takes 2 bytes.": lambda n, d: 2 * n * d / (d + 2 * n),
            "that leaves out what goes in and comes out: 2 numbers per token and unit of width.": lambda n, d: n,
            "numbers go in *and* come out.": lambda n, d: n * d / (d + n),
            "the weights are read once, not once for each token.": lambda n, d: d / (d + 2),
            "the weights are read once for all tokens, and move no bytes again.": lambda n, d: n * d / (n * d + 2 * n),
            "each token does 2 FLOP with each weight: n times as many.": lambda n, d: d / (d + 2 * n),
            "upside down: FLOP divided by bytes.": lambda n, d: (d + 2 * n) / (n * d),
        },
    ),
)

_KERNELS = Judge(
    "The time of the pass",
    pass_seconds,
    mistakes(
        lambda formula: lambda kernels, rate, bandwidth: formula([(f / rate, b / bandwidth) for f, b in kernels]),
        {
            "that adds up all FLOP and all bytes first: then one kernel's waiting hides another one's arithmetic. "
            "They run one after the other.": lambda times: max(sum(c for c, _ in times), sum(m for _, m in times)),
            "memory and arithmetic of *one* kernel overlap: the larger one counts, not the sum.": (
                lambda times: sum(c + m for c, m in times)
            ),
            "the kernels run one after the other, not side by side: add their times.": (
                lambda times: max(max(c, m) for c, m in times)
            ),
            "only the bytes count there; some kernels wait for arithmetic.": lambda times: sum(m for _, m in times),
            "only the FLOP count there; some kernels wait for memory.": lambda times: sum(c for c, _ in times),
            "the slower of the two counts, not the faster.": lambda times: sum(min(c, m) for c, m in times),
        },
    ),
)


def _kernels(rng: random.Random, *bounds: str) -> list[Case]:
    """Kernels that wait for what `bounds` names, on a chip that is nobody's."""
    rate, bandwidth = float(rng.randrange(50, 900) * 10**12), float(rng.randrange(300, 950) * 10**9)
    kernels = []
    for bound in bounds:
        moved = rng.randrange(1, 200) * 1e9
        times = rng.uniform(0.2, 0.7) if bound == "memory" else rng.uniform(1.5, 4)
        kernels.append((round(moved / bandwidth * rate * times), moved))
    return [(kernels, rate, bandwidth)]


def _layers(rng: random.Random, tokens: Sequence[int]) -> list[Case]:
    return [(n, 128 * rng.randrange(16, 100)) for n in tokens]


BLANKS = {
    "roof": Blank(
        judged(
            "roof",
            _ROOF,
            on_both_sides_of_the_ridge=lambda rng: _on_a_chip(rng, 0.3, 1.5, 0.01, 20),
        ),
        attainable,
    ),
    "intensity": Blank(
        judged(
            "intensity",
            _LAYER,
            one_token=lambda rng: _layers(rng, [1]),
            several_tokens=lambda rng: _layers(rng, [rng.randrange(2, 20), rng.randrange(100, 3000)]),
        ),
        layer_intensity,
    ),
    "pass time": Blank(
        judged(
            "pass time",
            _KERNELS,
            one_kernel=lambda rng: _kernels(rng, "memory") + _kernels(rng, "compute"),
            of_both_kinds=lambda rng: _kernels(rng, "memory", "compute") + _kernels(rng, "compute", "memory"),
            many=lambda rng: _kernels(rng, "compute", "memory", "memory", "compute", "memory"),
        ),
        pass_seconds,
    ),
}
