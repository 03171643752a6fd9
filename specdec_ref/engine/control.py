"""Choosing how many tokens to draft, round by round.

If each draft is accepted with probability alpha, a round of g drafts gives E(g) = 1 + alpha + ... + alpha^g tokens
(Leviathan et al. 2023, equation 1) and costs v(g) plain passes for the verification and g c for the drafting. v and c
are measured beforehand; alpha is estimated from the last rounds of the generation. The choice depends on counts of
earlier rounds alone, never on what is drawn in the round, so the output keeps the target's distribution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice

from specdec_ref.arithmetic import best_gamma, measured_curve, speedup
from specdec_ref.engine.stats import Stats

WINDOW = 24  # rounds with drafts that alpha is estimated from
PRIOR, PRIOR_TOKENS = 0.8, 10  # until that many rounds are seen: as if 8 of 10 more drafts had been accepted
LOSS = 0.01  # share of plain decoding's speed that may be spent on finding out whether drafting pays again


class AdaptiveGamma:
    """A gamma for `SpeculativeEngine`: called with the `Stats` so far, it returns how many tokens to draft next.

    cost: T(n) / T(1) by n, the time of a target pass over n tokens in passes over one; n = 1 must be in it. Between
        measured sizes it is interpolated; beyond the largest nothing is drafted. `specdec_ref.measure.adaptive_gamma`
        measures it.
    most: the largest gamma.
    draft_cost: c, the time to draft one token over that of a target pass over one token; 0 for lookup.
    Where nothing pays it returns 0, and now and then 1, as rarely as keeps the loss below 1% of plain decoding.
    Raises ValueError for a cost without n = 1 or that is not positive, and for a negative `most` or `draft_cost`.
    """

    def __init__(self, cost: Mapping[int, float], most: int = 11, draft_cost: float = 0.0) -> None:
        if draft_cost < 0 or most < 0:
            raise ValueError(f"most is {most}, draft_cost {draft_cost}: neither may be below 0")
        self.curve = measured_curve(cost)
        self.cost = dict(sorted(cost.items()))
        self.most = min(most, max(cost) - 1)
        self.draft_cost = draft_cost
        probe = draft_cost + self.curve(1) - 1 if self.most else 0.0  # what a draft in vain costs, in plain passes
        self._rest = math.ceil(probe / LOSS)

    def acceptance(self, stats: Stats) -> float:
        """alpha from the last `WINDOW` rounds with drafts; while there are fewer, the prior fills up."""
        rounds = list(islice((r for r in reversed(stats.by_round) if r.drafted), WINDOW))
        # One token of the prior always stays, so that a run of rejections does not become certainty.
        prior = 1 + (PRIOR_TOKENS - 1) * (1 - len(rounds) / WINDOW)
        accepted = sum(r.accepted for r in rounds)
        return (accepted + PRIOR * prior) / (sum(r.tested for r in rounds) + prior)

    def __call__(self, stats: Stats) -> int:
        """How many tokens to draft in the next round."""
        if self.most == 0:
            return 0
        alpha = self.acceptance(stats)
        gamma, _ = best_gamma(lambda g: speedup(alpha, g, self.draft_cost, self.curve), self.most)
        if gamma:
            return gamma
        silent = next((n for n, r in enumerate(reversed(stats.by_round)) if r.drafted), stats.rounds)
        return int(silent >= self._rest)
