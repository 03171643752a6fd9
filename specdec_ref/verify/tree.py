"""Verification of trees: several guesses for a place, tried one after the other, and still the target's distribution.

A rejected guess has used up its share of p: the next one is tested against the residual that the rejection left, not
against p. So a token's children, drawn from q_1, q_2, ... given those before them, are tested against

    r_1 = p,   r_{j+1} = max(0, r_j - q_j), normalised,

and the first that passes, with probability min(1, r_j(x_j) / q_j(x_j)), is kept. Each step is the rejection rule of one
draft, with r_j for p: whatever the q_j are, what comes out follows r_1. The three ways to find candidates differ in
q_j alone. Drawn with replacement: q_j = q (Miao et al. 2024, SpecInfer, arXiv 2305.09781, algorithm 2). Drawn without:
q_j is q without the earlier ones, renormalised (Jeong et al. 2024, arXiv 2402.14160, recursive rejection sampling).
The best few, nothing drawn: q_j is one-hot, x_j is kept with probability r_j(x_j), and r_{j+1} is p without the tokens
tried, renormalised.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_ref.interfaces import Proposal, Verdict
from specdec_ref.sampling import RandomSource, Sampling
from specdec_ref.verify.tokenwise import acceptance_probability, residual_distribution


def verify_tree(proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
    """Keep a path from the root as far as a child passes, then one token from the target.

    p: `[n + 1, vocab]`; row 0 is the target's distribution after the last committed token, row i + 1 after node i.

    1. At a node with distribution p, try its children in order; keep the first that passes and go on from it.
    2. If all are rejected, draw the correction from what the last rejection left of p, and stop.
    3. At a node without children, draw a bonus token from p.

    For a chain it is `verify_tokenwise`.
    """
    path: list[int] = []
    while True:
        node = path[-1] if path else -1
        r, children = p[node + 1], proposal.children(node)
        for child in children:
            x = proposal.tokens[child]
            if source.bernoulli(acceptance_probability(r[x].item(), proposal.probability(child, like=p))):
                path.append(child)
                break
            r = residual_distribution(r, proposal.distribution(child, like=r))
        else:
            return _verdict(path, source.categorical(r), children)


def verify_tree_match(proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
    """Sample and match (see `match`): draw from p as if there were no draft, go on while a child is what was drawn.

    p: `[n + 1, vocab]`, as for `verify_tree`. For candidates that are not drawn it keeps as much as `verify_tree`.
    """
    path: list[int] = []
    while True:
        node = path[-1] if path else -1
        y, children = source.categorical(p[node + 1]), proposal.children(node)
        same = [child for child in children if proposal.tokens[child] == y]
        if not same:
            return _verdict(path, y, children)
        path.append(same[0])


def verify_tree_argmax(proposal: Proposal, best: Sequence[int]) -> Verdict:
    """Follow the target's argmax down the tree; `best` `[n + 1]`: after the last committed token, and after each node.

    It gives what every lossless rule gives at temperature 0.
    """
    path: list[int] = []
    while True:
        node = path[-1] if path else -1
        token, children = best[node + 1], proposal.children(node)
        same = [child for child in children if proposal.tokens[child] == token]
        if not same:
            return _verdict(path, token, children)
        path.append(same[0])


def verify_tree_greedy(proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
    """`verify_tree_argmax` from one-hot rows p `[n + 1, vocab]`. It draws nothing.

    Raises ValueError where the row that it ends at is not one-hot: above temperature 0 the argmax is not a sample.
    """
    verdict = verify_tree_argmax(proposal, p.argmax(-1).tolist())
    row = p[1 + (verdict.indices[-1] if verdict.accepted else -1)]
    if row[verdict.token].item() != 1:
        raise ValueError(
            f"rule 'greedy' needs one-hot rows, but the target gives its best token {row[verdict.token].item():.3f}: "
            "use temperature=0, or rule='token'"
        )
    return verdict


def distributions(proposal: Proposal, logits: Tensor, tokens: Sequence[int], sampling: Sampling) -> Tensor:
    """The target's distribution after `tokens`, and after each node of a tree that continues them: `[n + 1, vocab]`.

    logits: `[n + 1, vocab]`, row 0 of the last of `tokens`, row i + 1 of node i. Where an option reads the context, a
    node's is its own path. After an end token or a forbidden one nothing is kept, and no processor has to bear the
    context: such a node has its parent's row.
    """
    if not sampling.reads_context:
        return sampling.probs(logits)
    rows, never_kept = [sampling.probs(logits[:1], tokens)], set[int]()
    for i, parent in enumerate(proposal.links):
        x, before = proposal.tokens[i], rows[parent + 1]
        if parent in never_kept or x in sampling.eos or before[0, x].item() == 0:
            rows.append(before)
            never_kept.add(i)
        else:
            context = [*tokens, *(proposal.tokens[j] for j in proposal.path(i))]
            rows.append(sampling.probs(logits[i + 1 : i + 2], context))
    return torch.cat(rows)


def _verdict(path: list[int], token: int, rejected: Sequence[int]) -> Verdict:
    """The verdict after `path`, whose last node's children, if it has any, were all rejected."""
    return Verdict(len(path), token, "corrected" if rejected else "bonus", tuple(path))
