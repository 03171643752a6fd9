"""What the weights of a Llama are called: in this package, in Hugging Face format and in a GGUF file."""

from __future__ import annotations

LAYER = {
    "qkv": {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"},
    "out": {"self_attn.o_proj": "attn_output"},
    "gate_up": {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"},
    "down": {"mlp.down_proj": "ffn_down"},
    "attention_norm": {"input_layernorm": "attn_norm"},
    "mlp_norm": {"post_attention_layernorm": "ffn_norm"},
}
"""A layer's modules here: for each, the Hugging Face modules whose weights are stacked in it, with their GGUF names."""

MATRICES = ("qkv", "out", "gate_up", "down")
"""Those modules of a layer that are matrices."""

TOP = {
    "embed": {"model.embed_tokens": "token_embd"},
    "norm": {"model.norm": "output_norm"},
    "head": {"lm_head": "output"},
}
"""The same outside the layers."""


def hf_modules(n_layers: int) -> dict[str, tuple[str, ...]]:
    """For each module of a Llama here ("layers.0.qkv"), the Hugging Face modules that it is stacked from, in order."""
    found = {ours: tuple(theirs) for ours, theirs in TOP.items()}
    for i in range(n_layers):
        for ours, theirs in LAYER.items():
            found[f"layers.{i}.{ours}"] = tuple(f"model.layers.{i}.{name}" for name in theirs)
    return found


_FROM_GGUF = {gguf: hf for table in (*TOP.values(), *LAYER.values()) for hf, gguf in table.items()}


def hf_name(gguf_name: str) -> str:
    """GGUF's name of a Llama weight -> Hugging Face's. Raises ValueError for an unknown one."""
    block, layer, kind, suffix, *rest = [*gguf_name.split("."), "", "", ""]
    if block == "blk" and layer.isdecimal() and suffix == "weight" and not any(rest):
        if any(kind in theirs.values() for theirs in LAYER.values()):
            return f"model.layers.{layer}.{_FROM_GGUF[kind]}.weight"
    elif layer == "weight" and not kind and any(block in theirs.values() for theirs in TOP.values()):
        return f"{_FROM_GGUF[block]}.weight"
    raise ValueError(f"the GGUF tensor {gguf_name!r} has no place in a Llama")
