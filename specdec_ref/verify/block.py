"""Block verification (Sun et al. 2024, arXiv 2403.10444, algorithm 2): judge the block as one.

The token-wise rule forgets that an earlier draft was *more* likely under the target than under the draft. Here
rho carries the ratio of the whole prefix, and a prefix is kept with probability rho_i, never less than the
token-wise product of min(1, p/q): so never fewer tokens in expectation, for the same passes.

The next round needs no memory of this one: the kept tokens, continued by the target, follow the target's joint
distribution (theorem 1). The paper's *greedy* block verification, another algorithm, would need one.
"""

from __future__ import annotations

from torch import Tensor

from specdec_ref.interfaces import Proposal, Verdict
from specdec_ref.sampling import RandomSource
from specdec_ref.verify.tokenwise import residual_distribution


def expected_accepted(p: Tensor, q: Tensor, gamma: int) -> float:
    """E[accepted per round] = sum_{i=1..gamma} E[rho_i] where every position has the distributions p and q, `[vocab]`.

    The token-wise rule has sum_i (sum_x min(p, q))^i. Exact: the distribution of rho is carried along, not sampled.
    """
    ratio = {x: p[x].item() / q[x].item() for x in range(len(q)) if q[x] > 0}
    distribution, total = {1.0: 1.0}, 0.0
    for _ in range(gamma):
        step: dict[float, float] = {}
        for rho, mass in distribution.items():
            for x, r in ratio.items():
                new = min(1.0, rho * r)
                step[new] = step.get(new, 0.0) + mass * q[x].item()
        distribution = step
        total += sum(rho * mass for rho, mass in distribution.items())
    return total


def prefix_ratios(proposal: Proposal, p: Tensor) -> list[float]:
    """rho_0 = 1 and rho_i = min(1, rho_{i-1} p_i(x_i) / q_i(x_i)) for i = 1..g; `p` is `[g + 1, vocab]`.

    Raises ValueError for a drafted token with q(x) = 0.
    """
    rho: list[float] = [1]
    for i, x in enumerate(proposal.tokens):
        q_x = proposal.probability(i, like=p)
        if q_x <= 0:
            raise ValueError("a drafted token has q(x) = 0: the drafter does not report the distribution it drew from")
        rho.append(min(1, rho[-1] * p[i, x].item() / q_x))
    return rho


def stop_probability(rho_i: float, p_next: Tensor, q_next: Tensor) -> float:
    """h_i = M_i / (M_i + 1 - rho_i), M_i = sum_x max(0, rho_i p_{i+1}(x) - q_{i+1}(x)), for i < g.

    The probability of keeping exactly i drafts, given that no longer prefix was kept; 1 where rho_i = 1. Distributions
    `[vocab]`.
    """
    if rho_i >= 1:
        return 1
    mass = (p_next * rho_i - q_next).clamp(min=0).sum().item()
    return mass / (mass + 1 - rho_i)


def verify_block(proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
    """Keep the longest prefix that passes, then one token from the target. `p` is `[g + 1, vocab]`.

    1. Ask for i = g, g-1, ..., 1 whether to keep x_1..x_i, with probability h_i (h_g = rho_g), up to the first yes.
    2. At i = g draw a bonus token from p_{g+1}.
    3. Else (i = 0 if none passed) draw the correction from max(0, rho_i p_{i+1} - q_{i+1}), normalised.
    """
    g = len(proposal.tokens)
    rho = prefix_ratios(proposal, p)
    if source.bernoulli(rho[g]):
        return Verdict(g, source.categorical(p[g]), "bonus")
    for i in range(g - 1, -1, -1):
        q_next = proposal.distribution(i, like=p[i])
        if i == 0 or source.bernoulli(stop_probability(rho[i], p[i], q_next)):
            break
    return Verdict(i, source.categorical(residual_distribution(p[i] * rho[i], q_next)), "corrected")
