"""The source of randomness: every random choice of the package goes through it."""

from __future__ import annotations

import hashlib
import math
import random

import torch
from torch import Tensor


class RandomSource:
    """The only source of randomness: one seeded generator, and the three questions that are put to it.

    `proof` replaces it by a source that visits every branch, so the production loop itself can be enumerated.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._generator = random.Random(seed)

    def bernoulli(self, p: float) -> bool:
        """True with probability `p`: iff u < p for u uniform in [0, 1). p = 0 is never true, p >= 1 always."""
        return self._generator.random() < p

    def categorical(self, probs: Tensor) -> int:
        """An index drawn from `probs` `[vocab]`; never one of probability 0.

        Inverse transform: the first index whose share of the cumulative weight exceeds u, so weights need not sum to
        exactly one.
        Raises ValueError where `probs` has no positive, finite mass.
        """
        cumulative = probs.to(torch.float64).cumsum(-1)
        total = cumulative[-1].item()
        if not (total > 0 and math.isfinite(total)):
            raise ValueError(
                f"cannot draw from probabilities that sum to {total}: a sum of 0 means that every token is forbidden, "
                "so look at bad_words, logit_bias, min_new_tokens and processors"
            )
        # The last share is exactly 1, and u is below it: no index beyond the last one with any mass.
        return int(torch.searchsorted(cumulative / total, self._generator.random(), right=True))

    def uniforms(self, n: int) -> Tensor:
        """`n` independent uniforms in [0, 1), float64 `[n]`: drawn beforehand for a rule that runs on a device."""
        return torch.tensor([self._generator.random() for _ in range(n)], dtype=torch.float64)


def sample_seed(seed: int | None, i: int) -> int | None:
    """The seed of sample i: `seed` itself for the first, independent ones after it; None stays None."""
    if seed is None or i == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{i}".encode()).digest()[:8], "big")
