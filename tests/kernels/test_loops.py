"""The compiled loops: the numbers of the plain operations, and each row by itself to the last bit."""

import math

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.packed_models import divisible_llama, needs_packing, stored
from torch.nn import functional as F

from specdec_ref import NGramDrafter, SpeculativeEngine, load_model
from specdec_ref.cache.paged import PagedKVPool
from specdec_ref.kernels import attention as attention_module
from specdec_ref.kernels import loops, rowwise
from specdec_ref.kernels.masks import additive
from specdec_ref.kernels.stored import WIDE
from specdec_ref.models.fused import FusedLayer, FusedRMSNorm
from specdec_ref.models.layout import keep_stored, pack
from specdec_ref.models.llama import Llama, causal_mask, rotary_tables, rotate

BF16 = torch.bfloat16


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def off(got, exact):
    """Relative distance."""
    return ((got.double() - exact).norm() / exact.norm()).item()


@given(st.floats(width=32))
@settings(max_examples=500, deadline=None)
def test_rounding_is_torchs(x):
    got = torch.tensor(int(loops.narrow(np.float32(x)))).to(torch.uint16).view(BF16)
    want = torch.tensor(x, dtype=torch.float32).to(BF16)
    assert torch.equal(got, want) or (got.isnan() and want.isnan())
    assert loops.widen(np.uint16(got.view(torch.uint16).item())) == got.float().item() or got.isnan()


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFF8000])
def test_what_is_no_number_stays_none_whatever_its_bits(bits):
    """Rounded as a number, one of these would become 0."""
    x = np.array([bits], np.uint32).view(np.float32)[0]
    assert np.isnan(x) and np.isnan(loops.widen(np.uint16(loops.narrow(x))))


@given(st.floats(-87, 88, width=32))
@settings(max_examples=500, deadline=None)
def test_exp_is_off_by_rounding_alone(x):
    assert loops.exp(np.float32(x)) == pytest.approx(math.exp(x), rel=3e-7)


def test_exp_at_its_ends():
    """0 for what a mask hides: a weight of 1e-38 in its place would let hidden keys change a row."""
    assert loops.exp(np.float32(-math.inf)) == 0 and loops.exp(np.float32(-1e4)) == 0
    assert loops.exp(np.float32(0)) == 1
    assert 1e38 < loops.exp(np.float32(1e9)) < math.inf


def test_keys_and_values_that_lie_apart_are_put_together_first():
    """Every second half of wider rows, and the transpose of `[length, heads, dim]`."""
    q, wide = draw(2, 3, 8), draw(2, 10, 16, seed=1)
    for keys, values in ((wide[..., :8], wide[..., 8:]), (wide.transpose(0, 1)[:2, :, :8],) * 2):
        assert not keys.is_contiguous()
        queries = q[:, : keys.shape[1]]
        apart = rowwise.attention(queries, keys, values)
        assert torch.equal(apart, rowwise.attention(queries, keys.contiguous(), values.contiguous()))


def exact_attention(q, keys, values, mask=None):
    mask = mask.double() if mask is not None and mask.dtype != torch.bool else mask
    return F.scaled_dot_product_attention(q.double()[None], keys.double()[None], values.double()[None], mask)[0]


def masks(rows, length):
    """Nothing hidden, half hidden as True and False, and the same as 0 and -inf."""
    seen = torch.rand(rows, length, generator=torch.Generator().manual_seed(4)) < 0.5
    seen[:, 0] = True
    return {"none": None, "bool": seen, "additive": additive(seen, BF16)}


@pytest.mark.parametrize("rows", [1, 3, 25])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("dim", [2, 8, 16, 64, 80, 128])
@pytest.mark.parametrize("masked", ["none", "bool", "additive"])
def test_attention_errs_as_little_as_pytorchs(rows, length, dim, masked):
    q, keys, values = draw(2, rows, dim), draw(2, 300, dim, seed=1)[:, :length], draw(2, length, dim, seed=2)
    mask = masks(rows, length)[masked]
    exact = exact_attention(q, keys, values, mask)
    plain = F.scaled_dot_product_attention(q[None], keys[None], values[None], mask)[0]
    assert off(rowwise.attention(q, keys, values, mask), exact) < max(1.5 * off(plain, exact), 0.003)


