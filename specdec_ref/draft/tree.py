"""Trees of a draft model's guesses: several for a place, so that the pass is not lost with the first wrong one.

A *static* tree has the same shape in every round: so many guesses after nothing, so many after the likeliest of them.
A *dynamic* one grows where the draft is sure of itself (Li et al. 2024, EAGLE-2, arXiv 2406.16858). The guesses of a
static tree may be drawn, since its shape is settled before; what a dynamic tree keeps depends on its guesses, so these
have to be the draft's best few, and not drawn.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from specdec_ref.cache.paged import PagedCache, PagedKVPool
from specdec_ref.draft.model import DraftModelDrafter
from specdec_ref.interfaces import CausalLM, Features, Proposal, TreeLM
from specdec_ref.kernels.masks import tree_mask
from specdec_ref.sampling import RandomSource, Sampling

Ranks = tuple[int, ...]
"""A node of a shape: the rank of each guess on its path among its siblings, from the root down."""

Candidates = Literal["distinct", "independent", "best"]
"""How a node's children are found: drawn without replacement, drawn with it, or the likeliest, not drawn."""


def best_shape(accuracy: Sequence[Sequence[float]], nodes: int) -> list[Ranks]:
    """The shape of `nodes` guesses with the most expected tokens a round, the most valuable guess first.

    accuracy: by depth and rank, the probability that the guess of this rank is right where those above it are. A guess
    is worth the product along its path, and a round gives 1 + the sum of them. Every beginning of the result is the
    best shape of its size. Source: Cai et al. 2024 (Medusa, arXiv 2401.10774), appendix C.
    """
    shape: list[Ranks] = []
    if not accuracy or not accuracy[0]:
        return shape
    waiting: list[tuple[float, Ranks]] = [(-accuracy[0][0], (0,))]
    while waiting and len(shape) < nodes:
        minus_value, path = heapq.heappop(waiting)
        shape.append(path)
        depth, rank = len(path) - 1, path[-1]
        above = minus_value / accuracy[depth][rank] if accuracy[depth][rank] else 0.0
        if rank + 1 < len(accuracy[depth]):
            heapq.heappush(waiting, (above * accuracy[depth][rank + 1], (*path[:-1], rank + 1)))
        if depth + 1 < len(accuracy) and accuracy[depth + 1]:
            heapq.heappush(waiting, (minus_value * accuracy[depth + 1][0], (*path, 0)))
    return shape


class Node(NamedTuple):
    """A drafted token, its parent in the order of drafting (-1: the last committed token), and q `[vocab]`, what it was
    drawn from; None if it was not drawn."""

    token: int
    parent: int
    q: Tensor | None


