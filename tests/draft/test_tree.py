"""Drafters of trees: shapes, guesses, and what they propose."""

from __future__ import annotations

import itertools

import pytest
import torch

from specdec_ref import RandomSource, SpeculativeEngine
from specdec_ref.draft import DynamicTreeDrafter, TreeDrafter
from specdec_ref.draft.tree import Node, best_shape, best_tokens, check_shape, depth_first, draw_children
from specdec_ref.models import ScriptedModel
from specdec_ref.proof.trees import tiny_llama

ACCURACY = [[0.6, 0.2, 0.1], [0.5, 0.2, 0.1], [0.4, 0.1]]


def value(path):
    result = 1.0
    for depth, rank in enumerate(path):
        result *= ACCURACY[depth][rank]
    return result


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_no_other_tree_of_its_size_is_worth_more(nodes):
    paths = [p for depth in (1, 2, 3) for p in itertools.product(*(range(len(a)) for a in ACCURACY[:depth]))]

    def is_tree(shape):
        return all(p[:-1] in shape or len(p) == 1 for p in shape)

    best = max(sum(map(value, s)) for s in itertools.combinations(paths, nodes) if is_tree(s))
    assert sum(map(value, best_shape(ACCURACY, nodes))) == pytest.approx(best)


def test_a_shape_ends_where_no_guess_is_left_and_every_beginning_is_a_shape():
    whole = best_shape(ACCURACY, 1000)
    assert len(whole) == 3 + 9 + 18 and best_shape([], 5) == []
    assert check_shape(whole) == whole and best_shape(ACCURACY, 7) == whole[:7]
    assert [value(p) for p in whole] == sorted(map(value, whole), reverse=True)


@pytest.mark.parametrize("shape", [[(1,)], [(0, 0)], [(0,), (0,)], [()], [(0,), (0, 1)]])
def test_a_shape_out_of_order_is_refused(shape):
    with pytest.raises(ValueError, match="comes twice, or before"):
        check_shape(shape)


def test_distinct_guesses_carry_q_without_the_earlier_ones():
    q = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64)
    children = draw_children(q, 9, True, RandomSource(1))
    assert sorted(x for x, _ in children) == [0, 1, 2]
    left = q.clone()
    for x, drawn_from in children:
        torch.testing.assert_close(drawn_from, left / left.sum())
        left[x] = 0
    assert all(torch.equal(d, q) for _, d in draw_children(q, 4, False, RandomSource(1)))
    assert best_tokens(q, 9) == [0, 1, 2]


def test_first_children_come_at_once_so_that_their_path_is_the_beginning():
    nodes = [Node(5, -1, None), Node(6, -1, None), Node(7, 0, None), Node(8, 1, None), Node(9, 2, None)]
    proposal = depth_first(nodes)
    assert proposal.tokens == [5, 7, 9, 6, 8] and proposal.parents == [-1, 0, 1, -1, 3] and proposal.probs is None


def test_a_dynamic_tree_holds_the_likeliest_paths():
    table = [(0.7, 0.2, 0.1), (0.1, 0.6, 0.3), (0.3, 0.3, 0.4)]
    model = ScriptedModel(lambda tokens: table[tokens[-1]], 3)
    drafter = DynamicTreeDrafter(model, nodes=6, depth=3, width=3)
    proposals = []
    engine = SpeculativeEngine(model, drafter, 6)
    engine.generate([0], 8, temperature=1.0, seed=0, on_round=lambda run, r: proposals.append(r.proposal))
    first = proposals[0]

    def likely(path, last=0):
        p = 1.0
        for x in path:
            p, last = p * table[last][x], x
        return p

    every = sorted((likely(p) for d in (1, 2, 3) for p in itertools.product(range(3), repeat=d)), reverse=True)
    got = [likely([first.tokens[j] for j in first.path(i)]) for i in range(6)]
    assert sorted(got, reverse=True) == pytest.approx(every[:6])


def test_a_full_draft_context_ends_the_tree_and_not_the_text():
    target, draft = tiny_llama(1), tiny_llama(1)
    draft.max_context = 12
    plain = SpeculativeEngine(target).generate([3, 1, 4], 20, eos_token_id=None).tokens
    for drafter in (TreeDrafter(draft, [(0,), (1,), (0, 0), (0, 0, 0)]), DynamicTreeDrafter(draft, 6, 4, 2)):
        out = SpeculativeEngine(target, drafter, 6).generate([3, 1, 4], 20, eos_token_id=None)
        assert out.tokens == plain and out.stats.accepted > 3


def test_what_cannot_draft_a_tree_is_refused():
    class Bare:
        vocab_size, max_context, eos_token_ids, tokenizer, device = 3, None, (), None, torch.device("cpu")

        def new_cache(self, capacity): ...
        def forward(self, tokens, cache, rows=slice(None)): ...

    with pytest.raises(TypeError, match="Bare takes no mask"):
        TreeDrafter(Bare(), [(0,)])
    with pytest.raises(ValueError, match="each is at least 1"):
        DynamicTreeDrafter(tiny_llama(1), 0)
