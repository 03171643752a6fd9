"""The Triton kernel's arithmetic, through triton's interpreter on a CPU; on a GPU where there is one."""

import os

import pytest
import torch

from specdec_ref.kernels.attention import attention, paged_attention

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed: the kernel stays untested")

from specdec_ref.kernels import triton_paged as triton_attention  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"


def scattered(length, block_size, n_heads, head_dim, dtype, seed=0):
    """A sequence in a pool, its blocks in any order; what is not its own is NaN. Returns keys, values and table."""
    generator = torch.Generator().manual_seed(seed)
    n_blocks = -(-length // block_size)
    table = torch.randperm(n_blocks + 3, generator=generator)[:n_blocks]
    pools = torch.full((2, n_heads, n_blocks + 3, block_size, head_dim), torch.nan, dtype=dtype)
    slots = (table[:, None] * block_size + torch.arange(block_size)).flatten()[:length]
    pools.flatten(2, 3)[:, :, slots] = torch.randn(2, n_heads, length, head_dim, generator=generator).to(dtype)
    return (*pools.to(DEVICE), table.to(DEVICE))


def queries(rows, length, n_heads, head_dim, dtype, seed=1):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(n_heads, rows, head_dim, generator=generator).to(dtype)
    mask = torch.rand(rows, length, generator=generator) < 0.5
    mask[:, 0] = True
    return q.to(DEVICE), mask.to(DEVICE)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 64, 65, 150])
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("rows", [1, 3, 16, 21])
@pytest.mark.parametrize("masked", [False, True])
def test_float32_equals_the_plain_function(length, block_size, rows, masked):
    pools = scattered(length, block_size, 2, 8, torch.float32)
    q, mask = queries(rows, length, 2, 8, torch.float32)
    mask = mask if masked else None
    want = paged_attention(q, *pools, length, mask)
    got = triton_attention.paged_attention(q, *pools, length, mask)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parts", [1, 2, 7, 100])
@pytest.mark.parametrize("length", [1, 5, 65, 150, 440])
@pytest.mark.parametrize("rows", [1, 21])
@pytest.mark.parametrize("masked", [False, True])
def test_any_number_of_parts(parts, length, rows, masked):
    """Of 1 to 7 tiles of keys, so there are often more parts wanted than tiles or even positions."""
    pools = scattered(length, 16, 2, 8, torch.float32)
    q, mask = queries(rows, length, 2, 8, torch.float32)
    mask = mask if masked else None
    got = triton_attention.paged_attention(q, *pools, length, mask, parts=parts)
    torch.testing.assert_close(got, paged_attention(q, *pools, length, mask), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("tiles", "programs", "processors", "parts"),
    [
        (31, 8, 132, 1),  # too short
        (64, 8, 132, 4),  # as many as are worth it
        (1024, 8, 132, 33),  # as many as run at once
        (1024, 264, 132, 1),
        (1024, 5000, 132, 1),  # a long prompt fills the device by its rows
        (4096, 1, 132, 128),  # no more than the second kernel holds
    ],
)
def test_parts_are_chosen_to_fill_the_device(tiles, programs, processors, parts):
    assert triton_attention.choose_parts(tiles, programs, processors) == parts


def test_only_a_context_of_several_parts_takes_the_second_kernel(monkeypatch):
    monkeypatch.setattr(triton_attention, "_combine", None)
    for length, parts in [(600, 1), (256, None), (64, 7)]:
        pools = scattered(length, 16, 2, 8, torch.float32)
        q, _ = queries(1, length, 2, 8, torch.float32)
        got = triton_attention.paged_attention(q, *pools, length, parts=parts)
        torch.testing.assert_close(got, paged_attention(q, *pools, length), rtol=1e-5, atol=1e-5)
    for length, parts in [(65, 2), (2100, None)]:
        pools = scattered(length, 16, 2, 8, torch.float32)
        q, _ = queries(1, length, 2, 8, torch.float32)
        with pytest.raises(TypeError, match="not subscriptable"):
            triton_attention.paged_attention(q, *pools, length, parts=parts)