class TreeDrafter(DraftModelDrafter):
    """Drafts a tree of a fixed shape with `model`, which needs `forward_pass`, under the target's sampling options.

    shape: paths of ranks, parents before children and each rank after the one before it, as `best_shape` gives them;
        gamma takes the first of them.
    candidates: how guesses are found where the temperature is above 0; at temperature 0 they are the likeliest.
    token_map, pool: as for `DraftModelDrafter`. One pass for each depth but the last.
    Raises ValueError for a shape with a node whose parent or elder sibling does not come before it, TypeError for a
    model without `forward_pass`.
    """

    def __init__(
        self,
        model: CausalLM,
        shape: Sequence[Ranks],
        candidates: Candidates = "distinct",
        token_map: Sequence[int] | Mapping[int, int] | None = None,
        pool: PagedKVPool | None = None,
    ) -> None:
        super().__init__(model, token_map, pool)
        if not hasattr(model, "forward_pass"):
            raise TypeError(
                f"{type(model).__name__} takes no mask in its forward pass: give a model with forward_pass, or draft "
                "chains with DraftModelDrafter"
            )
        self.tree_model: TreeLM = model  # type: ignore[assignment]
        self.shape = check_shape(shape)
        self.nodes = len(self.shape)
        self.candidates = candidates
        self._ranking = Sampling()
        self._root = 0  # tokens of the cache before the tree
        self._slot: dict[int, int] = {}  # of each node that the cache holds, its place there after the root
        self._fed_nodes: list[tuple[int, int]] = []  # token, and parent among them, of the nodes that the cache holds

    def begin(self, target: CausalLM, sampling: Sampling, capacity: int) -> TreeDrafter:
        fresh = super().begin(target, sampling, capacity)
        assert isinstance(fresh, TreeDrafter)
        fresh._fed_nodes, fresh._ranking = [], sampling
        if sampling.greedy:  # all mass is on one token there: rank the others by what the draft thinks of them
            fresh._ranking = replace(sampling, temperature=1.0, top_k=None, top_p=None, min_p=None, typical_p=None)
        return fresh

    def propose(self, tokens: Sequence[int], gamma: int, source: RandomSource) -> Proposal:
        """The shape's first `gamma` nodes; fewer after an end token, and where the draft has no more tokens to give."""
        shape = set(self._fitting(tokens, gamma))
        if not shape:
            return Proposal([])
        nodes: list[Node] = []
        ranks: list[Ranks] = []
        level, rows = [-1], self._begin_tree(tokens)
        while level:
            first = len(nodes)
            for parent, q in zip(level, rows, strict=True):
                path = ranks[parent] if parent >= 0 else ()
                width = next(rank for rank in itertools.count() if (*path, rank) not in shape)
                for rank, (x, drawn_from) in enumerate(self._children(q, width, source)):
                    nodes.append(Node(x, parent, drawn_from))
                    ranks.append((*path, rank))
            level = [i for i in range(first, len(nodes)) if (*ranks[i], 0) in shape and self._goes_on(nodes[i])]
            rows = self._take_in(tokens, nodes, level)
        return depth_first(nodes)

    def commit(self, tokens: Sequence[int], features: Features | None = None) -> None:
        """Of the tree keep the accepted path, as far as the draft has taken it in."""
        if self._fed_nodes:
            self._keep_path(tokens)
        super().commit(tokens)

    def _keep_path(self, tokens: Sequence[int]) -> None:
        path: list[int] = []
        for token in tokens[self._root : -1]:
            node = (token, path[-1] if path else -1)
            if node not in self._fed_nodes:
                break
            path.append(self._fed_nodes.index(node))
        self.cache.keep([self._root - 1, *(self._root + i for i in path)])
        self._fed[self._root :] = [self._fed_nodes[i][0] for i in path]
        self._fed_nodes = []

    def _fitting(self, tokens: Sequence[int], gamma: int) -> list[Ranks]:
        """The first nodes of the shape, without those that lie beyond the draft's own context."""
        limit = self.model.max_context
        deepest = gamma if limit is None else limit - len(tokens) + 1
        return [path for path in self.shape[:gamma] if len(path) <= deepest]

    def _children(self, q: Tensor, width: int, source: RandomSource) -> list[tuple[int, Tensor | None]]:
        """Up to `width` tokens after a node, and what each was drawn from; `q` `[vocab]`."""
        if self._sampling.greedy or self.candidates == "best":
            return [(x, None) for x in best_tokens(q, width)]
        return draw_children(q, width, self.candidates == "distinct", source)

    def _goes_on(self, node: Node) -> bool:
        return node.token not in self._sampling.eos

    def _begin_tree(self, tokens: Sequence[int]) -> Tensor:
        """Take in what the cache lacks of `tokens`; the draft's distribution after them, `[1, vocab]`."""
        cache = self.cache
        if isinstance(cache, PagedCache) and not self._fed:
            cache.reuse(self._own_ids(tokens))
            self._fed = list(tokens[: cache.length])
        new = list(tokens[cache.length :])
        ids = torch.tensor(self._own_ids(new), device=self.model.device)
        logits = self.model.forward(ids, cache, slice(len(new) - 1, None))
        self._fed += new
        self._root, self._fed_nodes, self._slot = len(tokens), [], {-1: -1}
        return self._ranking.probs(self._in_target_ids(logits), tokens)

    def _take_in(self, tokens: Sequence[int], nodes: Sequence[Node], level: Sequence[int]) -> Tensor:
        """One pass over the nodes `level`, whose parents the cache holds: distributions after each, `[n, vocab]`."""
        if not level:
            return torch.empty(0)
        for i in level:
            self._fed_nodes.append((nodes[i].token, self._slot[nodes[i].parent]))
            self._slot[i] = len(self._fed_nodes) - 1
        ids = torch.tensor(self._own_ids([nodes[i].token for i in level]), device=self.model.device)
        mask = tree_mask([parent for _, parent in self._fed_nodes], self.model.device)
        positions = self._root - 1 + mask.sum(-1)[-len(level) :]
        out = self.tree_model.forward_pass(ids, self.cache, positions=positions, mask=mask[-len(level) :])
        self._fed += [nodes[i].token for i in level]
        logits = self._in_target_ids(out.logits)
        if not self._ranking.reads_context:
            return self._ranking.probs(logits)
        contexts = [[*tokens, *(nodes[j].token for j in path_to(nodes, i))] for i in level]
        return torch.cat([self._ranking.probs(row[None], c) for row, c in zip(logits, contexts, strict=True)])


