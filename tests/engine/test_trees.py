"""Trees in the engine: one pass, ancestors alone in sight, and of both caches the accepted path."""

from __future__ import annotations

import pytest
import torch
from support.tiny_models import tiny_llama

from specdec_ref import Proposal, SpeculativeEngine
from specdec_ref.cache import PagedKVPool
from specdec_ref.interfaces import Drafter, Verdict
from specdec_ref.kernels.masks import tree_mask
from specdec_ref.models import ScriptedModel

TARGET = tiny_llama(1)
PROMPT = [3, 1, 4, 1]
PLAIN = SpeculativeEngine(TARGET).generate(PROMPT, 24, eos_token_id=None).tokens

SHAPES = {
    "two guesses": [-1, -1],
    "binary, depth first": [-1, 0, 1, 1, 0, 4, -1, 6, 6],
    "binary, level by level": [-1, -1, 0, 0, 1, 1],
    "a comb": [-1, -1, 0, 0, 2, 2, 4, 4],
    "a chain and its siblings": [-1, 0, 1, -1, -1, 0],
    "the good one last": [-1, -1, -1, 2, 2, 4],
}


class Oracle(Drafter):
    """A tree of a given shape in which one path is the target's own text for `right` tokens, and all else is junk.

    last: whether the right token is the last of its siblings, or the first.
    """

    def __init__(self, parents, right=2, last=False, layers=()):
        self.parents, self.right, self.last, self.layers, self.nodes = parents, right, last, layers, len(parents)
        self.heard = []

    def propose(self, tokens, gamma, source):
        at = len(tokens) - len(PROMPT)
        parents, drafted = self.parents[:gamma], []
        whole, good = [*PLAIN, *[0] * 20], {-1: 0}  # the depth of each node on the right path
        for i, parent in enumerate(parents):
            family = [j for j, other in enumerate(parents) if other == parent]
            chosen = i == (family[-1] if self.last else family[0])
            depth = good.get(parent)
            if depth is not None and chosen and depth < self.right:
                good[i] = depth + 1
                drafted.append(whole[at + depth])
            else:
                wrong = (whole[at + (depth or 0)] + 1 + family.index(i)) % 13
                drafted.append(wrong)
        return Proposal(drafted, None, parents)

    def commit(self, tokens, features=None):
        self.heard.append(features)


