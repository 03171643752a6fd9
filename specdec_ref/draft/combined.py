"""Two drafters, one proposal: copy where the text repeats itself, and ask the trained one elsewhere.

Copying costs nothing and is nearly always right in a long match, and nearly never in a short one; a trained drafter
costs a pass or several, and is right about as often everywhere.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from specdec_ref.interfaces import CausalLM, Drafter, Features, Proposal
from specdec_ref.sampling import RandomSource, Sampling


class Several(Drafter):
    """Drafters of which one is asked in each round, all kept in step: the part that choosing among them shares.

    Each of them is told every committed sequence, also of rounds that another one drafted, and is handed the hidden
    states that it asks for. Raises ValueError where there are none, or one of trees.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        if not drafters:
            raise ValueError("no drafters: give at least one")
        if trees := [type(drafter).__name__ for drafter in drafters if drafter.nodes]:
            raise ValueError(f"{trees[0]} proposes trees: give drafters of chains, or use it alone")
        self.drafters = list(drafters)
        self.layers = tuple(sorted({layer for drafter in drafters for layer in drafter.layers}))

    def check(self, target: CausalLM) -> None:
        for drafter in self.drafters:
            drafter.check(target)

    def begin(self, target: CausalLM, sampling: Sampling, capacity: int) -> Drafter:
        fresh = copy.copy(self)
        fresh.drafters = [drafter.begin(target, sampling, capacity) for drafter in self.drafters]
        return fresh

    def commit(self, tokens: Sequence[int], features: Features | None = None) -> None:
        """Tell all of them, each with the features of its own layers."""
        for drafter in self.drafters:
            if not drafter.layers:
                drafter.commit(tokens)
            else:
                assert features is not None  # the engine hands over what `layers` asks for
                drafter.commit(tokens, tuple(features[self.layers.index(layer)] for layer in drafter.layers))

    def end(self) -> None:
        for drafter in self.drafters:
            drafter.end()


class CombinedDrafter(Several):
    """Takes `lookup` where its match is long, and `trained` otherwise.

    Who drafts is decided by the committed tokens, before anything is drawn, so the output keeps the target's
    distribution: the rule is told one drafter's tokens and the distributions they came from.

    lookup: an `NGramDrafter` or a `SuffixDrafter`: one that draws nothing and says how long its match is.
    long: tokens of the match from which on it is believed.
    Raises ValueError for a `long` below 1.
    """

    def __init__(self, lookup: Drafter, trained: Drafter, long: int = 3) -> None:
        if long < 1:
            raise ValueError(f"long is {long}: give the tokens of a match, 1 or more")
        super().__init__([lookup, trained])
        self.long = long

    def propose(self, tokens: Sequence[int], gamma: int, source: RandomSource) -> Proposal:
        """One drafter's proposal, with its name: the trained one's too where a short match has nothing better."""
        lookup, trained = self.drafters
        copied = lookup.propose(tokens, gamma, source)
        if copied.match >= self.long:
            return named(copied, lookup)
        return named(trained.propose(tokens, gamma, source), trained)


def named(proposal: Proposal, drafter: Drafter) -> Proposal:
    """The proposal with the name of the drafter that made it."""
    return replace(proposal, drafter=type(drafter).__name__)
