"""Cache sizes, against published values and against the bytes that transformers really allocates."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arithmetic_models import KINDS, SHAPES, tiny_config

from specdec_ref.arithmetic import (
    LatentAttention,
    ModelShape,
    accelerator,
    attention_pairs,
    fit,
    kv_bytes,
    kv_bytes_per_token,
    layer_kv_bytes_per_token,
    model_shape,
    number_format,
    shape_from_config,
    token_passes,
    tokens_held,
)

PUBLISHED_BYTES_PER_TOKEN = {
    "smollm2-135m": 23_040,
    "smollm2-360m": 40_960,
    "llama-3.2-1b": 32_768,
    "llama-3-8b": 131_072,
    "llama-2-7b": 524_288,
    "llama-2-13b": 819_200,
    "llama-3-70b": 327_680,
    "llama-3.1-405b": 516_096,
    "qwen3-4b": 147_456,
    "deepseek-v3": 70_272,
    # more of the same kinds: a head_dim of its own, MQA, MLA, head_dim 96, experts
    "gemma-2-27b": 376_832,
    "gemma-2b": 18_432,
    "deepseek-v2-lite": 31_104,
    "phi-3-mini": 393_216,
    "mixtral-8x7b": 131_072,
    "gpt-oss-120b": 73_728,
}


@pytest.mark.parametrize("name", PUBLISHED_BYTES_PER_TOKEN)
def test_published_bytes_per_token_in_16_bit(name: str) -> None:
    assert kv_bytes_per_token(model_shape(name)) == PUBLISHED_BYTES_PER_TOKEN[name]


def test_grouped_query_attention_is_not_taken_for_multi_head() -> None:
    shape = model_shape("llama-3-70b")
    as_if_multi_head = 2 * 80 * 8192 * 2
    assert kv_bytes_per_token(shape) * 8 == as_if_multi_head


def test_head_dim_is_read_and_not_divided_from_the_hidden_size() -> None:
    divided = 2 * 36 * 8 * (2560 // 32) * 2
    assert divided == 92_160 != kv_bytes_per_token(model_shape("qwen3-4b"))


def test_latent_attention_caches_the_latent_and_not_every_head() -> None:
    shape = model_shape("deepseek-v3")
    expanded = kv_bytes_per_token(shape, latent=False)
    assert expanded == 61 * 128 * (128 + 64 + 128) * 2
    assert expanded / kv_bytes_per_token(shape) == pytest.approx(71.1, abs=0.1)
    # Taken as 128 heads of 7168/128 values it would still be 25 times too much.
    assert 2 * 61 * 7168 * 2 / kv_bytes_per_token(shape) == pytest.approx(24.9, abs=0.1)


def test_published_sequence_sizes() -> None:
    assert round(kv_bytes(model_shape("llama-2-13b"), 2048) / 1e9, 2) == 1.68
    assert round(kv_bytes(model_shape("llama-3-70b"), 8192) / 1e9, 2) == 2.68


# The name that every supported release of transformers takes.
OLD_NAME = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")


def allocated_bytes(cache: Any) -> int:
    """Bytes of the key and value tensors, counting memory that is really held (a latent has no second copy)."""
    return sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))


def forward(kind: str, n_tokens: int, batch: int, cache: Any = None) -> tuple[ModelShape, Any]:
    """The shape of a tiny model and the cache that it fills with `n_tokens`: a prompt, then two single steps."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = tiny_config(kind)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ids = torch.randint(0, config.vocab_size, (batch, n_tokens))
    with torch.no_grad():
        for start, stop in ((0, n_tokens - 2), (n_tokens - 2, n_tokens - 1), (n_tokens - 1, n_tokens)):
            cache = model(ids[:, start:stop], past_key_values=cache, use_cache=True).past_key_values
    return shape_from_config(config), cache


def caches_latent(cache: Any) -> bool:
    """Whether this release of transformers keeps MLA's latent (one head) or the expanded keys and values."""
    return bool(cache.layers[0].keys.shape[1] == 1)


@OLD_NAME
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_tokens", [5, 13])
def test_estimate_equals_the_bytes_of_a_really_allocated_cache(kind: str, n_tokens: int) -> None:
    """5 tokens stay inside the tiny models' windows of 6; 13 overflow them."""
    batch = 3
    shape, cache = forward(kind, n_tokens, batch)
    latent = not isinstance(shape.layers[0].attention, LatentAttention) or caches_latent(cache)
    # Between two steps the dynamic cache keeps what the next token will see beside itself: window - 1.
    expected = batch * sum(
        tokens_held(n_tokens, layer.attention.window and layer.attention.window - 1)
        * layer_kv_bytes_per_token(layer, "fp32", latent)
        for layer in shape.layers
    )
    assert allocated_bytes(cache) == expected
    if n_tokens == 5:
        assert allocated_bytes(cache) == kv_bytes(shape, n_tokens, batch, "fp32", latent=latent)