class DynamicTreeDrafter(TreeDrafter):
    """Drafts a tree that grows where `model` is sure: of all guesses the `nodes` whose paths it finds likeliest.

    depth: of the tree, a pass of the draft for each. width: guesses that go on from one depth to the next, and children
        that each gets. Nothing is drawn, so sampled output stays exact. token_map, pool: as for `DraftModelDrafter`.
    Raises ValueError for sizes below 1, TypeError for a model without `forward_pass`.
    Source: Li et al. 2024 (EAGLE-2, arXiv 2406.16858), section 4.
    """

    def __init__(
        self,
        model: CausalLM,
        nodes: int = 16,
        depth: int = 5,
        width: int = 4,
        token_map: Sequence[int] | Mapping[int, int] | None = None,
        pool: PagedKVPool | None = None,
    ) -> None:
        if min(nodes, depth, width) < 1:
            raise ValueError(f"a tree of {nodes} nodes, depth {depth}, width {width}: each is at least 1")
        super().__init__(model, [], "best", token_map, pool)
        self.depth, self.width = depth, width
        self.nodes = max(nodes, width * (depth - 1))  # what goes on lies in the draft's cache
        self._most = nodes

    def propose(self, tokens: Sequence[int], gamma: int, source: RandomSource) -> Proposal:
        """The likeliest `gamma` guesses, at most `nodes`, in a tree."""
        limit = self.model.max_context
        depth = self.depth if limit is None else min(self.depth, limit - len(tokens) + 1)
        if depth < 1:
            return Proposal([])
        nodes: list[Node] = []
        confidence: list[float] = []
        level, rows = [-1], self._begin_tree(tokens)
        for last in [False] * (depth - 1) + [True]:
            first = len(nodes)
            for parent, q in zip(level, rows, strict=True):
                for x in best_tokens(q, self.width):
                    nodes.append(Node(x, parent, None))
                    confidence.append((confidence[parent] if parent >= 0 else 1.0) * float(q[x]))
            open_nodes = [i for i in range(first, len(nodes)) if self._goes_on(nodes[i])]
            level = sorted(open_nodes, key=lambda i: -confidence[i])[: self.width]
            if last or not level:
                break
            rows = self._take_in(tokens, nodes, level)
        # A child is never likelier than its parent, and comes after it: the best of all are a tree.
        best = sorted(range(len(nodes)), key=lambda i: -confidence[i])[: min(gamma, self._most)]
        new = {-1: -1} | {i: at for at, i in enumerate(sorted(best))}
        return depth_first([nodes[i]._replace(parent=new[nodes[i].parent]) for i in sorted(best)])


def best_tokens(q: Tensor, width: int) -> list[int]:
    """Up to `width` tokens, the likeliest of q `[vocab]` first, none of probability 0; the lower id on a tie."""
    order = torch.sort(q, descending=True, stable=True).indices[:width].tolist()
    return [x for x in order if q[x] > 0]


def draw_children(q: Tensor, width: int, distinct: bool, source: RandomSource) -> list[tuple[int, Tensor | None]]:
    """Up to `width` tokens drawn from q `[vocab]`, with the distribution that each was drawn from.

    distinct: without replacement, each from q without the earlier ones, renormalised; fewer where q holds fewer.
    """
    children: list[tuple[int, Tensor | None]] = []
    while len(children) < width and q.any():
        x = source.categorical(q)
        children.append((x, q))
        if distinct:
            q = q.clone()
            q[x] = 0
            q = q / q.sum() if q.any() else q
    return children


def path_to(nodes: Sequence[Node], i: int) -> list[int]:
    """Indices from a child of the root down to node i."""
    path: list[int] = []
    while i >= 0:
        path.append(i)
        i = nodes[i].parent
    return path[::-1]


def depth_first(nodes: Sequence[Node]) -> Proposal:
    """The nodes as a proposal in which the first child of each follows it at once.

    So a path of first children, the likeliest one, is the proposal's beginning, and keeping it moves nothing.
    """
    children: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(i)
    order: list[int] = []
    waiting = children.get(-1, [])[::-1]
    while waiting:
        order.append(waiting.pop())
        waiting += children.get(order[-1], [])[::-1]
    at = {-1: -1} | {i: place for place, i in enumerate(order)}
    distributions = [q for i in order if (q := nodes[i].q) is not None]
    return Proposal(
        [nodes[i].token for i in order],
        torch.stack(distributions) if distributions else None,
        [at[nodes[i].parent] for i in order],
    )


def check_shape(shape: Sequence[Ranks]) -> list[Ranks]:
    """The shape as a list. Raises ValueError where a node comes before its parent or elder sibling, or twice."""
    known: set[Ranks] = {()}
    for path in map(tuple, shape):
        before = path[:-1] if not path or path[-1] == 0 else (*path[:-1], path[-1] - 1)
        if path in known or before not in known or path[:-1] not in known:
            raise ValueError(f"node {path} of the shape comes twice, or before {before}: give paths of ranks in order")
        known.add(path)
    return [tuple(path) for path in shape]
