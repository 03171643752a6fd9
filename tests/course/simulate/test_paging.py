"""The waste of contiguous reservation and of paging, against counts made by hand and the published figures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_course.simulate.paging import (
    BuddyAllocator,
    block_utilisation,
    draw_lengths,
    fit_samples,
    reservation,
    serve_contiguous,
    serve_paged,
)
from specdec_ref.cache import BlockPool

POLICIES = ("max", "pow2", "oracle")


def shares(waste):
    return np.array([waste.token_states, waste.reserved, waste.internal, waste.external, waste.free])


@pytest.fixture(scope="module")
def traffic():
    return draw_lengths(400, np.random.default_rng(0))


# By hand. Prompts of 2, outputs of 3: two requests run, of 2, 3 and 4 tokens at the steps that count.


@pytest.mark.parametrize(
    ("policy", "internal", "external"),
    [("max", 2 * (8 - 5), 0), ("pow2", 2 * (6 - 5), 2 * (8 - 6)), ("oracle", 0, 2 * (8 - 5))],
)
def test_contiguous_by_hand(policy, internal, external):
    waste = serve_contiguous([2] * 5, [3] * 5, policy, capacity=16, max_len=8)
    assert shares(waste) * 16 == pytest.approx([6, 4, internal, external, 0])
    assert (waste.batch, waste.preemptions) == (2, 0)


def test_free_space_in_two_pieces_is_external():
    """Four chunks of 4; the first and third end after a step, and a request for 8 waits for the others."""
    waste = serve_contiguous([3, 1, 3, 1, 4], [1, 3, 1, 3, 4], "oracle", capacity=16)
    assert shares(waste) * 16 == pytest.approx([5, 3, 0, 8, 0])


def test_free_space_that_is_too_small_in_any_form_is_free():
    waste = serve_contiguous([2] * 5, [3] * 5, "max", capacity=20, max_len=8)
    assert shares(waste) * 20 == pytest.approx([6, 4, 6, 0, 4])


def test_paged_by_hand():
    """Blocks of 4, prompts and outputs of 3. Four requests start, at the fifth token the newer two yield. Once the
    older two have ended two steps count: lengths 4, 4, 3, 3 in four blocks, then 5, 5 in four blocks."""
    waste = serve_paged([3] * 7, [3] * 7, block_size=4, capacity=18, watermark=0)
    assert shares(waste) * 18 == pytest.approx([(14 + 10) / 2, (2 + 2) / 2, (0 + 4) / 2, 2, 0])
    assert (waste.batch, waste.preemptions) == (3, 4)


def test_a_watermark_keeps_blocks_for_those_that_run():
    """As above, but two blocks are left over at the start: two requests run, nobody yields."""
    waste = serve_paged([3] * 7, [3] * 7, block_size=4, capacity=18, watermark=0.5)
    assert (waste.batch, waste.preemptions) == (2, 0)
    assert waste.free == pytest.approx((8 + 8 + 0) / 3 / 18)


# What holds for any traffic


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    capacity=st.integers(32, 70),
    block_size=st.integers(1, 9),
)
def test_shares_add_up_and_are_never_negative(seed, capacity, block_size):
    prompts, outputs = np.random.default_rng(seed).integers(2, 13, size=(2, 60))
    runs = {policy: serve_contiguous(prompts, outputs, policy, capacity, max_len=24) for policy in POLICIES}
    runs["paged"] = serve_paged(prompts, outputs, block_size, capacity)
    for waste in runs.values():
        assert shares(waste).sum() == pytest.approx(1)
        assert shares(waste).min() >= 0 and waste.batch > 0
    assert runs["oracle"].internal == 0
    assert runs["paged"].external * capacity == pytest.approx(capacity % block_size)
    in_last_blocks = (runs["paged"].reserved + runs["paged"].internal) * capacity
    assert in_last_blocks <= runs["paged"].batch * (block_size - 1) + 1e-9


@settings(deadline=None, max_examples=60)
@given(
    capacity=st.integers(1, 100),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 40), st.integers(0, 99)), max_size=60),
)
def test_buddy_chunks_never_overlap_and_join_again(capacity, steps):
    memory = BuddyAllocator(capacity)
    at_first = {chunk: set(starts) for chunk, starts in memory.free.items()}
    held = []
    for take, size, which in steps:
        if take:
            start = memory.allocate(size)
            if start is not None:
                held.append((start, size))
            else:
                assert not any(starts for chunk, starts in memory.free.items() if chunk >= size)
        elif held:
            memory.release(*held.pop(which % len(held)))
        spans = [(start, memory.chunk(size)) for start, size in held]
        spans += [(start, chunk) for chunk, starts in memory.free.items() for start in starts]
        covered = sorted(slot for start, chunk in spans for slot in range(start, start + chunk))
        assert covered == list(range(capacity))
        assert all(start % chunk == 0 for start, chunk in spans)
    for start, size in held:
        memory.release(start, size)
    assert memory.free == at_first


@pytest.mark.parametrize(("policy", "slots"), [("max", 2048), ("pow2", 10 + 32), ("oracle", 35)])
def test_reservations_of_the_paper(policy, slots):
    assert reservation(10, 25, policy) == slots


def test_pow2_does_not_exceed_the_longest_sequence():
    assert reservation(1500, 400, "pow2") == 1500 + 512
    assert reservation(1600, 400, "pow2") == 2048


# Figures 2 and 13 of Kwon et al.: shares of the memory and the batch for OPT-13B on ShareGPT. Theirs are requests of
# ShareGPT that arrive at random, ours are drawn and always wait: the same picture, not the same digits.
PUBLISHED = {
    "max": (0.204, 0.133, 0.573, 0.089, 7.00),
    "pow2": (0.268, 0.179, 0.136, 0.416, 9.81),
    "oracle": (0.382, 0.252, 0.0, 0.366, 13.62),
    "paged": (0.963, None, None, None, 30.42),
}


@pytest.mark.parametrize("system", PUBLISHED)
def test_the_published_picture(system, traffic):
    waste = serve_paged(*traffic) if system == "paged" else serve_contiguous(*traffic, system)
    *parts, batch = PUBLISHED[system]
    ours = [waste.token_states, waste.reserved, waste.internal, waste.external + waste.free]
    for measured, published in zip(ours, parts, strict=True):
        assert published is None or abs(measured - published) < 0.1
    assert batch / 1.25 < waste.batch < batch * 1.25


def test_paging_carries_the_largest_batch_and_wastes_least(traffic):
    batches = [serve_contiguous(*traffic, policy).batch for policy in POLICIES] + [serve_paged(*traffic).batch]
    assert batches == sorted(batches)
    assert serve_paged(*traffic).batch > 4 * serve_contiguous(*traffic, "max").batch


def test_larger_blocks_waste_more(traffic):
    runs = [serve_paged(*traffic, block_size=size) for size in (1, 16, 64, 256)]
    last_blocks = [run.reserved + run.internal for run in runs]
    assert last_blocks[0] == 0 and last_blocks == sorted(last_blocks)
    assert last_blocks[1] < 0.04
    batches = [run.batch for run in runs]
    assert batches == sorted(batches, reverse=True)


def test_a_higher_watermark_preempts_less_often(traffic):
    runs = [serve_paged(*traffic, watermark=share) for share in (0, 0.05, 0.2)]
    assert runs[0].preemptions > 2 * runs[1].preemptions > 4 * runs[2].preemptions


# Utilisation


def test_utilisation_by_hand():
    assert block_utilisation([1, 4, 5], 1) == 1
    assert block_utilisation([1, 4, 5], 4) == 10 / 16
    assert block_utilisation([1, 4, 5], 256) == 10 / 768


def test_utilisation_loses_half_a_block_a_sequence(traffic):
    lengths = traffic[0] + traffic[1]
    for block_size in (8, 16, 32):
        expected = lengths.mean() / (lengths.mean() + (block_size - 1) / 2)
        assert block_utilisation(lengths, block_size) == pytest.approx(expected, abs=0.005)


# Sharing


@settings(deadline=None, max_examples=60)
@given(
    prompt=st.integers(1, 40),
    outputs=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    block_size=st.integers(1, 8),
)
def test_samples_share_the_full_blocks_of_their_prompt(prompt, outputs, block_size):
    shared, copied = BlockPool(500, block_size), BlockPool(500, block_size)
    assert fit_samples(shared, prompt, outputs) == len(outputs)
    assert fit_samples(copied, prompt, outputs, share=False) == len(outputs)
    each = [-(-(prompt + output) // block_size) for output in outputs]
    assert copied.num_used == sum(each)
    assert shared.num_used == sum(each) - (len(outputs) - 1) * (prompt // block_size)


def test_more_fits_when_the_prompt_is_shared():
    """100 blocks of 16: a prompt of 50 blocks and outputs of 10."""
    assert fit_samples(BlockPool(100), 800, [160] * 20, share=False) == 1
    pool = BlockPool(100)
    assert fit_samples(pool, 800, [160] * 20) == 5
    assert sorted({block.refs for block in pool.blocks}) == [1, 5]


# Drawing, and what is refused


def test_lengths_have_the_means_asked_for_and_fit_the_model():
    prompts, outputs = draw_lengths(20_000, np.random.default_rng(1), sigma=0.5)
    assert prompts.mean() == pytest.approx(161.31, rel=0.02)
    assert outputs.mean() == pytest.approx(337.99, rel=0.02)
    prompts, outputs = draw_lengths(5_000, np.random.default_rng(1), sigma=3.0)
    assert min(prompts.min(), outputs.min()) == 1 and (prompts + outputs).max() == 2048


def test_equal_seeds_draw_equal_lengths():
    first, again, other = (draw_lengths(50, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_what_cannot_be_simulated_is_refused():
    with pytest.raises(ValueError, match="memory was never short"):
        serve_contiguous([2, 2], [3, 3], "oracle", capacity=64)
    with pytest.raises(ValueError, match="memory was never short"):
        serve_paged([2, 2], [3, 3], capacity=64)
    with pytest.raises(ValueError, match="together up to 16"):
        serve_paged([10], [10], block_size=16, capacity=20)
    with pytest.raises(ValueError, match="reserves 24 slots, and 20 hold no such chunk"):
        serve_contiguous([2], [3], "max", capacity=20, max_len=24)
    with pytest.raises(ValueError, match="from 1 token"):
        serve_contiguous([2], [0], "max")
    with pytest.raises(ValueError, match="give 'max', 'pow2' or 'oracle'"):
        serve_contiguous([2], [3], "least")


@pytest.mark.parametrize("system", ["max", "oracle", "paged"])
def test_a_watcher_sees_what_the_running_requests_hold(system, traffic):
    """Pieces never overlap, hold the tokens there are, and lead to the means that are returned."""
    tokens, batch = [], []

    def watch(held):
        held = list(held)
        slots = [slot for h in held for start, size in h.pieces for slot in range(start, start + size)]
        assert len(set(slots)) == len(slots) and max(slots) < 15_700
        assert all(h.length <= h.final and h.length <= sum(size for _, size in h.pieces) for h in held)
        tokens.append(sum(h.length for h in held))
        batch.append(len(held))

    prompts, outputs = (lengths[:100] for lengths in traffic)
    serve = serve_paged if system == "paged" else lambda *a, **k: serve_contiguous(*a, system, **k)
    waste = serve(prompts, outputs, watch=watch)
    assert max(batch) >= waste.batch and max(tokens) / 15_700 >= waste.token_states