@OLD_NAME
@pytest.mark.parametrize(
    "kind", ["MHA", "GQA", "MQA", "sliding everywhere", "alternating windows", "windows by pattern"]
)
def test_estimate_equals_the_bytes_of_a_static_cache_windows_included(kind: str) -> None:
    from transformers import StaticCache

    for room in (5, 13):
        shape, cache = forward(kind, 4, 2, StaticCache(config=tiny_config(kind), max_cache_len=room))
        assert allocated_bytes(cache) == kv_bytes(shape, room, 2, "fp32")


def test_the_estimate_of_16_bit_caches_is_half_of_32_bit_and_allocated_so() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    config = tiny_config("GQA")
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        cache = model(torch.zeros(2, 9, dtype=torch.long), use_cache=True).past_key_values
    assert allocated_bytes(cache) == kv_bytes(shape_from_config(config), 9, 2, "bf16")


def test_a_window_stops_the_growth_of_its_layers_only() -> None:
    shape = model_shape("gemma-3-27b")
    full, sliding = 10, 52
    per_layer = 2 * 16 * 128 * 2
    assert kv_bytes(shape, 32_768) == per_layer * (full * 32_768 + sliding * 1024)
    assert kv_bytes(shape, 32_768) < 0.2 * 32_768 * kv_bytes_per_token(shape)


def test_quantised_bytes_include_the_scales() -> None:
    shape = model_shape("llama-3-70b")
    values = 2 * 80 * 8 * 128
    assert kv_bytes_per_token(shape, "fp8") == values
    assert kv_bytes_per_token(shape, "int8") == values + 2 * 80 * 8 * 2
    assert kv_bytes_per_token(shape, "int4-g64") == values // 2 + 2 * 80 * 8 * (128 // 64) * 4
    assert kv_bytes_per_token(shape, "int4-g64") == 92_160


def test_head_dim_96_quantises_in_groups_of_64_or_says_why_not() -> None:
    shape = model_shape("phi-3-mini")
    assert kv_bytes_per_token(shape, "int4-g64") == 2 * 32 * 32 * (48 + 2 * 4)
    with pytest.raises(ValueError, match="whole blocks of 32 values; a row of 80"):
        number_format("q8-0").nbytes(80)


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16, 32])
def test_ranks_beyond_the_heads_hold_replicas(tp: int) -> None:
    per_rank = kv_bytes_per_token(model_shape("llama-3-70b").shard(tp))
    assert per_rank == 327_680 // min(tp, 8)


def test_every_rank_holds_the_whole_latent() -> None:
    assert kv_bytes_per_token(model_shape("deepseek-v3").shard(8)) == 70_272


