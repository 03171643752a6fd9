"""How many tokens to draft: as many as pay, and none where drafting loses.

Of g drafts, each accepted with probability alpha, a round gives E(g) = 1 + alpha + ... + alpha^g tokens (Leviathan et
al. 2023, equation 1) and costs T(g + 1). The g with the largest E(g) / T(g + 1) is taken. T is measured beforehand,
alpha is what the last rounds of this generation showed. The choice depends on counts of earlier rounds alone, never on
what is drawn in the round, so the output's distribution stays the target's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from specdec_ref.engine.stats import Stats

WINDOW = 24  # rounds with drafts that alpha is estimated from
PRIOR, PRIOR_TOKENS = 0.8, 10  # until that many rounds are seen: as if 8 of 10 more drafts had been accepted
LOSS = 0.01  # share of plain decoding's speed that may be spent on looking whether drafting pays again


class AdaptiveGamma:
    """A gamma for `SpeculativeEngine`: called with the `Stats` so far, returns the drafts of the next round.

    cost: tokens in a pass -> time of the pass over that of one token; 1 must be in it. Between measured sizes it is
        interpolated, above the largest nothing is drafted.
    most: the largest gamma. draft_cost: time to draft a token, over a target pass of one token; 0 for lookup.
    Where nothing pays it returns 0, and 1 once in a while: as rarely as keeps the loss below 1% of plain decoding.
    Raises ValueError for a cost without 1, or that is not positive.
    """

    def __init__(self, cost: Mapping[int, float], most: int = 11, draft_cost: float = 0.0) -> None:
        if 1 not in cost or min(cost) < 1 or min(cost.values()) <= 0:
            raise ValueError(f"cost is {dict(cost)}: give the relative time of passes over 1, 2, ... tokens, above 0")
        if draft_cost < 0 or most < 0:
            raise ValueError(f"most is {most}, draft_cost {draft_cost}: neither may be below 0")
        self.cost = dict(sorted(cost.items()))
        self.most = min(most, max(cost) - 1)
        self._rounds = [self._pass(g + 1) / self._pass(1) + g * draft_cost for g in range(self.most + 1)]
        self._rest = math.ceil((self._rounds[1] - 1) / LOSS) if self.most else 0

    def _pass(self, n: int) -> float:
        """Relative time of a pass over n tokens."""
        if n in self.cost:
            return self.cost[n]
        below, above = max(k for k in self.cost if k < n), min(k for k in self.cost if k > n)
        share = (n - below) / (above - below)
        return self.cost[below] + share * (self.cost[above] - self.cost[below])

    def acceptance(self, stats: Stats) -> float:
        """alpha from the last `WINDOW` rounds with drafts; while they are fewer, filled up with the prior."""
        rounds = [(d, a) for d, a in zip(stats.drafted_by_round, stats.accepted_by_round, strict=True) if d][-WINDOW:]
        # One token of the prior always stays, so that a row of rejections does not become certainty.
        prior = 1 + (PRIOR_TOKENS - 1) * (1 - len(rounds) / WINDOW)
        accepted = sum(a for _, a in rounds)
        tested = sum(a + (a < d) for d, a in rounds)
        return (accepted + PRIOR * prior) / (tested + prior)

    def __call__(self, stats: Stats) -> int:
        """Drafts of the next round."""
        alpha = self.acceptance(stats)
        tokens, best, gamma = 1.0, 1.0, 0
        for g in range(1, self.most + 1):
            tokens += alpha**g
            if tokens / self._rounds[g] > best:
                best, gamma = tokens / self._rounds[g], g
        if gamma or not self.most:
            return gamma
        silent = next((i for i, d in enumerate(reversed(stats.drafted_by_round)) if d), len(stats.drafted_by_round))
        return int(silent >= self._rest)
