"""Typical acceptance (Medusa, Cai et al. 2024, arXiv 2401.10774, section 3.3). LOSSY: it changes the output's
distribution.

It keeps a draft that the target finds plausible enough, whatever the draft's own distribution was. More is accepted,
and the draft's preferences leak into the text.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specdec_ref.interfaces import Proposal, Verdict
from specdec_ref.sampling import RandomSource

EPSILON = 0.09  # the defaults of Medusa's published code
DELTA = 0.3


def typical_threshold(p: Tensor, epsilon: float = EPSILON, delta: float = DELTA) -> float:
    """min(epsilon, delta e^-H(p)), H the entropy in nats of p `[vocab]`."""
    return min(epsilon, delta * math.exp(-torch.special.entr(p).sum().item()))


def expected_acceptance(p: Tensor, q: Tensor, epsilon: float = EPSILON, delta: float = DELTA) -> float:
    """Mass of q on the tokens with p(x) above the threshold. `p` and `q` are `[vocab]`."""
    return q[p > typical_threshold(p, epsilon, delta)].sum().item()


def verify_lossy_typical(
    proposal: Proposal, p: Tensor, source: RandomSource, epsilon: float = EPSILON, delta: float = DELTA
) -> Verdict:
    """Keep x_i while p_i(x_i) > min(epsilon, delta e^-H(p_i)), then one token drawn from the target. LOSSY.

    p: `[g + 1, vocab]`. For another threshold: `functools.partial(verify_lossy_typical, epsilon=...)`.
    """
    kept = 0
    while kept < len(proposal.tokens):
        if p[kept, proposal.tokens[kept]].item() <= typical_threshold(p[kept], epsilon, delta):
            break
        kept += 1
    token = source.categorical(p[kept])
    return Verdict(kept, token, "bonus" if kept == len(proposal.tokens) else "corrected")
