"""What the engine asks of whoever proposes tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from specdec_ref.models.base import CausalLM
from specdec_ref.sampling import RandomSource, Sampling
from specdec_ref.verify import Proposal


class Drafter:
    """Base of all drafters. A drafter without state only writes `propose`.

    The engine calls, for each generation: `begin` once, then in turns `propose` and `commit`, and at last `end`.
    """

    def check(self, target: CausalLM) -> None:
        """Raises ValueError where this drafter's tokens are not the target's."""

    def begin(self, target: CausalLM, sampling: Sampling, capacity: int) -> Drafter:
        """A drafter for one sequence of at most `capacity` tokens, drawn with `sampling`.

        A copy, so that two generations in flight at once never share state.
        """
        return copy.copy(self)

    def propose(self, tokens: Sequence[int], gamma: int, source: RandomSource) -> Proposal:
        """Up to `gamma` tokens to follow `tokens` (prompt and output so far), with the laws they were drawn from.

        Whatever is random is drawn from `source`. To propose fewer tokens, or none, is always allowed, as long
        as that was decided before drawing: to drop a token *because of what was drawn* changes its law.
        """
        raise NotImplementedError

    def commit(self, tokens: Sequence[int]) -> None:
        """`tokens` is now the whole committed sequence: forget drafts that did not become part of it."""

    def end(self) -> None:
        """The generation is over, or broke off: give back what it holds of a pool that others use too."""
