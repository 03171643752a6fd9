"""Verification of a draft that nothing random went into: lookup, or a model's argmax.

Its distribution is one-hot, q(x) = 1, and the token-wise rule shrinks to: keep x with probability p(x), else draw
from p without x. Same distribution and same acceptance as `verify_tokenwise`, without a vocabulary of zeros for each
draft.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_ref.interfaces import Proposal, Verdict
from specdec_ref.sampling import RandomSource


def expected_acceptance(p: Tensor, q: Tensor) -> float:
    """p(x) for the one token x that q `[vocab]` holds."""
    return p[q.argmax()].item()


def verify_onehot(proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
    """Keep each drafted x_i with probability p_i(x_i); correct from p_i without x_i. `p` is `[g + 1, vocab]`.

    Raises ValueError for a proposal that reports a distribution of its own: taking a drawn token for a certain one
    makes the output wrong.
    """
    if proposal.probs is not None:
        raise ValueError(
            "rule 'onehot' is for one-hot drafts (lookup, argmax), and this proposal reports probs: use rule='token'"
        )
    for i, x in enumerate(proposal.tokens):
        if not source.bernoulli(p[i, x].item()):
            others = p[i].clone()
            others[x] = 0
            # Rounding may have left p(x) just below 1 and the others 0; then x is what p means.
            return Verdict(i, source.categorical(others if torch.any(others > 0) else p[i]), "corrected")
    return Verdict(len(proposal.tokens), source.categorical(p[len(proposal.tokens)]), "bonus")
