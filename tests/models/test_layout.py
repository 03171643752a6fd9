"""Weights in 4 bits as a GGUF file has them, and in 16 laid out for the CPU: the same matrices, rounding apart."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.packed_models import divisible_llama, needs_packing, stored
from support.tiny_models import tiny_llama

from specdec_ref import NGramDrafter, SpeculativeEngine, load_model
from specdec_ref.kernels.linear import PackedLinear
from specdec_ref.kernels.packing import Blocks
from specdec_ref.kernels.quantise import GROUP
from specdec_ref.kernels.stored import WIDE, StoredLinear, TiedHead
from specdec_ref.models.layout import bytes_a_pass, keep_stored, pack
from specdec_ref.models.names import MATRICES
from specdec_ref.models.store import blocks as gguf_blocks

KINDS = {"Q4_0": gguf_blocks.read_q4_0, "Q4_1": gguf_blocks.read_q4_1, "Q8_0": gguf_blocks.read_q8_0}


def quantised(kind, rows, columns, seed=0):
    """Bytes of a random matrix as GGUF stores it, and the matrix that the gguf library reads from them."""
    import gguf

    values = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    type_ = getattr(gguf.GGMLQuantizationType, kind)
    raw = gguf.quantize(values, type_)
    return raw, torch.from_numpy(np.array(gguf.dequantize(raw, type_)))


@pytest.mark.parametrize("kind", KINDS)
@given(rows=st.sampled_from([1, 3, 16]), groups=st.integers(1, 4), seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_blocks_stand_for_what_the_gguf_library_reads(kind, rows, groups, seed):
    raw, want = quantised(kind, rows, groups * GROUP, seed)
    blocks = KINDS[kind](raw)
    assert blocks.bits == 8 or blocks.levels.max() <= 15
    torch.testing.assert_close(torch.from_numpy(blocks.dequantised()), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("change", ["levels swapped in a byte", "minimum left out", "scale of the next block"])
def test_a_wrong_reading_would_be_seen(change):
    """The comparison above can fail: each slip moves the weights by far more than its tolerance."""
    raw, want = quantised("Q4_1", 16, 4 * GROUP)
    b = gguf_blocks.read_q4_1(raw)
    wrong = {
        "levels swapped in a byte": Blocks(
            b.levels.reshape(16, 4, 2, 16)[:, :, ::-1].reshape(16, -1), b.scale, b.minimum
        ),
        "minimum left out": Blocks(b.levels, b.scale, 0 * b.scale),
        "scale of the next block": Blocks(b.levels, np.roll(b.scale, 1, 1), b.minimum),
    }[change]
    assert abs(wrong.dequantised() - want.numpy()).max() > 0.05


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2, 5, WIDE - 1])
def test_the_product_is_off_by_rounding_alone(kind, rows):
    raw, weight = quantised(kind, 48, 4 * GROUP)
    linear = StoredLinear(KINDS[kind](raw), torch.nn.Identity())
    x = torch.randn(rows, 4 * GROUP, generator=torch.Generator().manual_seed(1)).bfloat16()
    exact = x.double() @ weight.double().T
    off = (linear(x).double() - exact).norm() / exact.norm()
    plain = (torch.nn.functional.linear(x, weight.bfloat16()).double() - exact).norm() / exact.norm()
    assert off < max(2.5 * plain, 0.004), f"4-bit product off by {off:.4f}, weights in bfloat16 by {plain:.4f}"


def test_many_rows_go_to_the_wide_product():
    raw, _ = quantised("Q4_1", 16, GROUP)
    wide = torch.nn.Linear(GROUP, 16, bias=False).to(torch.bfloat16)
    linear = StoredLinear(gguf_blocks.read_q4_1(raw), wide)
    x = torch.ones(WIDE, GROUP, dtype=torch.bfloat16)
    assert torch.equal(linear(x), wide(x))
    assert not torch.equal(linear(x[:-1]), wide(x[:-1]))


def test_a_shape_that_the_kernel_does_not_take_is_refused():
    raw, _ = quantised("Q4_1", 8, GROUP)
    with pytest.raises(ValueError, match="rows must divide by 16"):
        StoredLinear(gguf_blocks.read_q4_1(raw), torch.nn.Identity())


@needs_packing
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_packed_matrices_give_the_same_numbers(rows):
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    plain = torch.nn.functional.linear(x, weight)
    torch.testing.assert_close(PackedLinear(weight)(x), plain, rtol=0.01, atol=0.02)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_a_model_in_four_bits_is_the_one_whose_weights_they_are(kind):
    """Logits as near to those of the float32 weights as the bfloat16 model's are, times three."""
    blocks, exact = stored(divisible_llama(), kind)
    import copy

    sixteen = copy.deepcopy(exact).to(torch.bfloat16)
    sixteen.tokenizer = "a tokenizer"
    four = keep_stored(copy.deepcopy(sixteen), blocks)
    assert four.tokenizer == "a tokenizer"
    assert all(isinstance(getattr(layer, name), StoredLinear) for layer in four.layers for name in MATRICES)
    ids = torch.arange(20) % 48
    want = exact(ids, exact.new_cache(20))
    off = [((m(ids, m.new_cache(20)).float() - want).norm() / want.norm()).item() for m in (sixteen, four)]
    assert off[1] < 3 * off[0] + 0.01, off


