"""Token-wise speculative sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_ref.interfaces import Proposal, Verdict
from specdec_ref.sampling import RandomSource


def acceptance_probability(p_x: float, q_x: float) -> float:
    """min(1, p(x) / q(x)) for a drafted token x. Raises ValueError for q(x) = 0: such a token is never drawn."""
    if q_x <= 0:
        raise ValueError("a drafted token has q(x) = 0: the drafter does not report the distribution it drew from")
    return min(1.0, p_x / q_x)


def expected_acceptance(p: Tensor, q: Tensor) -> float:
    """beta = sum_x min(p(x), q(x)) = 1 - TV(p, q), the probability that a draft is kept. `p` and `q` are `[vocab]`."""
    return torch.minimum(p, q).sum().item()


def residual_distribution(p: Tensor, q: Tensor) -> Tensor:
    """p'(x) = max(0, p(x) - q(x)), normalised: the distribution of the token after a rejection, `[vocab]`.

    In real arithmetic it is nonzero whenever a rejection is possible. If rounding makes it zero (p and q equal to the
    last digit), p is returned, the correct limit for p = q.
    """
    residual = (p - q).clamp(min=0)
    mass = residual.sum()
    return residual / mass if mass > 0 else p


def verify_tokenwise(proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
    """Keep the longest accepted prefix, then one token from the target.

    p: `[g + 1, vocab]`; its row i - 1 is the paper's p_i, the target's distribution after the first i - 1 drafted
        tokens.

    1. For i = 1..g accept x_i with probability min(1, p_i(x_i) / q_i(x_i)).
    2. At the first rejection draw the correction from the residual of that position, and stop.
    3. If all were accepted, draw a bonus token from p_{g+1}.

    A deterministic draft has q_i(x_i) = 1: it is kept with probability p_i(x_i), and the correction
    comes from p_i without x_i. Every emitted token then follows the target's distribution exactly (appendix A.1 of
    the paper).
    """
    for i, x in enumerate(proposal.tokens):
        if not source.bernoulli(acceptance_probability(p[i, x].item(), proposal.probability(i, like=p))):
            q_i = proposal.distribution(i, like=p[i])
            return Verdict(i, source.categorical(residual_distribution(p[i], q_i)), "corrected")
    return Verdict(len(proposal.tokens), source.categorical(p[len(proposal.tokens)]), "bonus")
