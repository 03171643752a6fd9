"""Attention masks: who sees whom in a tree, and masks as numbers to add to the scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def tree_mask(parents: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """`[n, n]`, True where token i may look at token j: itself and its ancestors.

    parents: each token's parent, an index below its own; -1 where it has none among these tokens.
    Source: Miao et al. 2024 (SpecInfer, arXiv 2305.09781), section 4.2.
    """
    mask = torch.eye(len(parents), dtype=torch.bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            mask[i] |= mask[parent]
    return mask.to(device)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What attention adds to its scores: 0 where the boolean `mask` is True, -inf elsewhere; shaped as `mask`.

    PyTorch's attention on a CPU would convert a boolean mask again in every layer.
    """
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))
