"""Leniency (Leviathan et al. 2023, appendix A.5). LOSSY: it changes the output's distribution, by a known amount.

q is multiplied by l before it is compared with p, so a draft may be up to 1/l times likelier than the target
would have it. With the residual unchanged, the emitted distribution of a position is off by a total variation of
exactly
the acceptance gained: sum min(q, p/l) - sum min(q, p).
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_ref.interfaces import Proposal, Verdict
from specdec_ref.sampling import RandomSource
from specdec_ref.verify.tokenwise import acceptance_probability, residual_distribution

LENIENCY = 0.5


def expected_acceptance(p: Tensor, q: Tensor, leniency: float = LENIENCY) -> float:
    """sum_x min(q(x), p(x) / l). `p` and `q` are `[vocab]`."""
    return torch.minimum(q, p / leniency).sum().item()


def verify_lossy_leniency(proposal: Proposal, p: Tensor, source: RandomSource, leniency: float = LENIENCY) -> Verdict:
    """Token-wise, but accept x_i with probability min(1, p_i(x_i) / (l q_i(x_i))). LOSSY for l < 1.

    p: `[g + 1, vocab]`; leniency: l in (0, 1], where 1 is the exact rule. For another value use
    `functools.partial(verify_lossy_leniency, leniency=...)`.
    """
    if not 0 < leniency <= 1:
        raise ValueError(f"leniency is {leniency}: give a number above 0 and up to 1, where 1 is exact")
    for i, x in enumerate(proposal.tokens):
        q_i = proposal.distribution(i, like=p[i])
        if not source.bernoulli(acceptance_probability(p[i, x].item(), leniency * q_i[x].item())):
            return Verdict(i, source.categorical(residual_distribution(p[i], q_i)), "corrected")
    return Verdict(len(proposal.tokens), source.categorical(p[len(proposal.tokens)]), "bonus")
