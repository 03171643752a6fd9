"""Truncation: which tokens stay possible, by their own probability alone. No history, all rows at once.

Each function takes logits `[n, vocab]` and returns them with -inf where a token is cut; what is left keeps its
proportions. The meaning is that of transformers' warpers of the same names.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

HEAD = 1024  # tokens that top-p looks at first: a full sort of a large vocabulary costs as much as a model pass


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """The k most likely tokens; ties with the k-th stay (Fan et al. 2018, arXiv 1805.04833)."""
    if k >= logits.shape[-1]:
        return logits
    kth = logits.topk(k, -1).values[..., -1:]
    return torch.where(logits < kth, -math.inf, logits)


def keep_top_p(logits: Tensor, top_p: float) -> Tensor:
    """The smallest set of most likely tokens with mass `top_p` or more (Holtzman et al. 2020, arXiv 1904.09751).

    The token that crosses the border stays. Of equally likely tokens at the border the lowest ids stay.
    """
    p = logits.softmax(-1)
    vocab, k = p.shape[-1], HEAD
    while True:
        head = p.topk(min(k, vocab), -1).values
        before = head.cumsum(-1) - head
        if k >= vocab or bool((before[..., -1] >= top_p).all()):
            break
        k *= 8
    size = (before < top_p).sum(-1, keepdim=True).clamp(min=1)
    border = head.gather(-1, size - 1)
    keep = p >= border
    if (keep.sum(-1, keepdim=True) > size).any():
        tied = p == border
        room = size - (head > border).sum(-1, keepdim=True)
        keep &= ~tied | (tied.cumsum(-1) <= room)
    return torch.where(keep, logits, -math.inf)


def keep_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Tokens at least `min_p` times as likely as the most likely one (Nguyen et al. 2024, arXiv 2407.01082)."""
    return torch.where(logits < logits.amax(-1, keepdim=True) + math.log(min_p), -math.inf, logits)


def keep_typical(logits: Tensor, mass: float) -> Tensor:
    """The tokens whose surprise -log p lies nearest to the entropy, until they hold `mass`; ties with the last stay.

    Locally typical sampling (Meister et al. 2023, arXiv 2202.00666): the most likely token may be cut.
    """
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    entropy = -(p * log_p).nansum(-1, keepdim=True)
    distance = (-log_p - entropy).abs()
    ordered, index = distance.sort(-1)
    size = (p.gather(-1, index).cumsum(-1) < mass).sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
    return torch.where(distance > ordered.gather(-1, size), -math.inf, logits)
