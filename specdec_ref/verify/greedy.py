"""Greedy verification: keep drafts while they are the target's argmax. Nothing random is involved."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specdec_ref.interfaces import Proposal, Verdict
from specdec_ref.sampling import RandomSource


def expected_acceptance(p: Tensor, q: Tensor) -> float:
    """q(x) at the target's argmax x. `p` (one-hot) and `q` are `[vocab]`."""
    return q[p.argmax()].item()


def verify_greedy(proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
    """Keep x_i while p_i(x_i) = 1, then emit the argmax. `p` is `[g + 1, vocab]`, one-hot rows.

    It gives what every lossless rule gives at temperature 0, and draws nothing.
    Raises ValueError where a row is not one-hot: above temperature 0 the argmax is not a sample.
    """
    kept = 0
    while kept < len(proposal.tokens) and p[kept, proposal.tokens[kept]].item() == 1:
        kept += 1
    token = int(p[kept].argmax())
    if p[kept, token].item() != 1:
        raise ValueError(
            f"rule 'greedy' needs one-hot rows, but the target gives its best token {p[kept, token].item():.3f}: "
            "use temperature=0, or rule='token'"
        )
    return Verdict(kept, token, "bonus" if kept == len(proposal.tokens) else "corrected")


def verify_argmax(proposal: Proposal, best: Sequence[int]) -> Verdict:
    """`verify_greedy` from the argmax of each row, `[g + 1]`, instead of one-hot distributions over the vocabulary."""
    kept = 0
    while kept < len(proposal.tokens) and proposal.tokens[kept] == best[kept]:
        kept += 1
    return Verdict(kept, best[kept], "bonus" if kept == len(proposal.tokens) else "corrected")
