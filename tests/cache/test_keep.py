"""keep(indices): after it a cache holds just those tokens, as if no other had been fed after them."""

import pytest
import torch
from support.tiny_models import tiny_llama

from specdec_ref.cache import PagedKVPool
from specdec_ref.models import ScriptedModel

MODEL = tiny_llama(1)
TREE = [(0, 2, 4), (0, 1), (0, 3), (0,), (0, 1, 2, 3, 4)]  # of five tokens fed after three: what stays


def contents(cache):
    if hasattr(cache, "gather"):
        return cache.gather()
    return cache.keys[:, :, : cache.length], cache.values[:, :, : cache.length]


@pytest.mark.parametrize("kept", TREE)
@pytest.mark.parametrize("kind", ["dense", "paged", "paged, forked"])
def test_what_is_kept_closes_up_and_the_rest_is_gone(kind, kept):
    pool = PagedKVPool(MODEL, 20, 2)
    cache = MODEL.new_cache(12) if kind == "dense" else pool.new_sequence()
    tokens = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8])
    MODEL.forward(tokens, cache)
    twin = cache.fork() if kind == "paged, forked" else None
    before = [t.clone() for t in contents(cache)]
    cache.keep([3 + i for i in kept])
    rows = [0, 1, 2, *(3 + i for i in kept)]
    assert cache.length == len(rows)
    for got, want in zip(contents(cache), before, strict=True):
        assert torch.equal(got, want[:, :, rows])
    if twin is not None:  # the other sequence still holds what it held
        for got, want in zip(contents(twin), before, strict=True):
            assert torch.equal(got, want)
        twin.truncate(0)
    cache.truncate(0)
    assert pool.block_pool.num_used == 0


def test_a_run_without_gaps_moves_nothing():
    cache = MODEL.new_cache(12)
    MODEL.forward(torch.tensor([1, 2, 3, 4, 5, 6]), cache)
    version = cache.keys._version
    cache.keep([2, 3, 4])
    assert cache.length == 5 and cache.keys._version == version


@pytest.mark.parametrize("indices", [[], [2, 2], [3, 2], [-1], [6], [4, 6]])
@pytest.mark.parametrize("kind", ["dense", "paged", "scripted"])
def test_indices_that_are_not_held_or_do_not_rise_change_nothing(kind, indices):
    model = ScriptedModel(lambda tokens: [0.5, 0.5], 2) if kind == "scripted" else MODEL
    cache = PagedKVPool(MODEL, 20, 2).new_sequence() if kind == "paged" else model.new_cache(12)
    model.forward(torch.tensor([1, 0, 1, 0, 1, 0]), cache)
    with pytest.raises(ValueError, match="rising indices"):
        cache.keep(indices)
    assert cache.length == 6


# A tree in one pass


def paths():
    """A tree below token 3: parents, and each node's path from the root."""
    parents = [-1, 0, 0, 1, 1, 2]
    found = []
    for node in range(len(parents)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        found.append(path)
    return found


@pytest.mark.parametrize("kind", ["dense", "paged"])
def test_in_a_tree_each_path_has_the_logits_of_that_text_alone(kind):
    prompt, tree = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6, 7, 8, 9])
    cache = PagedKVPool(MODEL, 20, 2).new_sequence() if kind == "paged" else MODEL.new_cache(12)
    MODEL.forward(prompt, cache)
    mask = torch.zeros(6, 6, dtype=torch.bool)
    for node, path in enumerate(paths()):
        mask[node, path] = True
    positions = torch.tensor([2 + len(path) for path in paths()])
    out = MODEL.forward_pass(tree, cache, positions=positions, mask=mask, layers=(1,))
    for node, path in enumerate(paths()):
        alone = MODEL.forward_pass(torch.cat([prompt, tree[path]]), MODEL.new_cache(12), layers=(1,))
        torch.testing.assert_close(out.logits[node], alone.logits[-1])
        torch.testing.assert_close(out.features[0][node], alone.features[0][-1])
    # The path that is kept: the same cache as a fresh prefill of it.
    path = paths()[4]
    cache.keep([3 + i for i in path])
    fresh = MODEL.new_cache(12)
    MODEL.forward(torch.cat([prompt, tree[path]]), fresh)
    for got, want in zip(contents(cache), contents(fresh), strict=True):
        torch.testing.assert_close(got, want)


def test_a_scripted_model_sees_in_a_tree_what_its_mask_shows():
    model = ScriptedModel(lambda tokens: [w / 15 for w in ((1, 2, 4, 8) if sum(tokens) % 2 else (8, 4, 2, 1))], 4)
    cache = model.new_cache(12)
    model.forward(torch.tensor([1, 2]), cache)
    mask = torch.zeros(6, 6, dtype=torch.bool)
    for node, path in enumerate(paths()):
        mask[node, path] = True
    tree, positions = torch.tensor([1, 3, 2, 0, 1, 3]), torch.tensor([1 + len(path) for path in paths()])
    out = model.forward_pass(tree, cache, positions=positions, mask=mask)
    for node, path in enumerate(paths()):
        alone = model.forward(torch.cat([torch.tensor([1, 2]), tree[path]]), model.new_cache(12))
        assert torch.equal(out.logits[node], alone[-1])