def test_paging_rounds_each_sequence_up_to_whole_blocks() -> None:
    shape = model_shape("smollm2-135m")
    assert [kv_bytes(shape, n, block_size=16) // 23_040 for n in (0, 1, 16, 17, 100)] == [0, 16, 16, 32, 112]
    assert kv_bytes(shape, 17, batch=3, block_size=16) == 3 * 32 * 23_040


@given(st.integers(0, 300), st.one_of(st.none(), st.integers(1, 80)), st.integers(1, 40))
def test_a_layer_holds_every_block_that_its_window_touches(context: int, window: int | None, block: int) -> None:
    seen = range(0 if window is None else max(0, context - window), context)
    assert tokens_held(context, window, block) == block * len({position // block for position in seen})


def test_a_window_may_touch_one_block_more_than_it_fills() -> None:
    assert (tokens_held(8192, 128, 16), tokens_held(8200, 128, 16)) == (128, 144)
    with pytest.raises(ValueError, match="give None for no window"):
        tokens_held(10, 0)


def test_a_cache_that_keeps_all_ignores_windows() -> None:
    """gpt-oss-20b, 32 sequences of 8,192 tokens: 12.00 GiB where windowed layers keep everything, else 6.09."""
    shape = model_shape("gpt-oss-20b")
    sizes = [kv_bytes(shape, 8192, 32, keep_all=keep_all) / 2**30 for keep_all in (True, False)]
    assert [round(size, 2) for size in sizes] == [12.0, 6.09]
    windowed, whole = (fit(shape, accelerator("h100-sxm"), 8192, keep_all=k).sequences for k in (False, True))
    assert 1.9 * whole < windowed < 2.1 * whole


@pytest.mark.parametrize("kind", ["sliding everywhere", "alternating windows", "windows by pattern"])
def test_the_adapter_for_hugging_face_models_keeps_all(kind: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from specdec_ref.models.huggingface import HuggingFaceModel

    config = tiny_config(kind)
    model = HuggingFaceModel(AutoModelForCausalLM.from_config(config).eval(), None)
    cache = model.new_cache(20)
    with torch.inference_mode():
        model.forward(torch.arange(13), cache)
    held = sum(t.nbytes for layer in cache.states.layers for t in (layer.keys, layer.values))
    shape = shape_from_config(config)
    assert held == kv_bytes(shape, 13, kv="fp32", keep_all=True) > kv_bytes(shape, 13, kv="fp32")


@settings(max_examples=60)
@given(
    SHAPES,
    st.integers(0, 300),
    st.integers(0, 6),
    st.integers(1, 32),
    st.sampled_from(["bf16", "fp8", "int8", "int4-g64"]),
)
def test_sizes_are_whole_monotone_and_additive(
    shape: ModelShape, context: int, batch: int, block: int, kv: str
) -> None:
    size = kv_bytes(shape, context, batch, kv, block_size=block)
    assert isinstance(size, int)
    assert kv_bytes(shape, context, batch, kv) <= kv_bytes(shape, context + 1, batch, kv)
    whole = [kv_bytes(shape, n, batch, kv, block_size=block, keep_all=True) for n in (context, context + 1)]
    assert size <= whole[0] <= whole[1]
    assert size == batch * kv_bytes(shape, context, 1, kv, block_size=block)
    assert kv_bytes(shape, context, batch, kv) <= size
    # At either end of what a layer keeps a block may be used in part.
    assert size < kv_bytes(shape, context, batch, kv) + max(1, batch) * 2 * block * kv_bytes_per_token(shape, kv)
    alone = [ModelShape("one", shape.vocab_size, shape.hidden_size, (layer,), shape.tied) for layer in shape.layers]
    assert size == sum(kv_bytes(one, context, batch, kv, block_size=block) for one in alone)
    assert kv_bytes(shape, context, batch, "int8") >= kv_bytes(shape, context, batch, "fp8")


def test_70b_does_not_fit_one_80_gb_chip_and_fits_two() -> None:
    shape, chip = model_shape("llama-3-70b"), accelerator("h100-sxm")
    alone = fit(shape, chip, 8192)
    assert not alone.weights_fit and alone.sequences == 0 and alone.free_bytes < 0
    pair = fit(shape, chip, 8192, tp=2)
    assert pair.weights_fit and pair.sequences == 1
    four = fit(shape, chip, 8192, tp=4)
    assert four.sequences == (72_000_000_000 - shape.shard(4).weight_bytes()) // (8192 * 327_680 // 4) == 54


def test_a_narrower_cache_holds_more_sequences() -> None:
    shape, chip = model_shape("llama-3-8b"), accelerator("l4")
    in_bf16, in_fp8 = (fit(shape, chip, 4096, kv=kv).sequences for kv in ("bf16", "fp8"))
    assert in_bf16 > 0 and 2 * in_bf16 <= in_fp8 <= 2 * in_bf16 + 1


@given(st.integers(1, 40), st.integers(0, 40))
def test_work_with_and_without_a_cache_equals_a_count_step_by_step(prompt: int, new: int) -> None:
    lengths = [prompt + step for step in range(new)]
    assert token_passes(prompt, new, cached=False) == sum(lengths)
    assert token_passes(prompt, new, cached=True) == (lengths[-1] if lengths else 0)
    triangle = [n * (n + 1) // 2 for n in lengths]
    assert attention_pairs(prompt, new, cached=False) == sum(triangle)
    assert attention_pairs(prompt, new, cached=True) == (triangle[-1] if triangle else 0)


def test_impossible_requests_are_refused() -> None:
    shape, chip = model_shape("smollm2-135m"), accelerator("l4")
    with pytest.raises(ValueError, match="context >= 0"):
        kv_bytes(shape, -1)
    with pytest.raises(ValueError, match="block_size >= 1"):
        kv_bytes(shape, 1, block_size=0)
    with pytest.raises(ValueError, match="batch must not be negative"):
        kv_bytes(shape, 1, -1)
    with pytest.raises(ValueError, match=r"share of the memory in \(0, 1\]"):
        fit(shape, chip, 10, usable=1.5)
    with pytest.raises(ValueError, match="at least one token"):
        fit(shape, chip, 0)
    with pytest.raises(ValueError, match="prompt >= 1"):
        token_passes(0, 1, cached=True)
