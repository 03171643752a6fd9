"""Sample and match: draw from the target as if there were no draft, and go on while the two agree.

Often called biased, and it is not: every token that it emits is the target's own draw. It only accepts less,
sum p q instead of sum min(p, q). Since q never enters, it is exact even for a drafter that reports a wrong
distribution.
"""

from __future__ import annotations

from torch import Tensor

from specdec_ref.interfaces import Proposal, Verdict
from specdec_ref.sampling import RandomSource


def expected_acceptance(p: Tensor, q: Tensor) -> float:
    """sum_x p(x) q(x): two independent draws are the same token. `p` and `q` are `[vocab]`."""
    return (p * q).sum().item()


def verify_match(proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
    """Draw y_i from p_i, i = 1, 2, ...; keep x_i while y_i = x_i, emit the first y_i that differs.

    p: `[g + 1, vocab]`. If all match, the bonus token is y_{g+1}.
    """
    for i, x in enumerate(proposal.tokens):
        y = source.categorical(p[i])
        if y != x:
            return Verdict(i, y, "corrected")
    return Verdict(len(proposal.tokens), source.categorical(p[len(proposal.tokens)]), "bonus")
