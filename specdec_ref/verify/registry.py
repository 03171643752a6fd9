"""The rules by name, with their properties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from specdec_ref.interfaces import Proposal, Rule, Verdict
from specdec_ref.sampling import RandomSource, Sampling
from specdec_ref.verify import batch, block, greedy, leniency, match, tokenwise, tree, typical


@dataclass(frozen=True)
class NamedRule:
    """A rule and its properties. Call it with probabilities; `judge` starts from the target's logits.

    expected_acceptance: from p and q `[vocab]` the probability that the first drafted token, drawn from q, is kept;
        None if not given.
    lossless: the output follows the target's distribution exactly. A rule that is not says "lossy" in its name; None
        is a rule of the user's own.
    greedy_only: for temperature 0 alone.
    greedy_by_argmax: at temperature 0 it keeps drafts while they are the target's argmax, whatever distribution they
        report; `verify_argmax` then gives its verdict without a distribution over the vocabulary.
    verify_tree: the same rule for proposals that are trees; None where it is for chains alone.
    """

    name: str
    verify: Rule
    expected_acceptance: Callable[[Tensor, Tensor], float] | None
    lossless: bool | None = True
    greedy_only: bool = False
    greedy_by_argmax: bool = True
    verify_tree: Rule | None = None

    def __call__(self, proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
        if proposal.parents is None:
            return self.verify(proposal, p, source)
        if self.verify_tree is None:
            raise ValueError(f"rule {self.name!r} verifies chains, and this is a tree: use rule='token'")
        return self.verify_tree(proposal, p, source)

    def judge(
        self, proposal: Proposal, logits: Tensor, tokens: Sequence[int], sampling: Sampling, source: RandomSource
    ) -> Verdict:
        """The verdict on a proposal that continues `tokens`, from the target's logits `[g + 1, vocab]`."""
        if self.greedy_by_argmax and sampling.greedy and not sampling.reads_context:
            best = sampling.argmax(logits)
            return (greedy.verify_argmax if proposal.parents is None else tree.verify_tree_argmax)(proposal, best)
        if proposal.parents is None:
            return self(proposal, sampling.probs(logits, [*tokens, *proposal.tokens]), source)
        return self(proposal, tree.distributions(proposal, logits, tokens, sampling), source)


_LOSSY: dict[str, Any] = {"lossless": False, "greedy_by_argmax": False}
_MIN = tokenwise.expected_acceptance  # sum min(p, q), for every rule that keeps the first draft as often as possible

RULES: dict[str, NamedRule] = {
    rule.name: rule
    for rule in (
        NamedRule("token", tokenwise.verify_tokenwise, _MIN, verify_tree=tree.verify_tree),
        NamedRule("block", block.verify_block, _MIN),
        NamedRule("match", match.verify_match, match.expected_acceptance, verify_tree=tree.verify_tree_match),
        NamedRule(
            "greedy",
            greedy.verify_greedy,
            greedy.expected_acceptance,
            greedy_only=True,
            verify_tree=tree.verify_tree_greedy,
        ),
        NamedRule("token-batched", batch.verify_tokenwise_batched, _MIN),
        NamedRule("block-batched", batch.verify_block_batched, _MIN),
        NamedRule("lossy-typical", typical.verify_lossy_typical, typical.expected_acceptance, **_LOSSY),
        NamedRule("lossy-leniency", leniency.verify_lossy_leniency, leniency.expected_acceptance, **_LOSSY),
    )
}


def as_rule(rule: str | Rule) -> NamedRule:
    """A rule by its name, or wrap a user's function, with its properties unknown.

    Raises ValueError for a name that does not exist, TypeError for what cannot be called.
    """
    if isinstance(rule, NamedRule):
        return rule
    if isinstance(rule, str):
        if rule not in RULES:
            raise ValueError(f"no rule {rule!r}: there are {', '.join(RULES)}")
        return RULES[rule]
    if not callable(rule):
        raise TypeError(f"a rule is a name or a function (proposal, p, source) -> Verdict, not {type(rule).__name__}")
    name = getattr(rule, "__name__", type(rule).__name__)
    return NamedRule(name, rule, None, lossless=None, greedy_by_argmax=False, verify_tree=rule)
