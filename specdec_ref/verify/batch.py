"""The token-wise and the block rule for many rows at once, without a synchronisation with the host.

Randomness comes in as an argument: uniforms in [0, 1) drawn beforehand, u_keep `[B, g]` for the tests of each place and
u_draw `[B]` for the one token that is drawn. Given the same numbers, the plain rules give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdec_ref.interfaces import Proposal, Verdict
from specdec_ref.sampling import RandomSource

BatchRule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""tokens `[B, g]`, q `[B, g, vocab]`, p `[B, g + 1, vocab]`, u_keep `[B, g]`, u_draw `[B]` -> accepted, token `[B]`."""


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """Inverse transform, `weights` `[B, vocab]`, `u` `[B]`: first index whose share of the cumulative weight exceeds u.

    As `RandomSource.categorical` draws: the last share is exactly 1, and u below it.
    """
    cumulative = weights.to(torch.float64).cumsum(-1)
    return (cumulative / cumulative[:, -1:] <= u.unsqueeze(-1)).sum(-1)


def verify_tokenwise_batch(
    tokens: Tensor, q: Tensor, p: Tensor, u_keep: Tensor, u_draw: Tensor
) -> tuple[Tensor, Tensor]:
    """`verify_tokenwise` for B rows: (accepted `[B]`, token `[B]`).

    tokens `[B, g]`, g >= 1; q `[B, g, vocab]`, the distributions they were drawn from; p `[B, g + 1, vocab]`.
    """
    p_x, q_x = _of_drafts(p, tokens), _of_drafts(q, tokens)
    kept = u_keep < (p_x / q_x).clamp(max=1)
    accepted = kept.long().cumprod(-1).sum(-1)
    return accepted, _last_token(accepted, q, p, torch.ones_like(p[:, :, 0]), u_draw)


def verify_block_batch(tokens: Tensor, q: Tensor, p: Tensor, u_keep: Tensor, u_draw: Tensor) -> tuple[Tensor, Tensor]:
    """`verify_block` for B rows: (accepted `[B]`, token `[B]`). Shapes as in `verify_tokenwise_batch`.

    u_keep[:, i - 1] decides whether to keep the first i drafts; the largest i that passes counts.
    """
    g = tokens.shape[1]
    ratio = _of_drafts(p, tokens) / _of_drafts(q, tokens)
    rho = [p.new_ones(len(p), dtype=torch.float64)]
    for i in range(g):
        rho.append((rho[-1] * ratio[:, i]).clamp(max=1))
    rhos = torch.stack(rho, 1)
    mass = (rhos[:, 1:g, None].to(p.dtype) * p[:, 1:g] - q[:, 1:]).clamp(min=0).sum(-1).to(torch.float64)
    h = torch.where(rhos[:, 1:g] >= 1, 1.0, mass / (mass + 1 - rhos[:, 1:g]))
    passed = u_keep < torch.cat([h, rhos[:, g:]], 1)
    accepted = torch.where(passed, torch.arange(1, g + 1, device=p.device), 0).amax(-1)
    return accepted, _last_token(accepted, q, p, rhos, u_draw)


def _of_drafts(distributions: Tensor, tokens: Tensor) -> Tensor:
    """The probability of each drafted token, `[B, g]` in float64, as the plain rules compute with it."""
    return distributions[:, : tokens.shape[1]].gather(-1, tokens.unsqueeze(-1)).squeeze(-1).to(torch.float64)


def _last_token(accepted: Tensor, q: Tensor, p: Tensor, rho: Tensor, u_draw: Tensor) -> Tensor:
    """The bonus from p, or the correction from max(0, rho p - q), of the row after the accepted prefix."""
    rows = torch.arange(len(p), device=p.device)
    p_next = p[rows, accepted]
    # After the last draft there is no q: the bonus.
    q_next = torch.cat([q, torch.zeros_like(q[:, :1])], 1)[rows, accepted]
    residual = (rho[rows, accepted].unsqueeze(-1).to(p.dtype) * p_next - q_next).clamp(min=0)
    some = residual.sum(-1, keepdim=True) > 0
    return draw(torch.where(some, residual, p_next), u_draw)


def verify_tokenwise_batched(proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
    """`verify_tokenwise` as a device does it: g + 1 uniforms drawn beforehand, one batch of one row, one look at it.

    p: `[g + 1, vocab]`.
    """
    return _of_one(verify_tokenwise_batch, proposal, p, source)


def verify_block_batched(proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
    """`verify_block` as a device does it; see `verify_tokenwise_batched`."""
    return _of_one(verify_block_batch, proposal, p, source)


def _of_one(rule: BatchRule, proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
    g = len(proposal.tokens)
    u = source.uniforms(g + 1).to(p.device)
    if not g:
        return Verdict(0, int(draw(p[:1], u)), "bonus")
    q = torch.stack([proposal.distribution(i, like=p[i]) for i in range(g)])
    tokens = torch.tensor(proposal.tokens, device=p.device)
    accepted, token = torch.cat(rule(tokens[None], q[None], p[None], u[None, :g], u[g:])).tolist()
    return Verdict(accepted, token, "bonus" if accepted == g else "corrected")
