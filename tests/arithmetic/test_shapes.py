"""Parameters, bytes and FLOP of models, against published counts and against models that transformers builds."""

import dataclasses
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arithmetic_models import KINDS, SHAPES, TINY, tiny_config
from support.paths import ROOT

from specdec_ref.arithmetic import (
    Attention,
    Experts,
    LatentAttention,
    Mlp,
    ModelShape,
    UnknownName,
    model_catalogue,
    model_shape,
    shape_from_config,
)
from specdec_ref.arithmetic.attention import causal_pairs, kv_heads_per_rank
from specdec_ref.arithmetic.configs import EXPERT_COUNTS, families
from specdec_ref.arithmetic.feedforward import expected_experts


def parameters_of(config: Any) -> int:
    """What transformers allocates: parameters (tied ones once) and DeepSeek-V3's load-balancing buffers."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    balancing = sum(b.numel() for name, b in model.named_buffers() if "correction_bias" in name)
    return sum(p.numel() for p in model.parameters()) + balancing


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_equal_those_of_a_model_that_transformers_builds(kind: str) -> None:
    config = tiny_config(kind)
    expected = parameters_of(config)
    assert shape_from_config(config).parameters == expected
    assert shape_from_config(config.to_dict()).parameters == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_json_gives_the_same_shape_as_the_config_object(kind: str) -> None:
    model_type, entries = KINDS[kind]
    raw = shape_from_config(TINY | entries | {"model_type": model_type}, name="x")
    assert raw == shape_from_config(tiny_config(kind), name="x")


@pytest.mark.parametrize("name", model_catalogue())
def test_every_catalogue_model_has_its_published_number_of_parameters(name: str) -> None:
    row = model_catalogue()[name]
    assert model_shape(name).parameters == row["parameters"]
    assert row["source"].startswith("https://") and len(row["date"]) == 7


PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-4b": 4_022_468_096,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "gemma-2-2b": 2_614_341_888,
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-20b": 20_914_757_184,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name: str) -> None:
    assert model_shape(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", ["llama-3-70b", "gemma-3-27b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-120b"])
def test_large_catalogue_models_equal_what_transformers_would_allocate(name: str) -> None:
    from transformers import AutoConfig

    assert model_shape(name).parameters == parameters_of(AutoConfig.for_model(**model_catalogue()[name]["config"]))


PUBLISHED_WINDOWS = {
    "mistral-7b-v0.1": (4096, 32, 32),
    "mistral-7b-v0.3": (None, 0, 32),
    "phi-3-mini": (2047, 32, 32),
    "gemma-2-2b": (4096, 13, 26),
    "gemma-2-9b": (4096, 21, 42),
    "gemma-2-27b": (4096, 23, 46),
    "gemma-3-1b": (512, 22, 26),
    "gemma-3-4b": (1024, 29, 34),
    "gemma-3-12b": (1024, 40, 48),
    "gemma-3-27b": (1024, 52, 62),
    "gpt-oss-20b": (128, 12, 24),
    "gpt-oss-120b": (128, 18, 36),
}
"""Model: (its window, layers that have it, all layers), from the hub's config.json files."""


@pytest.mark.parametrize("name", model_catalogue())
def test_published_windows_and_the_layers_that_have_them(name: str) -> None:
    windows = [layer.attention.window for layer in model_shape(name).layers]
    window, sliding, layers = PUBLISHED_WINDOWS.get(name, (None, 0, len(windows)))
    assert len(windows) == layers and windows.count(None) == layers - sliding
    assert set(windows) <= {None, window}


def active_parameters(shape: ModelShape) -> int:
    """Parameters without the experts that a token does not use (the embedding table counts whole)."""
    idle = sum((m.count - m.used) * m.rows * m.cols for m in shape.matrices() if m.used is not None)
    idle_biases = sum(
        layer.mlp.bias * (layer.mlp.n_experts - layer.mlp.top_k) * (2 * layer.mlp.intermediate + shape.hidden_size)
        for layer in shape.layers
        if isinstance(layer.mlp, Experts)
    )
    return shape.parameters - idle - idle_biases


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),
        ("mixtral-8x22b", 39),
        ("deepseek-v3", 37),
        ("qwen3-235b-a22b", 22),
        ("qwen3-30b-a3b", 3.3),
    ],
)
def test_active_parameters_round_to_the_published_ones(name: str, billions: float) -> None:
    assert active_parameters(model_shape(name)) / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(("name", "active", "gib"), [("gpt-oss-20b", 3.61, 12.8), ("gpt-oss-120b", 5.13, 60.8)])