@pytest.mark.parametrize("fault", ["another scale", "mask not looked at", "the next head's keys", "one key less"])
def test_wrong_attention_would_be_seen(fault):
    """The comparison above can fail: each fault moves the result by far more than it allows."""
    q, keys, values = draw(2, 3, 64), draw(2, 200, 64, seed=1), draw(2, 200, 64, seed=2)
    mask = masks(3, 200)["bool"]
    exact = exact_attention(q, keys, values, mask)
    wrong = {
        "another scale": lambda: rowwise.attention(q * 1.05, keys, values, mask),
        "mask not looked at": lambda: rowwise.attention(q, keys, values),
        "the next head's keys": lambda: rowwise.attention(q, keys.flip(0), values, mask),
        "one key less": lambda: rowwise.attention(q, keys[:, 1:], values[:, 1:], mask[:, 1:]),
    }[fault]()
    assert off(wrong, exact) > 0.01


def test_large_scores_do_not_overflow():
    q, keys, values = draw(2, 3, 64) * 1e3, draw(2, 100, 64, seed=1), draw(2, 100, 64, seed=2)
    got = rowwise.attention(q, keys, values)
    assert off(got, exact_attention(q, keys, values)) < 0.003


@pytest.mark.parametrize("dim", [16, 64, 128])
@pytest.mark.parametrize("length", [1, 50, 63, 64, 120])
def test_a_row_has_the_same_bits_alone_and_among_others(dim, length):
    """n new tokens after `length`: each row as if it were alone and the later keys did not exist."""
    n = 12
    q, keys, values = draw(3, n, dim), draw(3, length + n, dim, seed=1), draw(3, length + n, dim, seed=2)
    together = rowwise.attention(q, keys, values, additive(causal_mask(n, length), BF16))
    for i in range(n):
        end = length + i + 1
        assert torch.equal(rowwise.attention(q[:, i : i + 1], keys[:, :end], values[:, :end]), together[:, i : i + 1])


def test_which_attention_takes_which_rows(monkeypatch):
    taken = []
    monkeypatch.setattr(rowwise, "attention", lambda q, *_: taken.append(q.shape[1]) or q)
    few = attention_module.FEW_ROWS
    for rows, dtype in [(1, BF16), (few, BF16), (few + 1, BF16), (1, torch.float32), (1, torch.float64)]:
        q = torch.ones(1, rows, 8, dtype=dtype)
        attention_module.attention(q, torch.ones(1, 4, 8, dtype=dtype), torch.ones(1, 4, 8, dtype=dtype))
    assert taken == [1, few]


