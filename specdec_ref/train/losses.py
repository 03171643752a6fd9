"""What a draft is trained for: to be accepted.

With alpha = sum min(p, q), the probability that a token drawn from q is kept, the aim is a small -log alpha. Its
gradient is weak where p and q hardly overlap, so training begins with KL(p || q), which pulls everywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor


def acceptance(p: Tensor, q: Tensor) -> Tensor:
    """alpha = sum_x min(p(x), q(x)) of distributions `[..., vocab]`: `[...]` (Leviathan et al. 2023, theorem 3.5)."""
    return torch.minimum(p, q).sum(-1)


def draft_loss(logits: Tensor, p: Tensor, blend: float) -> Tensor:
    """(1 - blend) KL(p || q) + blend (-log alpha), `[...]`, for q = softmax of `logits` `[..., vocab]`."""
    log_q = logits.float().log_softmax(-1)
    loss = torch.zeros_like(log_q[..., 0])
    if blend < 1:
        log_p = p.clamp(min=1e-30).log()  # torch.xlogy is several times slower
        loss = loss + (1 - blend) * (p * (log_p - log_q)).sum(-1)
    if blend > 0:
        loss = loss - blend * acceptance(p, log_q.exp()).clamp(min=1e-9).log()
    return loss


def blend_at(progress: float, start: float, end: float) -> float:
    """How much of the loss is -log alpha after a share `progress` of the training: 0 up to `start`, 1 from `end` on."""
    return min(1.0, max(0.0, (progress - start) / max(end - start, 1e-9)))


def place_weights(n_places: int, decay: float) -> Tensor:
    """exp(-(k - 1) / decay) for places k = 1..n: a late place counts only where all before it are right."""
    return torch.exp(-torch.arange(n_places) / decay)