def test_gpt_oss_agrees_with_its_model_card(name: str, active: float, gib: float) -> None:
    """Card of August 2025, table 1: active parameters leave the embedding out; checkpoint sizes in GiB."""
    shape = model_shape(name)
    embedding = shape.vocab_size * shape.hidden_size
    assert round((active_parameters(shape) - embedding) / 1e9, 2) == active
    assert round(shape.weight_bytes("gpt-oss") / 2**30, 1) == gib


def test_the_default_target_streams_269_mb_in_bf16_and_about_95_mb_as_its_file_has_it() -> None:
    shape = model_shape("smollm2-135m")
    assert shape.weight_bytes_read(1) == 2 * 134_515_008 == 269_030_016
    assert shape.weight_bytes_read(1, "gguf-q4-1") == pytest.approx(95e6, rel=0.02)


def test_4_bit_bytes_are_the_sum_of_blocks_heads_and_norms() -> None:
    matrices = 30 * (576 * (576 + 2 * 192) + 576 * 576 + 3 * 576 * 1536)
    by_hand = matrices // 32 * 20 + 49152 * 576 // 32 * 34 + 61 * 576 * 4
    assert model_shape("smollm2-135m").weight_bytes("gguf-q4-1") == by_hand


@pytest.mark.model
def test_4_bit_bytes_equal_those_of_the_tensors_in_the_real_file() -> None:
    import gguf

    from specdec_ref.models.store.catalog import GGUF_NAME
    from specdec_ref.models.store.fetch import fetch

    tensors = gguf.GGUFReader(fetch("smollm2-135m") / GGUF_NAME).tensors
    assert model_shape("smollm2-135m").weight_bytes("gguf-q4-1") == sum(int(t.n_bytes) for t in tensors)


def test_of_an_untied_embedding_only_the_rows_of_the_tokens_are_read() -> None:
    shape = model_shape("llama-3-8b")
    embedding = 128_256 * 4096
    assert shape.weight_bytes_read(1) == 2 * (shape.parameters - embedding + 4096)
    assert shape.weight_bytes_read(6) - shape.weight_bytes_read(1) == 5 * 4096 * 2
    assert shape.weight_bytes() == 2 * shape.parameters


def test_a_tied_embedding_is_read_once_as_the_head() -> None:
    shape = model_shape("llama-3.2-1b")
    assert shape.weight_bytes_read(1) == shape.weight_bytes_read(100) == shape.weight_bytes() == 2 * shape.parameters


def test_one_token_reads_top_k_experts_and_many_tokens_read_them_all() -> None:
    shape = model_shape("mixtral-8x7b")
    idle = 32 * 6 * 3 * 4096 * 14336
    embedding = 32_000 * 4096
    assert shape.weight_bytes_read(1) == 2 * (shape.parameters - idle - embedding + 4096)
    assert shape.weight_bytes_read(200) == pytest.approx(2 * (shape.parameters - embedding), rel=1e-3)


def test_expected_experts_against_counting_every_routing() -> None:
    """4 experts, 2 a token, 3 tokens: the mean over all 6^3 equally likely routings."""
    from itertools import combinations, product

    choices = list(combinations(range(4), 2))
    counts = [len(set().union(*routing)) for routing in product(choices, repeat=3)]
    assert expected_experts(4, 2, 3) == pytest.approx(sum(counts) / len(counts))


@given(st.integers(1, 256), st.data(), st.integers(1, 64))
def test_expected_experts_stay_between_k_and_all_and_grow(n: int, data: st.DataObject, tokens: int) -> None:
    k = data.draw(st.integers(1, n))
    assert expected_experts(n, k, 1) == pytest.approx(k)
    assert k - 1e-9 <= expected_experts(n, k, tokens) <= min(n, k * tokens) + 1e-9
    assert expected_experts(n, k, tokens) <= expected_experts(n, k, tokens + 1)


def test_verifying_on_a_mixture_reads_more_weights_than_decoding() -> None:
    sparse, dense = model_shape("qwen3-30b-a3b"), model_shape("qwen3-32b")
    assert sparse.weight_bytes_read(6) > 2 * sparse.weight_bytes_read(1)
    assert dense.weight_bytes_read(6) < 1.001 * dense.weight_bytes_read(1)


