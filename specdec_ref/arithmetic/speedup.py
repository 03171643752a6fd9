"""What speculation gains: tokens a round, their cost, and where the two cross.

alpha is the chance that a *tested* draft token is accepted, the same at each position and independent
(Leviathan et al. 2023, arXiv 2211.17192). Costs are in plain target steps: c for one draft step, v(gamma)
for the target pass over gamma + 1 tokens. v = 1 is the paper's case of a free verification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

VerifyCost = float | Callable[[int], float]


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
    """E[accepted a round] = alpha + ... + alpha^gamma: the acceptance length without the extra token."""
    _check(alpha, gamma)
    return sum(alpha**i for i in range(1, gamma + 1))


def expected_tokens(alpha: float, gamma: int) -> float:
    """E[tokens a round] = (1 - alpha^(gamma+1)) / (1 - alpha): accepted ones and one more (eq. 1)."""
    return 1 + mean_accepted(alpha, gamma)


def accepted_per_drafted(alpha: float, gamma: int) -> float:
    """r = E[accepted] / gamma, what many dashboards call the acceptance rate: at most alpha.

    Tokens after a rejection were drafted and never tested. With gamma = 0 nothing is drafted and r is 0.
    """
    return mean_accepted(alpha, gamma) / gamma if gamma else 0.0


def alpha_from_accepted_per_drafted(r: float, gamma: int) -> float:
    """The alpha that gives `r` accepted tokens a drafted one: the inverse of `accepted_per_drafted`."""
    if not 0 <= r <= 1 or gamma < 1:
        raise ValueError(f"need r in [0, 1] and gamma >= 1, got {r} and {gamma}")
    return _bisect(lambda alpha: accepted_per_drafted(alpha, gamma) >= r, 0.0, 1.0)


def speedup(alpha: float, gamma: int, c: float, v: VerifyCost = 1.0) -> float:
    """S = E[tokens] / (gamma c + v(gamma)): plain time a token over speculative time a token (theorem 3.8).

    `v` is a number, or a function of gamma such as `verify_curve(...)` or `measured_curve(...)`.
    """
    if c < 0:
        raise ValueError(f"the draft's cost c must not be negative, got {c}")
    return expected_tokens(alpha, gamma) / (gamma * c + _verify_cost(v, gamma))


def speedup_from_accepted(r: float, gamma: int, c: float, v: VerifyCost = 1.0) -> float:
    """S = (1 + gamma r) / (gamma c + v(gamma)) from accepted/drafted, whatever the distribution of acceptance is."""
    if not 0 <= r <= 1 or gamma < 0 or c < 0:
        raise ValueError(f"need r in [0, 1], gamma >= 0 and c >= 0, got {r}, {gamma} and {c}")
    return (1 + gamma * r) / (gamma * c + _verify_cost(v, gamma))


def best_gamma(alpha: float, c: float, v: VerifyCost = 1.0, max_gamma: int = 64) -> tuple[int, float]:
    """(gamma, speedup) of the best gamma up to `max_gamma`; (0, 1.0), no speculation, where none gains."""
    best = (0, 1.0)
    for gamma in range(1, max_gamma + 1):
        gain = speedup(alpha, gamma, c, v)
        if gain > best[1]:
            best = (gamma, gain)
    return best


def break_even_alpha(gamma: int, c: float, v: VerifyCost = 1.0) -> float | None:
    """The least alpha at which gamma drafted tokens a round pay for themselves; None if no alpha does."""
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


def measured_curve(seconds: Mapping[int, float]) -> Callable[[int], float]:
    """v(gamma) = T(gamma + 1) / T(1) from measured times T(n) of passes over n tokens, linear between them.

    Raises ValueError without T(1), and for a gamma beyond the last measured n: nothing is extrapolated.
    """
    if 1 not in seconds or min(seconds) < 1 or min(seconds.values()) <= 0:
        raise ValueError("need positive times of passes over n >= 1 tokens, T(1) among them")
    points = sorted(seconds.items())

    def v(gamma: int) -> float:
        n = gamma + 1
        for (n0, t0), (n1, t1) in zip(points, points[1:] + points[-1:], strict=True):
            if n0 <= n <= n1:
                share = (n - n0) / (n1 - n0) if n1 > n0 else 0.0
                return (t0 + share * (t1 - t0)) / seconds[1]
        raise ValueError(f"gamma {gamma} needs T({n}), and T was measured for n from 1 to {points[-1][0]}")

    return v


def linear_cost(per_token: float) -> Callable[[int], float]:
    """v(gamma) = 1 + gamma x `per_token`: a measured cost of a verified position, in plain target steps."""
    if per_token < 0:
        raise ValueError(f"a verified position cannot cost less than nothing, got {per_token}")
    return lambda gamma: 1 + gamma * per_token


def batch_crossover(speedup_at: Callable[[int], float], max_batch: int = 1024) -> int | None:
    """The first batch from 1 to `max_batch` at which speculation does not gain: speedup_at(batch) <= 1.

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
