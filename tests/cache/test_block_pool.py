"""Faults that users of paged caches met, one by one."""

import copy
import random
import tracemalloc

import numpy as np
import pytest

from specdec_ref.cache import block_pool
from specdec_ref.cache.block_pool import BlockPool, OutOfBlocks


def state(pool):
    return [(b.refs, b.hash, b.key) for b in pool.blocks], list(pool.free_queue), copy.deepcopy(pool.cached)


def serve(pool, tokens, extra=""):
    """Prefill a prompt; returns its table and how many of its tokens came from the prefix cache."""
    table = pool.reuse_prefix(tokens, extra)
    reused = len(table) * pool.block_size
    pool.extend(table, reused, len(tokens))
    pool.register(table, tokens, extra)
    return table, reused


def slots(pool, table, length):
    return [table[i // pool.block_size] * pool.block_size + i % pool.block_size for i in range(length)]


# Allocation


def test_all_blocks_are_handed_out_once_then_the_error_counts():
    pool = BlockPool(3, 4)
    assert sorted(pool.allocate(2) + pool.allocate(1)) == [0, 1, 2]
    with pytest.raises(OutOfBlocks, match="asked for 1 blocks, 0 of 3 are free") as error:
        pool.allocate(1)
    assert (error.value.asked, error.value.free) == (1, 0)
    assert pool.allocate(0) == []


def test_allocation_is_all_or_nothing_and_evicts_nothing_when_it_fails():
    pool = BlockPool(4, 2)
    table, _ = serve(pool, [1, 2, 3, 4])
    pool.free(table)
    before = state(pool)
    with pytest.raises(OutOfBlocks, match="asked for 5 blocks, 4 of 4 are free"):
        pool.allocate(5)
    assert state(pool) == before
    assert pool.reuse_prefix([1, 2, 3, 4, 5]) == table


def test_least_recently_freed_goes_first():
    pool = BlockPool(4, 1)
    a, b, c, d = pool.allocate(4)
    for block in (c, a, d, b):
        pool.free([block])
    assert pool.allocate(4) == [c, a, d, b]


@pytest.mark.parametrize("sizes", [(0, 16), (4, 0), (-1, 4)])
def test_an_empty_pool_is_refused(sizes):
    with pytest.raises(ValueError, match="both must be at least 1"):
        BlockPool(*sizes)


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="count of 0 or more"):
        BlockPool(4, 2).allocate(-1)


# Freeing


@pytest.mark.parametrize("wrong", ["double", "twice in one call", "past the end", "negative", "never allocated"])
def test_a_wrong_free_is_refused_and_changes_nothing(wrong):
    pool = BlockPool(6, 2)
    kept, gone = pool.allocate(2), pool.allocate(2)
    pool.free(gone)
    before = state(pool)
    blocks = {
        "double": gone,
        "twice in one call": [kept[0], kept[1], kept[0]],
        "past the end": [kept[0], 6],
        "negative": [kept[0], -5],
        "never allocated": [kept[0], 5],
    }[wrong]
    with pytest.raises(ValueError, match="unknown, free already, or named twice"):
        pool.free(blocks)
    assert state(pool) == before


def test_a_free_block_cannot_be_shared():
    pool = BlockPool(2, 2)
    table, _ = serve(pool, [1, 2])
    pool.free(table)
    before = state(pool)
    with pytest.raises(ValueError, match="free already"):
        pool.share(table)
    assert state(pool) == before


def test_a_shared_block_outlives_its_first_owner():
    pool = BlockPool(3, 2)
    table = pool.allocate(2)
    twin = pool.share(table)
    pool.free(table)
    assert pool.num_used == 2
    assert not set(pool.allocate(1)) & set(twin)
    pool.free(twin)
    assert pool.num_used == 1


@pytest.mark.parametrize("evicted", range(5))
def test_the_end_of_a_prompt_is_evicted_before_its_start(evicted):
    pool = BlockPool(4, 2)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    pool.free(serve(pool, prompt)[0])
    pool.allocate(evicted)
    assert len(pool.reuse_prefix([*prompt, 9])) == 4 - evicted


# The prefix cache


def test_a_reused_block_is_not_found_under_its_old_hash():
    pool = BlockPool(2, 2)
    pool.free(serve(pool, [1, 2, 3, 4])[0])
    pool.free(serve(pool, [5, 6, 7, 8])[0])
    assert pool.reuse_prefix([1, 2, 3, 4, 9]) == []
    assert len(pool.cached) == 2
    assert len(pool.reuse_prefix([5, 6, 7, 8, 9])) == 2


@pytest.mark.parametrize("length", range(1, 14))
def test_a_wholly_cached_prompt_still_computes_a_token(length):
    pool = BlockPool(8, 4)
    prompt = list(range(length))
    pool.free(serve(pool, prompt)[0])
    table, reused = serve(pool, prompt)
    assert reused == (length - 1) // 4 * 4 < length
    assert len(table) == pool.blocks_for(length)


def test_an_empty_prompt_has_an_empty_table():
    assert serve(BlockPool(2, 2), []) == ([], 0)


def test_a_free_block_that_is_found_keeps_its_hash_and_leaves_the_queue():
    pool = BlockPool(3, 2)
    pool.free(serve(pool, [1, 2, 3])[0])
    first = pool.reuse_prefix([1, 2, 3])
    assert pool.reuse_prefix([1, 2, 4]) == first
    assert not set(pool.allocate(2)) & set(first)


def test_found_blocks_are_not_counted_as_free_too():
    pool = BlockPool(3, 2)
    pool.free(serve(pool, [1, 2, 3, 4, 5])[0])
    table = pool.reuse_prefix([1, 2, 3, 4, 5])
    assert (len(table), pool.num_free) == (2, 1)
    before = state(pool)
    with pytest.raises(OutOfBlocks, match="asked for 2 blocks, 1 of 3 are free"):
        pool.extend(table, 4, 8)
    assert state(pool) == before


def test_equal_tokens_after_another_prefix_are_another_block():
    pool = BlockPool(8, 2)
    serve(pool, [1, 1, 7, 7])
    serve(pool, [2, 2])
    assert len(pool.reuse_prefix([2, 2, 7, 7, 0])) == 1
    assert pool.reuse_prefix([7, 7, 0]) == []


def test_the_extra_key_separates_equal_prompts():
    pool = BlockPool(8, 2)
    table, _ = serve(pool, [1, 2, 3], "adapter A")
    assert pool.reuse_prefix([1, 2, 3], "adapter B") == []
    assert pool.reuse_prefix([1, 2, 3]) == []
    assert pool.reuse_prefix([1, 2, 3], "adapter A") == table[:1]


@pytest.mark.parametrize("first", [0, 1])
def test_of_equal_blocks_one_is_found_whichever_is_evicted(first):
    """Two sequences took in the same prompt before either was registered; one ends, and its blocks are filled anew."""
    pool = BlockPool(4, 2)
    tables = [[], []]
    for table in tables:
        pool.extend(table, 0, 4)
    for table in tables:
        pool.register(table, [1, 2, 3, 4])
    pool.free(tables[first])
    serve(pool, [5, 6, 7, 8])
    assert pool.reuse_prefix([1, 2, 3, 4, 9]) == tables[1 - first]


def test_a_hash_collision_is_a_miss(monkeypatch):
    monkeypatch.setattr(block_pool, "hash_block", lambda key: b"the same for all")
    pool = BlockPool(8, 2)
    serve(pool, [1, 2])
    assert pool.reuse_prefix([3, 4, 5]) == []
    assert pool.reuse_prefix([1, 2, 1, 2, 5]) == [0]
    pool.free([0])
    serve(pool, [3, 4])
    assert pool.reuse_prefix([1, 2, 5]) == [0] and len(pool.reuse_prefix([3, 4, 5])) == 1


def test_hashes_are_those_of_the_tokens_whatever_integers_hold_them():
    pool = BlockPool(4, 2)
    table, _ = serve(pool, np.array([1, 2, 3]))
    assert pool.reuse_prefix([1, 2, 3]) == table[:1]


def test_key_fields_cannot_run_into_each_other():
    keys = [(b"", (1, 23), ""), (b"", (12, 3), ""), (b"", (1, 2, 3), ""), (b"1", (23,), ""), (b"", (1,), "23")]
    assert len({block_pool.hash_block(key) for key in keys}) == len(keys)


def test_a_half_full_block_is_never_offered():
    pool = BlockPool(4, 4)
    table, _ = serve(pool, [1, 2, 3, 4, 5, 6])
    assert [pool.blocks[b].hash is not None for b in table] == [True, False]


def test_of_two_equal_blocks_the_newer_stays_when_the_older_goes():
    pool = BlockPool(3, 2)
    older, newer = pool.allocate(1), pool.allocate(1)
    pool.register(older, [1, 2])
    pool.register(newer, [1, 2])
    pool.free(older)
    pool.free(pool.allocate(2))
    assert pool.reuse_prefix([1, 2, 3]) == newer


def test_more_tokens_than_the_table_holds_are_not_registered():
    pool = BlockPool(4, 2)
    before = state(pool)
    with pytest.raises(ValueError, match="tokens for 2 full blocks, but a table of 0"):
        pool.register([], [1, 2, 3, 4])
    assert state(pool) == before


# Growing, rolling back, copying


def test_a_failed_append_keeps_what_the_sequence_holds():
    pool = BlockPool(3, 2)
    table, _ = serve(pool, [1, 2, 3, 4])
    held, before = list(table), state(pool)
    with pytest.raises(OutOfBlocks, match="asked for 2 blocks, 1 of 3 are free"):
        pool.extend(table, 4, 8)
    assert (table, state(pool)) == (held, before)
    pool.free(table)
    assert pool.num_used == 0


def test_an_append_that_lacks_only_the_copy_changes_nothing():
    pool = BlockPool(3, 2)
    table = pool.allocate(2)
    twin = pool.share(table)
    before = state(pool)
    with pytest.raises(OutOfBlocks, match="asked for 2 blocks, 1 of 3 are free"):
        pool.extend(twin, 3, 5)
    assert (twin, state(pool)) == (table, before)


def test_slots_of_all_sequences_are_distinct():
    pool = BlockPool(12, 3)
    tables = [serve(pool, [i] * 7)[0] for i in range(4)]
    taken = [slot for table in tables for slot in slots(pool, table, 7)]
    assert len(set(taken)) == 28 and all(0 <= slot < 36 for slot in taken)


@pytest.mark.parametrize("length", range(13))
@pytest.mark.parametrize("grown", range(13))
def test_rolling_back_leaves_the_blocks_of_never_having_appended(length, grown):
    pool = BlockPool(8, 4)
    table: list[int] = []
    pool.extend(table, 0, length)
    held = list(table)
    pool.extend(table, length, length + grown)
    assert len(table) == -(-(length + grown) // 4)
    pool.truncate(table, length)
    assert table == held and pool.num_used == len(held)


def test_rolling_back_to_zero_frees_all():
    pool = BlockPool(4, 2)
    table, _ = serve(pool, [1, 2, 3])
    pool.truncate(table, 0)
    assert table == [] and pool.num_used == 0


@pytest.mark.parametrize("length", [-1, -3, 5])
def test_rolling_back_outside_the_table_is_refused(length):
    pool = BlockPool(4, 2)
    table, _ = serve(pool, [1, 2, 3])
    before = state(pool)
    with pytest.raises(ValueError, match=f"cannot truncate a table of 2 blocks to {length} tokens"):
        pool.truncate(table, length)
    assert state(pool) == before and len(table) == 2


@pytest.mark.parametrize(("length", "new_length"), [(3, 2), (2, 4), (5, 6), (-1, 2)])
def test_a_length_that_the_table_was_not_made_for_is_refused(length, new_length):
    pool = BlockPool(4, 2)
    table, _ = serve(pool, [1, 2, 3])
    with pytest.raises(ValueError, match="cannot extend a table of 2 blocks"):
        pool.extend(table, length, new_length)


def test_a_freed_table_cannot_grow():
    pool = BlockPool(4, 2)
    table, _ = serve(pool, [1, 2, 3])
    pool.free(table)
    with pytest.raises(ValueError, match="free already"):
        pool.extend(table, 3, 4)


def test_a_registered_block_that_is_rolled_into_loses_its_hash_when_written_not_before():
    pool = BlockPool(4, 4)
    table, _ = serve(pool, [1, 2, 3, 4])
    pool.truncate(table, 2)
    again = pool.reuse_prefix([1, 2, 3, 4, 5])
    assert again == table
    pool.free(again)
    assert pool.extend(table, 2, 4) == []
    assert pool.reuse_prefix([1, 2, 3, 4, 5]) == []
    pool.register(table, [1, 2, 9, 9])
    assert pool.reuse_prefix([1, 2, 9, 9, 5]) == table


def test_a_registered_block_that_others_hold_is_copied_and_keeps_its_hash():
    pool = BlockPool(4, 4)
    table, _ = serve(pool, [1, 2, 3, 4])
    twin = pool.share(table)
    pool.truncate(twin, 2)
    assert pool.extend(twin, 2, 3) == [(table[0], twin[0])]
    assert twin != table
    assert pool.reuse_prefix([1, 2, 3, 4, 5]) == table


def test_fork_copies_one_block_for_each_writer_but_the_last():
    pool = BlockPool(16, 4)
    parent, _ = serve(pool, [1, 2, 3, 4, 5, 6])
    forks = [parent] + [pool.share(parent) for _ in range(3)]
    assert pool.num_used == 2
    copies = [pool.extend(table, 6, 7) for table in forks]
    assert [len(c) for c in copies] == [1, 1, 1, 0]
    assert pool.num_used == 1 + 4
    assert len({table[-1] for table in forks}) == 4 and len({table[0] for table in forks}) == 1


def test_nothing_is_copied_at_a_block_border_or_for_no_tokens():
    pool = BlockPool(8, 2)
    table, _ = serve(pool, [1, 2])
    assert pool.extend(pool.share(table), 2, 3) == []
    half, _ = serve(pool, [3])
    twin = pool.share(half)
    assert pool.extend(twin, 1, 1) == [] and twin == half


# Leaks


def test_ten_thousand_requests_leave_nothing_behind():
    pool = BlockPool(24, 4)
    draw = random.Random(0)
    starved = reused_tokens = 0

    def request():
        nonlocal starved, reused_tokens
        tokens = [draw.randrange(2) for _ in range(draw.randrange(1, 20))]
        table, reused = serve(pool, tokens)
        reused_tokens += reused
        twin, twin_length = pool.share(table), len(tokens)
        try:
            for _ in range(3):
                drafted, accepted = draw.randrange(8), draw.randrange(8)
                pool.extend(table, len(tokens), len(tokens) + drafted)
                pool.truncate(table, len(tokens) + min(drafted, accepted))
                tokens += [draw.randrange(2) for _ in range(min(drafted, accepted))]
                pool.register(table, tokens)
            pool.extend(twin, twin_length, twin_length + draw.randrange(80))
        except OutOfBlocks:
            starved += 1
        assert 0 <= pool.num_used <= 24
        pool.free(twin)
        pool.free(table)
        assert pool.num_used == 0

    for _ in range(1000):
        request()
    tracemalloc.start()
    for _ in range(1000):
        request()
    early = tracemalloc.get_traced_memory()[0]
    for _ in range(8000):
        request()
    late = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert pool.num_free == 24 and set(pool.free_queue) == set(range(24))
    assert len(pool.cached) <= 24
    assert starved > 100 and reused_tokens > 100
    assert late - early < 4096


def test_blocks_that_nobody_holds_cannot_be_offered_for_reuse():
    """Another sequence may be handed them at any time, and writes other tokens."""
    pool = BlockPool(4, 2)
    table = pool.allocate(2)
    pool.free(table)
    with pytest.raises(ValueError, match="free already"):
        pool.register(table, [1, 2, 3, 4])
    assert not pool.cached