def test_flops_of_70b_are_2_a_weight_and_grow_with_the_context() -> None:
    shape = model_shape("llama-3-70b")
    embedding = 128_256 * 8192
    in_products = shape.parameters - embedding - shape.vectors
    # The token itself is one of those attended to: 4 d_head FLOP a query head a layer.
    assert shape.flops_per_token(0) == 2 * in_products + 80 * 64 * 4 * 128
    assert shape.flops_per_token(1000) - shape.flops_per_token(0) == 1000 * 80 * 64 * 4 * 128


def test_flops_of_a_tiny_model_equal_those_that_torch_counts() -> None:
    """Eager attention computes all n x n pairs and masks the future ones, which we do not count."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(1)
    config = AutoConfig.for_model("llama", **TINY, attn_implementation="eager")
    model = AutoModelForCausalLM.from_config(config).eval()
    n = 7
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.arange(n)[None])
    shape = shape_from_config(config)
    per_pair = sum(layer.attention.flops_per_pair() for layer in shape.layers)
    masked_out = n * n - causal_pairs(n)
    # Some releases of transformers multiply positions by inverse frequencies as a product; it is no weight of ours.
    rotary = n * config.hidden_size // config.num_attention_heads
    assert counter.get_total_flops() - (shape.flops(n) + masked_out * per_pair) in (0, rotary)


def test_latent_attention_absorbed_costs_more_flop_and_fewer_bytes_than_expanded() -> None:
    mla = model_shape("deepseek-v3").layers[0].attention
    assert mla.flops_per_pair(absorbed=True) == 2 * 128 * (512 + 64 + 512)
    assert mla.flops_per_pair(absorbed=False) == 2 * 128 * (128 + 64 + 128)


@given(st.integers(0, 40), st.integers(0, 40), st.one_of(st.none(), st.integers(1, 50)))
def test_causal_pairs_equal_the_sum_over_tokens(n: int, context: int, window: int | None) -> None:
    seen = [context + i for i in range(1, n + 1)]
    assert causal_pairs(n, context, window) == sum(s if window is None else min(s, window) for s in seen)


def test_logits_at_one_position_save_the_other_heads() -> None:
    shape = model_shape("llama-3-8b")
    assert shape.flops(10) - shape.flops(10, logits=1) == 9 * 2 * 128_256 * 4096
    with pytest.raises(ValueError, match="cannot give logits"):
        shape.flops(2, logits=3)


@settings(max_examples=50)
@given(SHAPES, st.integers(1, 30), st.integers(0, 100))
def test_counts_are_additive_over_layers(shape: ModelShape, n: int, context: int) -> None:
    """One more layer adds the same, whatever stands before it."""
    ends = dataclasses.replace(shape, layers=shape.layers[:1])
    doubled = dataclasses.replace(shape, layers=shape.layers + shape.layers[:1])
    twice = dataclasses.replace(shape, layers=shape.layers[:1] * 2)
    for count in (
        lambda s: s.parameters,
        lambda s: s.weight_bytes(),
        lambda s: s.weight_bytes_read(n),
        lambda s: s.flops(n, context),
    ):
        assert count(doubled) - count(shape) == count(twice) - count(ends)


@settings(max_examples=50)
@given(SHAPES, st.integers(1, 30), st.integers(0, 100))
def test_flops_and_bytes_grow_with_tokens_and_context(shape: ModelShape, n: int, context: int) -> None:
    assert shape.flops(n + 1, context) > shape.flops(n, context)
    assert shape.flops(n, context + 1) >= shape.flops(n, context)
    assert shape.weight_bytes_read(n + 1) >= shape.weight_bytes_read(n)
    assert shape.weight_bytes_read(n) <= shape.weight_bytes()


@settings(max_examples=50)
@given(SHAPES, st.integers(1, 20), st.integers(1, 20), st.integers(0, 50))
def test_flops_of_a_chunk_are_those_of_its_two_halves(shape: ModelShape, a: int, b: int, context: int) -> None:
    assert shape.flops(a + b, context) == shape.flops(a, context) + shape.flops(b, context + a)


@pytest.mark.parametrize("name", ["llama-3-70b", "deepseek-v3", "gpt-oss-120b", "gemma-2-27b"])
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_ranks_together_hold_the_model_and_what_is_replicated(name: str, tp: int) -> None:
    shape = model_shape(name)
    together = tp * shape.shard(tp).parameters
    assert shape.parameters <= together < 1.05 * shape.parameters
    assert shape.shard(1) is shape


def test_sharding_replicates_key_value_heads_once_there_are_more_ranks_than_heads() -> None:
    assert [kv_heads_per_rank(8, tp) for tp in (1, 2, 4, 8, 16, 64)] == [8, 4, 2, 1, 1, 1]
    rank = model_shape("llama-3.1-405b").shard(16).layers[0].attention
    assert isinstance(rank, Attention) and (rank.n_heads, rank.n_kv_heads) == (8, 1)


@given(st.integers(1, 64), st.integers(1, 64))
def test_key_value_heads_of_a_rank_are_never_none_and_never_a_fraction(n_kv_heads: int, tp: int) -> None:
    if n_kv_heads % tp and tp % n_kv_heads:
        with pytest.raises(ValueError, match="neither as shares nor as replicas"):
            kv_heads_per_rank(n_kv_heads, tp)
    else:
        heads = kv_heads_per_rank(n_kv_heads, tp)
        assert isinstance(heads, int) and heads >= 1 and heads * tp >= n_kv_heads


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="9 query heads cannot be split over 2 ranks"):
        model_shape("smollm2-135m").shard(2)
    with pytest.raises(ValueError, match="at least 1"):
        model_shape("smollm2-135m").shard(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "rwkv"}, "model_type 'rwkv' is not known here"),
        ({"model_type": None}, "is not known here"),
        ({"model_type": ["llama"]}, "is not known here"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 key/value heads"),
        ({"num_hidden_layers": None}, "no num_hidden_layers"),
        ({"vocab_size": 2.5}, "must be a positive whole number"),
        ({"hidden_size": 30}, "does not divide into 4 heads"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "gives 'nothing' for layer 1"),
        ({"model_type": "qwen2", "layer_types": ["linear_attention"] * 5}, "'linear_attention' for layer 0"),
        ({"model_type": "gemma2", "layer_types": ["sliding_attention"] * 5, "sliding_window": None}, "add a positive"),
        ({"model_type": "gemma2", "layer_types": ["sliding_attention"] * 5, "sliding_window": -1}, "add a positive"),
        ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5}, "cannot use 5 of 4 experts"),
        ({"model_type": "deepseek_v2"}, "no num_experts_per_tok, and its model_type has no default"),
    ],
)
def test_impossible_configs_are_refused_with_a_reason(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shape_from_config(TINY | {"model_type": "llama"} | change)


def test_something_that_is_no_config_is_refused() -> None:
    with pytest.raises(TypeError, match="not a str"):
        shape_from_config("config.json")


POSITIVE = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "no_rope_layer_interval", "decoder_sparse_step"),
    *("num_local_experts", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"),
    *("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
)
FROM_ZERO = ("max_window_layers", "first_k_dense_replace", "n_shared_experts", "num_experts")
EVERY_SIZE_IS_READ = {
    "num_experts_per_tok": 2,
    "vocab_size": 96,
    "num_key_value_heads": 4,
    "use_sliding_window": True,
    "sliding_window": 6,
    "first_k_dense_replace": 1,
    "mlp_only_layers": [0],
}


@pytest.mark.parametrize("model_type", families())
@pytest.mark.parametrize("bad", [0, -1, 1.5, float("nan"), float("inf"), True, "8"])
def test_a_size_that_is_no_positive_whole_number_is_refused_wherever_it_is_read(model_type: str, bad: Any) -> None:
    """0 stands for itself in a few entries; transformers reads 0 experts of a qwen3_moe as none."""
    config = {"model_type": model_type} | EVERY_SIZE_IS_READ
    read = families()[model_type].entries
    for key in [key for key in POSITIVE + FROM_ZERO if key in read]:
        if repr(bad) == "0" and key in FROM_ZERO:
            assert shape_from_config(config | {key: bad}).layers
        else:
            with pytest.raises(ValueError, match=f"{key} must be a"):
                shape_from_config(config | {key: bad})


WINDOWED = {name: family for name, family in families().items() if "sliding_window" in family.entries}


@pytest.mark.parametrize("model_type", WINDOWED)
@pytest.mark.parametrize("none", [None, 0, -1])
def test_a_window_of_nothing_is_no_window(model_type: str, none: int | None) -> None:
    config = {"model_type": model_type, "use_sliding_window": True, "max_window_layers": 0, "num_hidden_layers": 6}
    windows = {layer.attention.window for layer in shape_from_config(config | {"sliding_window": 6}).layers}
    assert 6 in windows
    shape = shape_from_config(config | {"sliding_window": none})
    assert {layer.attention.window for layer in shape.layers} == {None}
    with pytest.raises(ValueError, match="sliding_window must be a whole number"):
        shape_from_config(config | {"sliding_window": 2.5})


@pytest.mark.parametrize("window", [0, -1])
def test_parts_without_a_size_are_refused(window: int) -> None:
    with pytest.raises(ValueError, match="give None for no window"):
        Attention(4, 2, 8, window)
    with pytest.raises(ValueError, match="positive width"):
        Mlp(window)
    with pytest.raises(ValueError, match="positive width"):
        Experts(4, 2, window)
    with pytest.raises(ValueError, match="positive heads, ranks"):
        LatentAttention(4, 16, 4, 8, 6, q_rank=window)


@pytest.mark.parametrize("model_type", families())
def test_the_defaults_of_a_family_are_those_of_transformers(model_type: str) -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model(model_type)
    theirs = config.to_dict()
    for key, default in families()[model_type].entries.items():
        if default is None or key == "max_window_layers":
            continue  # derived from other entries there, or required here
        key = next((name for name in EXPERT_COUNTS if key in EXPERT_COUNTS and name in theirs), key)
        if key == "sliding_window" and not theirs.get("use_sliding_window", True):
            continue  # transformers stores null where windows are switched off
        assert theirs.get(key, getattr(config, key, None)) == default, key
    entries = {"num_experts_per_tok": 6, "vocab_size": 999}
    assert shape_from_config({"model_type": model_type} | entries, "x") == shape_from_config(
        AutoConfig.for_model(model_type, **entries), "x"
    )


LEFT_OUT = {"num_key_value_heads", "tie_word_embeddings", "sliding_window", "attention_bias", "head_dim"}


@pytest.mark.parametrize("model_type", families())
@pytest.mark.parametrize("key", sorted(LEFT_OUT))
def test_an_entry_left_out_means_what_transformers_makes_of_it(model_type: str, key: str) -> None:
    """The parameters that transformers allocates; a mistral without num_key_value_heads has 8 of them, not 32."""
    from transformers import AutoConfig

    sizes = dict(vocab_size=96, hidden_size=256, intermediate_size=48, num_hidden_layers=2, num_attention_heads=32)
    sizes |= dict(head_dim=12, num_key_value_heads=4, num_experts_per_tok=2, max_position_embeddings=64)
    if key == "num_key_value_heads" and model_type == "gpt_oss":
        sizes |= dict(num_local_experts=4)
    sizes.pop(key, None)
    if families()[model_type].latent:
        sizes |= dict(num_key_value_heads=32, moe_intermediate_size=24, n_routed_experts=4, n_group=2, topk_group=2)
        sizes.pop("head_dim", None)
    config = AutoConfig.for_model(model_type, **sizes, pad_token_id=0)
    assert shape_from_config({"model_type": model_type} | sizes).parameters == parameters_of(config)


def test_the_text_part_of_a_multimodal_config_is_taken() -> None:
    text = model_catalogue()["gemma-3-4b"]["config"]
    nested = {"model_type": "gemma3", "vision_config": {}, "text_config": text}
    assert shape_from_config(nested, name="gemma-3-4b") == model_shape("gemma-3-4b")


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("meta-llama/Meta-Llama-3-70B", "llama-3-70b"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("gemma 2 9b it", "gemma-2-9b"),
    ],
)
def test_hub_names_find_the_catalogue_entry(typed: str, name: str) -> None:
    assert model_shape(typed).name == name


@pytest.mark.parametrize(("typed", "nearest"), [("llama-3-72b", "llama-3-70b"), ("mixtral", "mixtral-8x7b")])
def test_unknown_models_name_the_nearest(typed: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match=nearest):
        model_shape(typed)


def test_nothing_here_needs_torch() -> None:
    code = (
        "import sys, specdec_ref.arithmetic as a; a.model_shape('llama-3-70b').shard(2); a.accelerator('h100-sxm');"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("tp, width", [(1, 10), (2, 5), (3, 4), (4, 3), (16, 1)])
def test_a_width_that_does_not_divide_is_rounded_up_on_each_rank(tp: int, width: int) -> None:
    assert Mlp(10).shard(tp).intermediate == width and tp * width >= 10
    experts = Experts(4, 2, 10, shared_intermediate=10).shard(tp)
    assert (experts.intermediate, experts.shared_intermediate) == (width, width)