@pytest.mark.parametrize("which", range(3))
def test_what_is_trained_gets_its_gradient(which):
    tensors = [draw(2, 4, 8, seed=i) for i in range(3)]
    tensors[which].requires_grad_()
    attention_module.attention(*tensors).float().square().sum().backward()
    assert tensors[which].grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((2, 3, 8), (2, 5, 8), (2, 4, 8), None), "don't fit"),
        (((2, 3, 8), (1, 5, 8), (1, 5, 8), None), "don't fit"),
        (((2, 3, 8), (2, 5, 16), (2, 5, 16), None), "don't fit"),
        (((2, 3, 8), (2, 5, 8), (2, 5, 8), (3, 6)), r"a mask of \(3, 6\) for 3 rows and 5 keys"),
        (((2, 3, 8), (2, 5, 8), (2, 5, 8), (2, 5)), r"a mask of \(2, 5\) for 3 rows and 5 keys"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes, words):
    *tensors, mask = (s if s is None else torch.ones(s, dtype=BF16) for s in shapes)
    with pytest.raises(ValueError, match=words):
        rowwise.attention(*tensors, mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_formats_are_refused_before_a_byte_is_read(dtype):
    norm = FusedRMSNorm(torch.nn.RMSNorm(8).to(BF16))
    with pytest.raises(TypeError, match=f"bfloat16 on the CPU, not {dtype} on cpu: .* load it again"):
        norm(torch.ones(1, 8, dtype=dtype))
    with pytest.raises(TypeError, match=r"not torch\.bfloat16 on meta"):
        norm(torch.ones(1, 8, dtype=BF16, device="meta"))


@pytest.mark.parametrize("width", [1, 5, 63, 64, 65, 576])
@pytest.mark.parametrize("eps", [None, 1e-5, 0.5])
@pytest.mark.parametrize("rows", [1, 7])
def test_the_norm_of_a_sum(width, eps, rows):
    plain = torch.nn.RMSNorm(width, eps).to(BF16)
    plain.weight.data = draw(width, seed=3)
    x, more = draw(rows, width), draw(rows, width, seed=1)
    total, got = FusedRMSNorm(plain).of_sum(x, more)
    assert torch.equal(total, x + more)
    t, small = (x + more).double(), torch.finfo(BF16).eps if eps is None else eps
    exact = t / (t.square().mean(-1, keepdim=True) + small).sqrt() * plain.weight.double()
    assert off(got, exact) < 0.004 and torch.equal(FusedRMSNorm(plain)(total), got)
    assert all(torch.equal(FusedRMSNorm(plain)(total[i : i + 1]), got[i : i + 1]) for i in range(rows))


@needs_packing
@pytest.mark.parametrize("n", [1, 2, 5, WIDE - 1, WIDE, WIDE + 3])
def test_a_fused_layer_computes_what_the_plain_one_does(n):
    """Against float64 it errs no more than the plain layer in bfloat16 does."""
    exact = divisible_llama().double()
    plain, fused = (divisible_llama().to(BF16) for _ in range(2))
    for model in (plain, fused):
        model.cos, model.sin = rotary_tables(model.config, BF16)
    exact.cos, exact.sin = rotary_tables(exact.config, torch.float64)
    pack(fused)
    assert all(isinstance(layer, FusedLayer) for layer in fused.layers)
    ids = torch.randint(48, (n + 20,), generator=torch.Generator().manual_seed(n))
    logits = []
    for model in (exact, plain, fused):
        cache = model.new_cache(n + 20)
        model(ids[:20], cache)
        logits.append(model(ids[20:], cache))
    assert off(logits[2], logits[0]) < 1.5 * off(logits[1], logits[0])


def test_rotation_is_the_plain_one():
    config = divisible_llama().config
    cos, sin = (table[3:8] for table in rotary_tables(config, BF16))
    h, kv, d = config.n_heads, config.n_kv_heads, config.head_dim
    qkv = draw(5, (h + 2 * kv) * d)
    q, k, v = (torch.empty(heads, 5, d, dtype=BF16) for heads in (h, kv, kv))
    loops.rotate(qkv, cos, sin, q, k, v, 5, h, kv, d)
    heads = qkv.view(5, h + 2 * kv, d)
    turned = rotate(heads[:, : h + kv].float(), cos.float(), sin.float()).to(BF16).transpose(0, 1)
    torch.testing.assert_close(torch.cat([q, k]), turned, rtol=0.01, atol=1e-6)
    assert torch.equal(v, heads[:, h + kv :].transpose(0, 1))


def test_the_gate_is_silu_times_up():
    gate_up = torch.cat([draw(3, 100) * 30, draw(3, 100, seed=1)], 1)
    out = torch.empty(3, 100, dtype=BF16)
    loops.gate(gate_up, out, 3, 100)
    gate, up = gate_up.double().chunk(2, 1)
    exact = F.silu(gate) * up
    torch.testing.assert_close(out.double(), exact, rtol=0.004, atol=1e-30)


def test_a_folder_that_nothing_can_be_written_to_only_costs_time(monkeypatch):
    """Numba raises RuntimeError where it finds no place for what it compiled."""
    compiled, asked = numba.cfunc, []

    def cfunc(signature, cache=False, **options):
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available for file")
        return compiled(signature, **options)

    monkeypatch.setattr(numba, "cfunc", cfunc)
    again = loops.Loop(loops.gate.function, loops.gate.signature)
    out, want = torch.empty(1, 4, dtype=BF16), torch.empty(1, 4, dtype=BF16)
    monkeypatch.setattr(loops, "trouble", None)
    with pytest.warns(RuntimeWarning, match="no locator available"):
        again(draw(1, 8), out, 1, 4)
    loops.gate(draw(1, 8), want, 1, 4)
    assert asked == [True, False] and torch.equal(out, want)


def rows_that_differ(model, ids, context, new_cache, sizes=range(2, WIDE)):
    """For each number of tokens in a pass, how many of them have other logits than one by one."""
    with torch.inference_mode():
        cache = new_cache()
        model(ids[:context], cache)
        alone = torch.cat([model(ids[i : i + 1], cache) for i in range(context, context + max(sizes))])
        found = {}
        for n in sizes:
            cache.truncate(context)
            logits = model(ids[context : context + n], cache)
            found[n] = int((logits != alone[:n]).any(-1).sum())
    return found


@pytest.mark.parametrize("paged", [False, True])
def test_in_four_bits_a_token_has_the_same_logits_alone_and_beside_drafts(paged):
    blocks, _ = stored(divisible_llama())
    model = keep_stored(divisible_llama().to(BF16), blocks)
    ids = torch.randint(48, (140,), generator=torch.Generator().manual_seed(1))
    new_cache = (lambda: PagedKVPool(model, 20).new_sequence()) if paged else (lambda: model.new_cache(140))
    assert set(rows_that_differ(model, ids, 60, new_cache).values()) == {0}


def test_a_difference_would_be_seen(monkeypatch):
    """With PyTorch's attention in place of ours logits do differ: the test above has power."""
    blocks, _ = stored(divisible_llama())
    model = keep_stored(divisible_llama().to(BF16), blocks)
    ids = torch.randint(48, (140,), generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(attention_module, "FEW_ROWS", 0)

    def readable(tokens, cache):
        return Llama.forward_pass(model, tokens, cache).logits

    assert sum(rows_that_differ(readable, ids, 60, lambda: model.new_cache(140)).values()) > 0


@pytest.mark.model
def test_smollm_in_four_bits_has_the_same_logits_alone_and_beside_drafts():
    model = load_model()
    text = (
        "Rivers carry water from the mountains to the sea. On their way they cut valleys, and where they slow down "
        "they leave sand and gravel. A delta grows where a river meets still water and lets go of what it carried. " * 3
    )
    ids = torch.tensor(model.tokenizer.encode(text))
    assert set(
        rows_that_differ(model, ids, 70, lambda: model.new_cache(len(ids)), (2, 3, 4, 5, 8, 12, 31)).values()
    ) == {0}


@pytest.mark.model
def test_smollm_in_four_bits_writes_the_same_tokens_with_and_without_lookup():
    """Not up to near-ties: the same. The first text is made for lookup, the second one is not."""
    model = load_model()
    for prompt in (
        "Write this list again, with numbers: apples, pears, plums, cherries, apples, pears, plums, cherries.",
        "Tell me of a city by the sea.",
    ):
        chat = [{"role": "user", "content": prompt}]
        plain, lookup = (
            SpeculativeEngine(model, NGramDrafter(), gamma=g).generate(chat, max_new_tokens=60, temperature=0)
            for g in (0, 8)
        )
        assert lookup.tokens == plain.tokens
        assert lookup.stats.accepted > 0 or "city" in prompt
