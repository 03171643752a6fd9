"""A reference Llama in Hugging Face format: the way back from `Llama.from_hf`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specdec_ref.models.config import LlamaConfig
from specdec_ref.models.llama import Llama
from specdec_ref.models.names import hf_modules


def hf_config(config: LlamaConfig) -> dict[str, Any]:
    """A `config.json` of these sizes."""
    eos = list(config.eos_token_ids)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_context,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tied_head,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
    }


def hf_state(model: Llama, layers: Sequence[int] | None = None) -> dict[str, Tensor]:
    """The weights by Hugging Face name. layers: only these, numbered anew in this order; None is all.

    Raises ValueError for a model whose matrices are packed: load it with dtype float32.
    """
    c = model.config
    chosen = range(c.n_layers) if layers is None else layers
    kv = c.n_kv_heads * c.head_dim
    sizes = {"qkv": [c.n_heads * c.head_dim, kv, kv], "gate_up": [c.intermediate_size] * 2}
    state: dict[str, Tensor] = {}
    for name, theirs in hf_modules(len(chosen)).items():
        if name == "head" and c.tied_head:
            continue
        path = name.split(".")
        if path[0] == "layers":
            path[1] = str(chosen[int(path[1])])
        module = model.get_submodule(".".join(path))
        if not isinstance(module, (nn.Linear, nn.Embedding, nn.RMSNorm)):
            raise ValueError("the model's matrices are packed for this processor: load it with dtype float32")
        parts = torch.split(module.weight.detach(), sizes.get(path[-1], [len(module.weight)]))
        state |= {f"{each}.weight": part.clone() for each, part in zip(theirs, parts, strict=True)}
    return state
