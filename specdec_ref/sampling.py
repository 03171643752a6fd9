"""From logits to the law a token is drawn from, and the one source of randomness.

Everything that changes a distribution (temperature, top-k, top-p) happens here, for target and draft alike: a
rule that compares p with q needs both *after* every filter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class RandomSource:
    """The only place where chance enters: two methods, one seeded generator.

    `proof` replaces it by a source that visits every branch, so the production loop itself can be enumerated.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._generator = random.Random(seed)

    def bernoulli(self, p: float) -> bool:
        """True with probability `p`: iff u < p for u uniform in [0, 1). p = 0 is never true, p >= 1 always."""
        return self._generator.random() < p

    def categorical(self, probs: Tensor) -> int:
        """An index drawn from `probs` `[vocab]`; never one of probability 0.

        Inverse transform: the first index whose cumulative probability exceeds u times the total, so weights
        need not sum to exactly one.
        Raises ValueError where `probs` has no positive, finite mass.
        """
        cumulative = probs.to(torch.float64).cumsum(-1)
        total = cumulative[-1].item()
        if not (total > 0 and math.isfinite(total)):
            raise ValueError(f"cannot draw from probabilities that sum to {total}")
        u = self._generator.random() * total
        index = int(torch.searchsorted(cumulative, u, right=True))
        if index == len(cumulative):  # u * total rounded up to the total: the last index with any mass
            index = int(probs.nonzero()[-1])
        return index


@dataclass(frozen=True)
class Sampling:
    """What the user asked for; `probs` turns logits into the law that tokens are drawn from.

    temperature: 0 is greedy (one-hot at the argmax, lowest index on a tie), otherwise logits / temperature.
    top_k: keep the k most likely tokens (ties with the k-th stay); None or 0 is off.
    top_p: keep the smallest set of most likely tokens with at least this mass, in (0, 1]; None is off.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        t = self.temperature
        if not (isinstance(t, (int, float)) and math.isfinite(t) and t >= 0):
            raise ValueError(f"temperature is {t!r}: give 0 for greedy decoding or a positive, finite number")
        if self.top_k is not None and (not isinstance(self.top_k, int) or self.top_k < 0):
            raise ValueError(f"top_k is {self.top_k!r}: give a positive whole number, or None to switch it off")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p!r}: give a number above 0 and up to 1, or None")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def probs(self, logits: Tensor, tokens: Sequence[int] = ()) -> Tensor:
        """The law of the next token for each row of `logits` `[n, vocab]`: `[n, vocab]`, rows sum to one.

        `tokens` is the sequence that the last row continues; row i continues all but its last n - 1 - i tokens.
        Raises ValueError where a row holds NaN or no finite maximum: a broken model must not become a token.
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        best, argmax = logits.max(-1)
        if not torch.isfinite(best).all():
            raise ValueError(
                f"the model returned logits with NaN or infinity in {int((~torch.isfinite(best)).sum())} of "
                f"{best.numel()} rows: its weights or its precision are broken (try dtype='float32')"
            )
        if self.greedy:
            return torch.zeros_like(logits).scatter_(-1, argmax.unsqueeze(-1), 1.0)
        return torch.softmax(self._filtered(logits / self.temperature), -1)

    def _filtered(self, logits: Tensor) -> Tensor:
        if self.top_k and self.top_k < logits.shape[-1]:
            kth = logits.topk(self.top_k, -1).values[..., -1:]
            logits = logits.masked_fill(logits < kth, -math.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, index = torch.sort(logits, dim=-1, descending=True, stable=True)
            p = ordered.softmax(-1)
            # A token stays if the mass before it is below top_p, so the one that crosses the border stays too.
            beyond = p.cumsum(-1) - p >= self.top_p
            beyond[..., 0] = False
            logits = logits.masked_fill(torch.zeros_like(beyond).scatter_(-1, index, beyond), -math.inf)
        return logits
