"""Tiny models of every attention and feed-forward kind, as configs and as random shapes, for the arithmetic's tests."""

from typing import Any

from hypothesis import strategies as st

from specdec_ref.arithmetic import Attention, Experts, LatentAttention, LayerShape, Mlp, ModelShape

TINY: dict[str, Any] = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
MLA: dict[str, Any] = dict(
    num_key_value_heads=4,
    kv_lora_rank=16,
    qk_rope_head_dim=4,
    qk_nope_head_dim=8,
    v_head_dim=6,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    first_k_dense_replace=1,
    n_group=2,
    topk_group=2,
)
# One tiny model of each kind; every entry overrides TINY.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "MHA": ("llama", dict(num_key_value_heads=4)),
    "GQA": ("llama", {}),
    "MQA": ("llama", dict(num_key_value_heads=1)),
    "GQA, tied head": ("llama", dict(tie_word_embeddings=True)),
    "biases": ("llama", dict(attention_bias=True, mlp_bias=True)),
    "head_dim is not hidden/heads": ("qwen3", dict(head_dim=12)),
    "qkv biases": ("qwen2", {}),
    "sliding in the upper layers": ("qwen2", dict(use_sliding_window=True, sliding_window=6, max_window_layers=2)),
    "sliding everywhere": ("mistral", dict(sliding_window=6)),
    "no window given": ("mistral", dict(sliding_window=None)),
    "alternating windows": ("gemma2", dict(head_dim=16, sliding_window=6)),
    "windows by pattern": ("gemma3_text", dict(head_dim=16, sliding_window=6, sliding_window_pattern=3)),
    "MQA with a wide head": ("gemma", dict(num_key_value_heads=1, head_dim=16)),
    "experts": ("mixtral", dict(num_local_experts=4, num_experts_per_tok=2)),
    "experts in some layers": (
        "qwen3_moe",
        dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, head_dim=12, mlp_only_layers=[1]),
    ),
    "experts with biases, sinks": (
        "gpt_oss",
        dict(num_local_experts=4, num_experts_per_tok=2, head_dim=12, sliding_window=6),
    ),
    "MLA": ("deepseek_v3", MLA | dict(q_lora_rank=20)),
    "MLA, queries not compressed": ("deepseek_v2", MLA | dict(q_lora_rank=None, topk_method="greedy")),
    "fused projections": ("phi3", dict(sliding_window=6, pad_token_id=0)),
    "positions left out": ("smollm3", dict(pad_token_id=0)),
}


def tiny_config(kind: str) -> Any:
    from transformers import AutoConfig

    model_type, entries = KINDS[kind]
    return AutoConfig.for_model(model_type, **(TINY | entries))


LAYERS = st.builds(
    LayerShape,
    attention=st.one_of(
        st.builds(
            lambda kv, group, dim, window: Attention(kv * group, kv, dim, window),
            st.integers(1, 4),
            st.integers(1, 4),
            st.sampled_from([64, 96, 128]),
            st.one_of(st.none(), st.integers(1, 64)),
        ),
        st.builds(LatentAttention, st.integers(1, 8), *[st.sampled_from([32, 64])] * 4),
    ),
    mlp=st.one_of(
        st.builds(Mlp, st.integers(1, 256)),
        st.builds(lambda n, k, width: Experts(n, min(n, k), width), *[st.integers(1, 8)] * 2, st.integers(1, 64)),
    ),
)
SHAPES = st.builds(
    ModelShape,
    st.just("x"),
    st.integers(1, 500),
    st.integers(1, 64),
    st.lists(LAYERS, min_size=1, max_size=4).map(tuple),
    st.booleans(),
)
