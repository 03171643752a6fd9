"""The rules by name, with what is known of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from specdec_ref.interfaces import Proposal, Rule, Verdict
from specdec_ref.sampling import RandomSource
from specdec_ref.verify import block, greedy, leniency, match, onehot, tokenwise, typical


@dataclass(frozen=True)
class NamedRule:
    """A rule to call, and what is known of it.

    expected_acceptance: from p and q `[vocab]` the probability that the first drafted token, drawn from q, is kept.
    lossless: the output follows the target's distribution exactly. A rule that is not says "lossy" in its name.
    limits: where it can be used, "" for everywhere.
    greedy_by_argmax: at temperature 0 it keeps drafts while they are the target's argmax, whatever distribution they
        report; `verify_argmax` then gives its verdict without a distribution over the vocabulary.
    """

    name: str
    verify: Rule
    expected_acceptance: Callable[[Tensor, Tensor], float]
    lossless: bool = True
    limits: str = ""
    greedy_by_argmax: bool = False

    def __call__(self, proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
        return self.verify(proposal, p, source)


RULES: dict[str, NamedRule] = {
    rule.name: rule
    for rule in (
        NamedRule("token", tokenwise.verify_tokenwise, tokenwise.expected_acceptance, greedy_by_argmax=True),
        NamedRule("block", block.verify_block, block.expected_acceptance, greedy_by_argmax=True),
        NamedRule("match", match.verify_match, match.expected_acceptance, greedy_by_argmax=True),
        NamedRule(
            "onehot", onehot.verify_onehot, onehot.expected_acceptance, limits="drafts with a one-hot distribution"
        ),
        NamedRule(
            "greedy", greedy.verify_greedy, greedy.expected_acceptance, limits="temperature 0", greedy_by_argmax=True
        ),
        NamedRule("lossy-typical", typical.verify_lossy_typical, typical.expected_acceptance, lossless=False),
        NamedRule("lossy-leniency", leniency.verify_lossy_leniency, leniency.expected_acceptance, lossless=False),
    )
}
