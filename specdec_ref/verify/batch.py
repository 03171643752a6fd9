"""The token-wise and the block rule for many rows at once, without a host synchronisation: for devices, and for tests
with a million draws.

Chance comes in as an argument: uniforms in [0, 1) drawn beforehand, u_keep `[B, g]` for the tests of each place and
u_draw `[B]` for the one token that is drawn. Fed with the same numbers, the plain rules give the same answer.
"""

from __future__ import annotations

import torch
from torch import Tensor


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """Inverse transform: `weights` `[B, vocab]`, `u` `[B]` -> first index whose cumulative weight exceeds u total."""
    cumulative = weights.to(torch.float64).cumsum(-1)
    beyond = (u.to(torch.float64) * cumulative[:, -1]).unsqueeze(-1)
    index = (cumulative <= beyond).sum(-1)
    # u * total may round up to the total: then the last index with any mass.
    places = torch.arange(weights.shape[-1], device=weights.device)
    last = torch.where(weights > 0, places, -1).amax(-1)
    return torch.minimum(index, last)


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
    rho = [torch.ones_like(u_draw, dtype=torch.float64)]
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
    """The bonus from p, or the correction from max(0, rho p - q), of the row behind the accepted prefix."""
    rows = torch.arange(len(p), device=p.device)
    p_next = p[rows, accepted]
    q_next = torch.cat([q, torch.zeros_like(q[:, :1])], 1)[rows, accepted]  # behind the last draft: no q, so the bonus
    residual = (rho[rows, accepted].unsqueeze(-1).to(p.dtype) * p_next - q_next).clamp(min=0)
    some = residual.sum(-1, keepdim=True) > 0
    return draw(torch.where(some, residual, p_next), u_draw)