def test_a_long_context_is_split_by_itself():
    pools = scattered(2100, 16, 2, 8, torch.float32)
    q, mask = queries(4, 2100, 2, 8, torch.float32)
    got = triton_attention.paged_attention(q, *pools, 2100, mask)
    torch.testing.assert_close(got, paged_attention(q, *pools, 2100, mask), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_rows_that_see_nothing_in_whole_parts(parts):
    """Row i sees a few positions of tile i alone; the last row sees everything."""
    pools = scattered(300, 16, 2, 8, torch.float32)
    q, _ = queries(6, 300, 2, 8, torch.float32)
    tile = torch.arange(300, device=DEVICE) // 64
    mask = (tile == torch.arange(6, device=DEVICE)[:, None]) & (torch.arange(300, device=DEVICE) % 3 == 0)
    mask[5] = True
    want = paged_attention(q, *pools, 300, mask)
    for form in (mask, torch.zeros(mask.shape, device=DEVICE).masked_fill(~mask, -torch.inf)):
        got = triton_attention.paged_attention(q, *pools, 300, form, parts=parts)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parts", [1, 3])
def test_inputs_in_another_layout(parts):
    """As a model leaves them: the heads not the outermost in memory."""
    pools = scattered(150, 16, 2, 8, torch.float32)
    q, mask = queries(5, 150, 2, 8, torch.float32)
    want = paged_attention(q, *pools, 150, mask)
    q, keys, values, mask = (t.transpose(0, 1).contiguous().transpose(0, 1) for t in (q, *pools[:2], mask))
    assert not any(t.is_contiguous() for t in (q, keys, values, mask))
    got = triton_attention.paged_attention(q, keys, values, pools[2], 150, mask, parts=parts)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parts", [0, -1, 129])
def test_a_number_of_parts_that_cannot_be_is_refused(parts):
    pools = scattered(5, 2, 2, 8, torch.float32)
    q, _ = queries(1, 5, 2, 8, torch.float32)
    with pytest.raises(ValueError, match="parts must be from 1 to 128"):
        triton_attention.paged_attention(q, *pools, 5, parts=parts)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("head_dim", [6, 64, 96, 128])
def test_any_head_dim(head_dim, parts):
    pools = scattered(70, 16, 3, head_dim, torch.float32)
    q, mask = queries(9, 70, 3, head_dim, torch.float32)
    got = triton_attention.paged_attention(q, *pools, 70, mask, parts=parts)
    torch.testing.assert_close(got, paged_attention(q, *pools, 70, mask), rtol=1e-5, atol=1e-6)


def test_a_row_that_sees_nothing_in_the_first_tiles():
    pools = scattered(150, 16, 2, 8, torch.float32)
    q, mask = queries(4, 150, 2, 8, torch.float32)
    mask[:, :140] = False
    mask[:, 149] = True
    got = triton_attention.paged_attention(q, *pools, 150, mask)
    torch.testing.assert_close(got, paged_attention(q, *pools, 150, mask), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parts", [1, 2])
def test_large_scores_do_not_overflow(parts):
    pools = scattered(100, 16, 2, 8, torch.float32)
    q, _ = queries(4, 100, 2, 8, torch.float32)
    got = triton_attention.paged_attention(q * 1e3, *pools, 100, parts=parts)
    torch.testing.assert_close(got, paged_attention(q * 1e3, *pools, 100), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        pytest.param(
            torch.bfloat16,
            marks=pytest.mark.skipif(not CUDA, reason="needs a GPU: the interpreter takes bfloat16 for integers"),
        ),
    ],
)
@pytest.mark.parametrize("parts", [1, 3])
def test_sixteen_bits_err_as_little_as_the_plain_function(dtype, parts):
    length = 200
    keys, values, table = scattered(length, 16, 3, 64, dtype)
    q, mask = queries(24, length, 3, 64, dtype)
    exact = paged_attention(q.double(), keys.double(), values.double(), table, length, mask)
    plain = paged_attention(q, keys, values, table, length, mask).double()
    kernel = triton_attention.paged_attention(q, keys, values, table, length, mask, parts=parts).double()
    assert (kernel - exact).norm() < 2 * (plain - exact).norm()


def test_float64_is_refused():
    pools = scattered(5, 2, 2, 8, torch.float64)
    with pytest.raises(TypeError, match="sums in float32"):
        triton_attention.paged_attention(torch.ones(2, 1, 8, dtype=torch.float64, device=DEVICE), *pools, 5)


def test_the_model_runs_on_it():
    """Through the cache, in float32: the same logits as with the plain function, over passes of several sizes."""
    from support.tiny_models import tiny_llama

    from specdec_ref.cache.paged import PagedKVPool

    model = tiny_llama(1).float().to(DEVICE)
    ids = torch.randint(13, (40,), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    logits = []
    for function in (paged_attention, triton_attention.paged_attention):
        cache = PagedKVPool(model, 20, 3, function).new_sequence()
        logits.append(torch.cat([model(part, cache) for part in ids.split([7, 1, 20, 1, 5, 6])]))
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)


def test_attention_is_what_both_compute():
    """Softmax written out, on a table that is in order."""
    keys, values, table = scattered(16, 16, 2, 8, torch.float32)
    q, _ = queries(3, 16, 2, 8, torch.float32)
    k, v = keys[:, table[0]], values[:, table[0]]
    want = torch.softmax(q @ k.transpose(1, 2) / 8**0.5, -1) @ v
    torch.testing.assert_close(attention(q, k, v), want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(triton_attention.paged_attention(q, keys, values, table, 16), want, rtol=1e-5, atol=1e-6)