@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_speculation_in_four_bits_writes_what_plain_decoding_writes_or_diverges_at_a_near_tie(gamma):
    from specdec_ref.measure.neartie import compare_greedy

    blocks, exact = stored(divisible_llama())
    model = keep_stored(exact.to(torch.bfloat16), blocks)
    plain, fast = SpeculativeEngine(model), SpeculativeEngine(model, NGramDrafter(trust=None), gamma)
    accepted = 0
    for start in range(6):
        prompt = [(start * 7 + i * i) % 48 for i in range(12)]
        a, b = plain.generate(prompt, 40), fast.generate(prompt, 40)
        accepted += b.stats.accepted
        found = compare_greedy(a.tokens, b.tokens, model, prompt)
        assert found.kind in ("same", "near-tie"), str(found)
    assert accepted > 10


def test_a_matrix_that_is_not_stored_in_blocks_stays_as_it_is():
    blocks, exact = stored(divisible_llama())
    del blocks["model.layers.1.self_attn.k_proj.weight"]
    model = keep_stored(exact.to(torch.bfloat16), blocks)
    assert isinstance(model.layers[0].qkv, StoredLinear) and not isinstance(model.layers[1].qkv, StoredLinear)
    with pytest.raises(ValueError, match="weights='full'"):
        keep_stored(divisible_llama().to(torch.bfloat16), {})


@needs_packing
def test_packing_leaves_other_formats_alone():
    assert isinstance(pack(tiny_llama(1)).head, torch.nn.Linear)
    packed = pack(divisible_llama().to(torch.bfloat16))
    assert isinstance(packed.layers[0].down, PackedLinear)
    c = packed.config
    assert bytes_a_pass(packed) == 2 * c.n_weights  # the head is the embedding, and is read once


def test_the_tied_head_is_the_embedding():
    embedding = torch.nn.Embedding(48, 64)
    x = torch.randn(3, 64)
    torch.testing.assert_close(TiedHead(embedding)(x), x @ embedding.weight.T)


@pytest.mark.parametrize("tied", [True, False])
def test_the_number_of_weights_is_what_there_is(tied):
    model = divisible_llama(tied=tied)
    assert model.config.n_weights == sum(p.numel() for p in model.parameters())


@pytest.mark.model
def test_the_default_keeps_four_bits_and_explicit_formats_do_not():
    assert isinstance(load_model().head, StoredLinear)
    assert load_model().dtype == torch.bfloat16
    assert not isinstance(load_model(weights="full").head, StoredLinear)
    assert isinstance(load_model(dtype="float32").head, torch.nn.Linear)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"weights": "q5"}, "give 'auto', 'full', 'q4' or 'q8'"),
        ({"weights": "q4", "dtype": "float32"}, "leave dtype out"),
        ({"weights": "q4", "name": "some/model"}, "needs a GGUF file"),
        ({"weights": "q4", "device": "cuda"}, "runs on a CPU"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_loaded(options, message):
    with pytest.raises(ValueError, match=message):
        load_model(**options)


@pytest.mark.model
def test_smollm_in_four_bits_is_as_near_to_float32_as_in_sixteen(smollm):
    """The worth of the 4-bit path is its speed; its price, against the same file multiplied out, is this."""
    exact, four = load_model(dtype="float32"), load_model(weights="q4")
    text = "The lighthouse keeper climbed the stairs every night to light the lamp, and every morning he went down."
    ids = torch.tensor(four.tokenizer.encode(text))
    with torch.inference_mode():
        want, *got = [m(ids, m.new_cache(len(ids))).float() for m in (exact, smollm, four)]
    off = [((g - want).norm() / want.norm()).item() for g in got]
    same = [(g.argmax(-1) == want.argmax(-1)).float().mean().item() for g in got]
    print(
        f"\nlogits off float32's: bfloat16 {off[0]:.2%}, 4 bits {off[1]:.2%}; same argmax {same[0]:.0%}, {same[1]:.0%}"
    )
    assert off[1] < 2 * off[0]
    assert same[1] > 0.85
