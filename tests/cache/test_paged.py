"""Paged attention against plain, the paged cache under the model, and faults that users of such caches met."""

import gc
import random
import tracemalloc

import pytest
import torch
from support.tiny_models import tiny_llama

from specdec_ref.cache.block_pool import OutOfBlocks
from specdec_ref.cache.paged import PagedKVPool
from specdec_ref.kernels.attention import attention, paged_attention
from specdec_ref.models.scripted import ScriptedModel

MODEL = tiny_llama(1)


def pool(num_blocks=40, block_size=4, model=MODEL):
    """What nobody wrote is NaN, so that it shows in every sum it enters."""
    made = PagedKVPool(model, num_blocks, block_size)
    made.keys.fill_(torch.nan)
    made.values.fill_(torch.nan)
    return made


def random_tokens(n, seed=0):
    return torch.randint(13, (n,), generator=torch.Generator().manual_seed(seed))


def prefill(cache, tokens):
    """Take in what is missing of `tokens`; returns the cache."""
    if len(tokens) > cache.length:
        MODEL(torch.as_tensor(tokens[cache.length :]), cache, slice(0))
    return cache


def assert_holds(cache, tokens):
    """The cache equals a dense one that was filled with `tokens`."""
    assert cache.length == len(tokens)
    dense = prefill(MODEL.new_cache(max(1, len(tokens))), tokens)
    keys, values = cache.gather()
    torch.testing.assert_close(keys, dense.keys[:, :, : len(tokens)], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(values, dense.values[:, :, : len(tokens)], rtol=1e-12, atol=1e-12)


def used(a_pool):
    return a_pool.block_pool.num_used


# Attention


@pytest.mark.parametrize("length", [1, 3, 4, 5, 16, 50])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_paged_attention_equals_plain_attention(length, block_size, dtype):
    """Within 1e-12 in float64; in bfloat16 it is the same sum, in the same order."""
    generator = torch.Generator().manual_seed(length)
    keys, values = torch.randn(2, 3, length, 8, generator=generator).to(dtype)
    q, mask = torch.randn(3, 6, 8, generator=generator).to(dtype), torch.rand(6, length, generator=generator) < 0.5
    mask[:, 0] = True
    n_blocks = -(-length // block_size)
    table = torch.randperm(n_blocks + 2, generator=generator)[:n_blocks]
    pools = torch.full((2, 3, n_blocks + 2, block_size, 8), torch.nan, dtype=dtype)
    for i in range(length):
        pools[0, :, table[i // block_size], i % block_size] = keys[:, i]
        pools[1, :, table[i // block_size], i % block_size] = values[:, i]
    for m in (None, mask):
        want, got = attention(q, keys, values, m), paged_attention(q, *pools, table, length, m)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("block_size", [1, 3, 4, 16, 64])
@pytest.mark.parametrize("parts", [[30], [1] * 30, [7, 1, 1, 5, 8, 8], [16, 14], [15, 1, 14]])
def test_logits_equal_dense_however_the_passes_are_cut(block_size, parts):
    tokens = random_tokens(30)
    cache, dense = pool(block_size=block_size).new_sequence(), MODEL.new_cache(30)
    for part in tokens.split(parts):
        torch.testing.assert_close(MODEL(part, cache), MODEL(part, dense), rtol=1e-12, atol=1e-12)
    assert_holds(cache, tokens)


def test_a_table_in_any_order():
    """Blocks that were freed one by one come back scattered."""
    a_pool, tokens = pool(12, 2), random_tokens(20)
    blocks = a_pool.block_pool.allocate(12)
    random.Random(0).shuffle(blocks)
    for block in blocks:
        a_pool.block_pool.free([block])
    cache = prefill(a_pool.new_sequence(), tokens)
    assert cache.table == blocks[:10] != sorted(blocks)[:10]
    assert_holds(cache, tokens)


# Rolling back


@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_truncate_equals_never_appended(block_size):
    """From and to every length, across borders, then onwards with other tokens."""
    first, other = random_tokens(13, 1), random_tokens(13, 2)
    for length in range(14):
        a_pool = pool(block_size=block_size)
        cache = prefill(a_pool.new_sequence(), first)
        cache.truncate(length)
        assert used(a_pool) == a_pool.block_pool.blocks_for(length)
        assert_holds(cache, first[:length])
        changed = torch.cat([first[:length], other[: 13 - length]])
        assert_holds(prefill(cache, changed), changed)


@pytest.mark.parametrize("accepted", range(5))
def test_a_round_of_speculation_leaves_what_a_prefill_gives(accepted):
    tokens, drafts = random_tokens(6), random_tokens(4, 3)
    cache = prefill(pool(block_size=4).new_sequence(), tokens)
    MODEL(drafts, cache)
    cache.truncate(6 + accepted)
    assert_holds(cache, torch.cat([tokens, drafts[:accepted]]))


@pytest.mark.parametrize("length", [-1, 6])
def test_truncate_to_what_is_not_there_is_refused(length):
    cache = prefill(pool().new_sequence(), random_tokens(5))
    with pytest.raises(ValueError, match="cannot truncate a cache of 5 tokens"):
        cache.truncate(length)
    assert_holds(cache, random_tokens(5))


def test_a_pass_that_breaks_off_does_not_count():
    a_pool, tokens = pool(block_size=4), random_tokens(7)
    cache = prefill(a_pool.new_sequence(), tokens[:3])

    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    handle = MODEL.layers[1].register_forward_hook(interrupt)
    try:
        with pytest.raises(Interrupted):
            MODEL(random_tokens(9, 5), cache)
    finally:
        handle.remove()
    assert cache.length == 3
    assert_holds(prefill(cache, tokens), tokens)
    assert used(a_pool) == 2


# Forks


@pytest.mark.parametrize("length", [3, 4, 5, 8])
def test_a_fork_copies_nothing_until_one_of_the_two_writes(length):
    a_pool, tokens = pool(block_size=4), random_tokens(length)
    cache = prefill(a_pool.new_sequence(), tokens)
    before = used(a_pool)
    twin = cache.fork()
    assert used(a_pool) == before
    assert twin.table == cache.table
    left, right = torch.cat([tokens, random_tokens(3, 7)]), torch.cat([tokens, random_tokens(3, 8)])
    assert_holds(prefill(twin, right), right)
    assert_holds(cache, tokens)
    assert_holds(prefill(cache, left), left)
    assert_holds(twin, right)
    full = length // 4
    assert cache.table[:full] == twin.table[:full]
    assert not set(cache.table[full:]) & set(twin.table[full:])
    cache.truncate(0)
    assert_holds(twin, right)
    twin.truncate(0)
    assert used(a_pool) == 0


def test_many_forks_of_a_fork():
    a_pool, tokens = pool(60, 4), random_tokens(6)
    caches = [prefill(a_pool.new_sequence(), tokens)]
    for _ in range(5):
        caches.append(caches[-1].fork())
    texts = [torch.cat([tokens, random_tokens(i, 20 + i)]) for i in range(6)]
    for cache, text in zip(caches, texts, strict=True):
        prefill(cache, text)
    for cache, text in zip(caches, texts, strict=True):
        assert_holds(cache, text)
    for cache in caches:
        cache.truncate(0)
    assert used(a_pool) == 0


def test_rolling_a_fork_back_into_a_shared_block_leaves_the_other_alone():
    a_pool, tokens = pool(block_size=4), random_tokens(8)
    cache = prefill(a_pool.new_sequence(), tokens)
    twin = cache.fork()
    twin.truncate(6)
    changed = torch.cat([tokens[:6], random_tokens(4, 9)])
    assert_holds(prefill(twin, changed), changed)
    assert_holds(cache, tokens)


# A known prefix


def serve(a_pool, prompt):
    """Prefill a prompt and let it go; returns how many of its tokens were known."""
    cache = a_pool.new_sequence(prompt)
    known = cache.length
    assert_holds(prefill(cache, prompt), prompt)
    cache.register(prompt)
    cache.truncate(0)
    return known


@pytest.mark.parametrize("length", range(1, 14))
def test_a_prompt_seen_before_is_computed_from_its_last_block_on(length):
    """One whose blocks are all known still has a token left to compute."""
    a_pool, prompt = pool(block_size=4), random_tokens(length).tolist()
    assert serve(a_pool, prompt) == 0
    assert serve(a_pool, prompt) == (length - 1) // 4 * 4
    assert used(a_pool) == 0


def test_equal_tokens_after_another_prefix_are_not_reused():
    a_pool, tail = pool(block_size=4), [5, 6, 7, 8, 9]
    serve(a_pool, [1, 1, 1, 1, *tail])
    assert serve(a_pool, [1, 1, 1, 2, *tail]) == 0
    assert serve(a_pool, [1, 1, 1, 1, *tail]) == 8


def test_a_block_that_was_freed_and_filled_anew_is_not_found():
    a_pool = pool(2, 4)
    serve(a_pool, [1, 2, 3, 4, 5])
    serve(a_pool, [6, 7, 8, 9, 10, 11, 12, 0])
    assert serve(a_pool, [1, 2, 3, 4, 5]) == 0


def test_a_rolled_back_block_is_not_found_under_what_it_held():
    a_pool = pool(block_size=4)
    cache = prefill(a_pool.new_sequence(), [1, 2, 3, 4])
    cache.register([1, 2, 3, 4])
    cache.truncate(3)
    prefill(cache, [1, 2, 3, 9])
    assert serve(a_pool, [1, 2, 3, 4, 5]) == 0
    assert_holds(cache, [1, 2, 3, 9])


def test_two_sequences_read_one_prefix_at_once():
    a_pool, prompt = pool(block_size=4), random_tokens(9).tolist()
    first = prefill(a_pool.new_sequence(prompt), prompt)
    first.register(prompt)
    second = prefill(a_pool.new_sequence(prompt), prompt)
    assert second.table[:2] == first.table[:2]
    assert used(a_pool) == 4
    first.truncate(0)
    assert_holds(second, prompt)


def test_only_what_is_held_can_be_offered_and_only_an_empty_cache_can_take():
    cache = prefill(pool(block_size=4).new_sequence(), [1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match="holds 5 tokens, not 6"):
        cache.register([1, 2, 3, 4, 5, 6])
    with pytest.raises(ValueError, match="holds 5 tokens: only an empty one"):
        cache.reuse([1, 2, 3, 4, 5])


# Space


def test_a_full_pool_says_so_and_nothing_is_lost():
    a_pool, tokens = pool(3, 4), random_tokens(6)
    cache, other = prefill(a_pool.new_sequence(), tokens), prefill(a_pool.new_sequence(), [1, 2, 3])
    before = list(cache.table)
    with pytest.raises(OutOfBlocks, match="asked for 1 blocks, 0 of 3 are free: free or shorten a sequence"):
        MODEL(random_tokens(3), cache)
    assert cache.table == before
    assert_holds(cache, tokens)
    assert_holds(other, [1, 2, 3])
    other.truncate(0)
    longer = torch.cat([tokens, random_tokens(3)])
    assert_holds(prefill(cache, longer), longer)


def test_a_fork_in_a_full_pool_cannot_write_and_harms_nobody():
    a_pool, tokens = pool(2, 4), random_tokens(6)
    cache = prefill(a_pool.new_sequence(), tokens)
    twin = cache.fork()
    with pytest.raises(OutOfBlocks, match="asked for 1 blocks, 0 of 2"):
        MODEL(random_tokens(1), twin)
    assert_holds(twin, tokens)
    assert_holds(cache, tokens)
    twin.truncate(0)
    prefill(cache, torch.cat([tokens, random_tokens(2)]))


def test_slots_of_a_sequence_are_distinct_and_in_its_blocks():
    a_pool = pool(block_size=4)
    cache, other = prefill(a_pool.new_sequence(), random_tokens(11)), prefill(a_pool.new_sequence(), random_tokens(5))
    slots = cache.slots(0, 11).tolist()
    assert len({*slots, *other.slots(0, 5).tolist()}) == 16
    assert slots == [cache.table[i // 4] * 4 + i % 4 for i in range(11)]
    assert cache.slots(4, 4).tolist() == []


def test_bytes_are_those_of_really_allocated_tensors():
    a_pool = pool(10, 4)
    layers, heads, head_dim, bytes_each = 2, 2, 6, 8
    assert a_pool.nbytes == 2 * layers * heads * 10 * 4 * head_dim * bytes_each
    assert a_pool.nbytes == a_pool.keys.nbytes + a_pool.values.nbytes
    cache = prefill(a_pool.new_sequence(), random_tokens(5))
    assert cache.nbytes == 2 * a_pool.nbytes // 10


def test_what_cannot_be_paged_is_refused():
    with pytest.raises(TypeError, match="ScriptedModel brings a cache of its own"):
        PagedKVPool(ScriptedModel(lambda tokens: [0.5, 0.5], 2), 4)
    with pytest.raises(ValueError, match="both must be at least 1"):
        PagedKVPool(MODEL, 0)


def cycle(a_pool, rng):
    """A request's life without a model: prompt, a fork, drafts that are rolled back."""
    prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 12))]
    cache = a_pool.new_sequence(prompt)
    take_in(cache, len(prompt) - cache.length)
    cache.register(prompt)
    twin = cache.fork()
    for one in (cache, twin):
        length = one.length
        take_in(one, 5)
        one.truncate(length + rng.randrange(6))
    for one in (twin, cache):
        one.truncate(0)


def take_in(cache, n):
    new = torch.zeros(2, n, 6, dtype=torch.float64)
    cache.reserve(n)
    cache.attend(0, new[:, :1], new, new)
    cache.advance(n)


def test_ten_thousand_requests_leave_no_block_used_and_memory_flat():
    a_pool, rng = pool(24, 4), random.Random(0)
    a_pool.keys.zero_()
    a_pool.values.zero_()
    traced = []
    tracemalloc.start()
    for i in range(10_000):
        cycle(a_pool, rng)
        assert used(a_pool) == 0
        if i in (500, 2500):
            gc.collect()
            traced.append(tracemalloc.get_traced_memory()[0])
        if i == 2500:
            tracemalloc.stop()
    # What the pool knows of its 24 blocks comes and goes; an empty list left behind by each request would be 112,000.
    assert traced[1] - traced[0] < 40_000
    assert a_pool.block_pool.num_free == 24


def test_blocks_that_are_reserved_weigh_as_much_as_filled_ones():
    made = pool(num_blocks=10, block_size=4)
    cache = made.new_sequence()
    assert cache.nbytes == 0
    cache.reserve(5)
    assert cache.nbytes == made.nbytes * 2 // 10