def assert_fresh(run, cache=None):
    """The target's cache is what a prefill of the committed tokens gives."""
    cache = run.cache if cache is None else cache
    assert cache.length == len(run.tokens) - 1
    fresh = TARGET.new_cache(cache.length)
    TARGET(torch.tensor(run.tokens[:-1]), fresh, slice(0))
    held = cache.gather() if hasattr(cache, "gather") else [t[:, :, : cache.length] for t in (cache.keys, cache.values)]
    for got, want in zip(held, (fresh.keys, fresh.values), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("paged", [False, True], ids=["dense", "paged"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_output_is_plain_decodings_and_the_cache_a_fresh_prefills(shape, last, paged):
    seen = set()

    def look(run, round_):
        assert_fresh(run)
        path = round_.verdict.indices
        seen.add("prefix" if path == tuple(range(len(path))) else "gap")

    pool = PagedKVPool(TARGET, 12, 4) if paged else None
    engine = SpeculativeEngine(TARGET, Oracle(SHAPES[shape], 3, last), 9, pool=pool)
    out = engine.generate(PROMPT, 24, eos_token_id=None, on_round=look)
    assert out.tokens == PLAIN and out.stats.accepted > 8
    assert "gap" in seen or not last
    assert pool is None or pool.block_pool.num_used == 0


@pytest.mark.parametrize("last", [False, True])
def test_a_path_that_is_a_prefix_moves_nothing(last, monkeypatch):
    moved, index_select = [], torch.Tensor.index_select

    def counted(tensor, *arguments):
        moved.append(tensor.shape)
        return index_select(tensor, *arguments)

    monkeypatch.setattr(torch.Tensor, "index_select", counted)
    engine = SpeculativeEngine(TARGET, Oracle([-1, 0, 1, -1, 0], 3, last), 5)
    engine.generate(PROMPT, 12, eos_token_id=None)
    assert bool(moved) == last


@pytest.mark.parametrize("shape", SHAPES)
def test_every_path_has_the_logits_of_linear_decoding(shape):
    parents = SHAPES[shape]
    tree = torch.tensor([(5 * i + 2) % 13 for i in range(len(parents))])
    cache = TARGET.new_cache(20)
    TARGET(torch.tensor(PROMPT), cache, slice(0))
    proposal = Proposal(tree.tolist(), None, parents)
    positions = torch.tensor(proposal.depths) + len(PROMPT) - 1
    out = TARGET.forward_pass(tree, cache, positions=positions, mask=tree_mask(parents))
    for node in range(len(parents)):
        path = torch.cat([torch.tensor(PROMPT), tree[proposal.path(node)]])
        alone = TARGET(path, TARGET.new_cache(20), slice(len(path) - 1, None))[0]
        torch.testing.assert_close(out.logits[node], alone, rtol=1e-9, atol=1e-9)


def test_a_drafter_hears_the_features_of_the_path_alone():
    drafter = Oracle(SHAPES["the good one last"], 2, True, (1, 2))
    drafter.begin = lambda target, sampling, capacity: drafter
    engine = SpeculativeEngine(TARGET, drafter, 6)
    out = engine.generate(PROMPT, 12, eos_token_id=None)
    whole = torch.tensor([*PROMPT, *out.tokens])[:-1]
    want = TARGET.forward_pass(whole, TARGET.new_cache(20), layers=(1, 2)).features
    for layer, expected in enumerate(want):
        torch.testing.assert_close(torch.cat([f[layer] for f in drafter.heard]), expected)


# Budget, capacity, context


@pytest.mark.parametrize("budget", range(1, 9))
def test_the_budget_is_exact_whatever_the_tree_holds(budget):
    for last in (False, True):
        engine = SpeculativeEngine(TARGET, Oracle(SHAPES["a comb"], 4, last), 8)
        out = engine.generate(PROMPT, budget, eos_token_id=None, on_round=lambda run, round_: assert_fresh(run))
        assert out.tokens == PLAIN[:budget] and out.stats.emitted == budget and out.finish_reason == "length"


def test_near_the_end_trees_lose_what_is_too_deep_and_nothing_else():
    sizes = []
    engine = SpeculativeEngine(TARGET, Oracle(SHAPES["a comb"], 0), 8)  # two tokens at each depth
    engine.generate(PROMPT, 7, eos_token_id=None, on_round=lambda run, r: sizes.append(len(r.proposal.tokens)))
    assert sizes == [8, 8, 8, 6, 4, 2, 0]


def test_a_full_context_is_used_to_its_last_token():
    """Of a tree the depth counts: its tokens may be more than the positions that are left."""
    short = tiny_llama(1, max_context=len(PROMPT) + 6)
    sizes = []
    engine = SpeculativeEngine(short, Oracle(SHAPES["a comb"], 1), 8)
    out = engine.generate(PROMPT, 24, eos_token_id=None, on_round=lambda run, r: sizes.append(len(r.proposal.tokens)))
    assert out.tokens == PLAIN[:6] and max(sizes) == 8


def test_where_a_pool_is_nearly_full_trees_are_smaller_and_nothing_fails():
    pool = PagedKVPool(TARGET, 7, 4)  # 28 tokens: prompt and output, and no more
    sizes = []
    engine = SpeculativeEngine(TARGET, Oracle(SHAPES["a comb"], 1), 8, pool=pool)
    out = engine.generate(PROMPT, 24, eos_token_id=None, on_round=lambda run, r: sizes.append(len(r.proposal.tokens)))
    assert out.tokens == PLAIN and max(sizes) == 8 and min(sizes[:-1]) < 8


def test_a_stop_inside_a_path_ends_the_output_there():
    for eos in PLAIN[:6]:
        engine = SpeculativeEngine(TARGET, Oracle(SHAPES["binary, depth first"], 3, True), 9)
        out = engine.generate(PROMPT, 24, eos_token_id=eos, on_round=lambda run, round_: assert_fresh(run))
        assert out.tokens == PLAIN[: PLAIN.index(eos) + 1] and out.finish_reason == "eos"
        assert out.stats.emitted == len(out.tokens)


# Counting


def test_drafted_counts_tokens_and_places_count_depths():
    engine = SpeculativeEngine(TARGET, Oracle(SHAPES["the good one last"], 2, True), 6)
    stats = engine.generate(PROMPT, 8, eos_token_id=None).stats
    first = stats.by_round[0]
    assert (first.drafted, first.places, first.accepted, first.tested, first.last) == (6, 3, 2, 3, "corrected")
    assert len(stats.accepted_by_position) == 3 == len(stats.tested_by_position)
    assert stats.accepted_by_position[2] == 0 < stats.tested_by_position[2]
    assert sum(stats.accepted_by_position) == stats.accepted


def test_a_leaf_is_followed_by_a_bonus():
    engine = SpeculativeEngine(TARGET, Oracle([-1, -1, 1], 2, True), 3)
    first = engine.generate(PROMPT, 8, eos_token_id=None).stats.by_round[0]
    assert (first.accepted, first.tested, first.last) == (2, 2, "bonus")


# What does not fit


def test_rules_for_chains_refuse_a_tree_and_say_which_one_takes_it():
    for rule in ("block", "token-batched", "lossy-typical"):
        engine = SpeculativeEngine(TARGET, Oracle([-1, -1]), 2, rule)
        with pytest.raises(ValueError, match=r"verifies chains: use rule='token'"):
            engine.generate(PROMPT, 8)


def test_a_model_without_masks_refuses_a_tree():
    class Bare:
        vocab_size, max_context, eos_token_ids, tokenizer, device = 13, None, (), None, torch.device("cpu")

        def new_cache(self, capacity):
            return TARGET.new_cache(capacity)

        def forward(self, tokens, cache, rows=slice(None)):
            return TARGET.forward(tokens, cache, rows)

    with pytest.raises(ValueError, match="Bare takes no mask"):
        SpeculativeEngine(Bare(), Oracle([-1, -1]), 2).generate(PROMPT, 8)


def test_a_path_across_branches_is_refused():
    def rule(proposal, p, source):
        return Verdict(2, 1, "bonus", (0, 2))

    engine = SpeculativeEngine(TARGET, Oracle([-1, -1, 1]), 3, rule)
    with pytest.raises(ValueError, match=r"no path of the tree: give \[1, 2\]"):
        engine.generate(PROMPT, 8, temperature=1.0)


def test_a_tree_that_is_a_chain_goes_the_way_of_chains():
    rounds = []
    engine = SpeculativeEngine(TARGET, Oracle([-1, 0, 1], 3), 3, "block")
    out = engine.generate(PROMPT, 8, eos_token_id=None, on_round=lambda run, round_: rounds.append(round_))
    assert out.tokens == PLAIN[:8] and all(r.proposal.parents is None for r in rounds)


# Options that read the context


def test_each_node_is_judged_after_its_own_path():
    """Penalties see the branch, not its siblings; and what no processor would see in plain decoding, none sees."""
    contexts = []

    def processor(ids, scores):
        contexts.append(tuple(ids[0].tolist()))
        return scores

    model = ScriptedModel(lambda tokens: [w / 15 for w in ((1, 2, 4, 8) if sum(tokens) % 2 else (8, 4, 2, 1))], 4)
    options = {"temperature": 0.0, "frequency_penalty": 0.9, "processors": [processor], "eos_token_id": 2}
    plain = SpeculativeEngine(model).generate([1], 9, **options).tokens
    contexts.clear()

    class All(Drafter):
        nodes = 20

        def propose(self, tokens, gamma, source):
            return Proposal([0, 1, 2, 3] * 5, None, [-1] * 4 + [i for i in range(4) for _ in range(4)])

    out = SpeculativeEngine(model, All(), 20).generate([1], 9, **options)
    assert out.tokens == plain and out.stats.accepted > 0
    assert not any(2 in context[1:] for context in contexts)
