"""The speedup of speculative decoding: tokens per round, what they cost, the best gamma and the break-even points.

alpha is the probability that a *tested* draft token is accepted, the same at each position and independent
(Leviathan et al. 2023, arXiv 2211.17192). Costs are in plain target steps: c for one draft step, v(gamma)
for the target pass over gamma + 1 tokens. v = 1 is the paper's case of a free verification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

Curve = Callable[[int], float]
VerifyCost = float | Curve


def _check(alpha: float, gamma: int) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is a probability, got {alpha}")
    if gamma < 0:
        raise ValueError(f"gamma must not be negative, got {gamma}")


def _verify_cost(v: VerifyCost, gamma: int) -> float:
    cost = v(gamma) if callable(v) else v
    if cost <= 0:
        raise ValueError(f"a verify pass costs more than nothing, got v({gamma}) = {cost}")
    return cost


def mean_accepted(alpha: float, gamma: int) -> float:
    """E[accepted per round] = alpha + ... + alpha^gamma: the acceptance length without the extra token."""
    _check(alpha, gamma)
    return sum(alpha**i for i in range(1, gamma + 1))


def expected_tokens(alpha: float, gamma: int) -> float:
    """E[tokens per round] = (1 - alpha^(gamma+1)) / (1 - alpha): accepted ones and one more (eq. 1)."""
    return 1 + mean_accepted(alpha, gamma)


def accepted_per_drafted(alpha: float, gamma: int) -> float:
    """r = E[accepted] / gamma, what many dashboards call the acceptance rate: at most alpha.

    Tokens after a rejection were drafted and never tested. With gamma = 0 nothing is drafted and r is 0.
    """
    return mean_accepted(alpha, gamma) / gamma if gamma else 0.0


def speedup(alpha: float, gamma: int, c: float, v: VerifyCost = 1.0) -> float:
    """S = E[tokens] / (gamma c + v(gamma)): plain time per token over speculative time per token (theorem 3.8).

    `v` is a number, or a function of gamma such as `verify_curve(...)` or `measured_curve(...)`.
    """
    if c < 0:
        raise ValueError(f"the draft's cost c must not be negative, got {c}")
    return expected_tokens(alpha, gamma) / (gamma * c + _verify_cost(v, gamma))


def best_gamma(speedup_at: Curve, max_gamma: int = 64) -> tuple[int, float]:
    """(gamma, speedup) of the gamma from 1 to `max_gamma` that gains most; (0, 1.0), no speculation, where none gains.

    speedup_at: gamma -> speedup, such as `lambda gamma: speedup(alpha, gamma, c, v)`.
    """
    best = (0, 1.0)
    for gamma in range(1, max_gamma + 1):
        gain = speedup_at(gamma)
        if gain > best[1]:
            best = (gamma, gain)
    return best


def break_even_alpha(gamma: int, c: float, v: VerifyCost = 1.0) -> float | None:
    """The least alpha at which gamma drafted tokens per round pay for themselves; None if no alpha does."""
    _check(1.0, gamma)
    cost = gamma * c + _verify_cost(v, gamma)
    if cost > expected_tokens(1.0, gamma):
        return None
    return _bisect(lambda alpha: expected_tokens(alpha, gamma) >= cost, 0.0, 1.0)


def break_even_accepted_per_drafted(gamma: int, c: float, v: VerifyCost = 1.0) -> float | None:
    """The least accepted/drafted that pays: c + (v - 1) / gamma, so c itself where verification is free."""
    if gamma < 1:
        raise ValueError(f"gamma must be at least 1, got {gamma}")
    r = max(0.0, c + (_verify_cost(v, gamma) - 1) / gamma)
    return r if r <= 1 else None


def alpha_for_speedup(wanted: float, gamma: int, c: float, v: VerifyCost = 1.0) -> float | None:
    """The least alpha that gives a speedup of `wanted` at this gamma; None if none does."""
    _check(1.0, gamma)
    cost = wanted * (gamma * c + _verify_cost(v, gamma))
    if cost > expected_tokens(1.0, gamma):
        return None
    return _bisect(lambda alpha: expected_tokens(alpha, gamma) >= cost, 0.0, 1.0)


def time_ratio(seconds: Curve) -> Curve:
    """v(gamma) = T(gamma + 1) / T(1), where `seconds` gives T(n), the time of a target pass over n tokens."""
    one = seconds(1)
    return lambda gamma: seconds(gamma + 1) / one


def measured_curve(seconds: Mapping[int, float]) -> Curve:
    """v(gamma) = T(gamma + 1) / T(1) from the times T(n) of some passes, in any unit; linear between them.

    Raises ValueError without T(1), and for a gamma beyond the largest measured n: nothing is extrapolated.
    """
    if 1 not in seconds or min(seconds) < 1 or min(seconds.values()) <= 0:
        raise ValueError(f"the times of passes are {dict(seconds)}: give positive ones over n >= 1 tokens, n = 1 too")
    points = sorted(seconds.items())
    times = [points[0][1]]  # of 1, 2, 3, ... tokens
    for (n0, t0), (n1, t1) in pairwise(points):
        times += [t0 + (n - n0) / (n1 - n0) * (t1 - t0) for n in range(n0 + 1, n1 + 1)]

    def interpolated(n: int) -> float:
        if not 1 <= n <= len(times):
            raise ValueError(f"gamma {n - 1} needs T({n}), and T was measured for n from 1 to {len(times)}")
        return times[n - 1]

    return time_ratio(interpolated)


def batch_crossover(speedup_at: Curve, max_batch: int = 1024) -> int | None:
    """The first batch size from 1 to `max_batch` at which speculation does not gain: speedup_at(batch) <= 1.

    None if it gains at all of them. The speedup need not fall steadily with the batch: with long contexts the
    reads of the caches can make it rise again (arXiv 2408.11049), so every batch is tried in turn.
    """
    return next((batch for batch in range(1, max_batch + 1) if speedup_at(batch) <= 1), None)


def _bisect(reached: Callable[[float], bool], low: float, high: float) -> float:
    """The least x in [low, high] with `reached(x)`, for a condition that once true stays true."""
    if reached(low):
        return low
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
