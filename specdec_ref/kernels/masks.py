"""Attention masks as numbers to add to the scores."""

from __future__ import annotations

import torch
from torch import Tensor


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What attention adds to its scores: 0 where the boolean `mask` is True, -inf elsewhere; shaped as `mask`.

    PyTorch's attention on a CPU would convert a boolean mask again in every layer.
    """
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))
