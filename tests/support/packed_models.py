"""A tiny Llama whose matrices the integer products take, and the same matrices as a GGUF file stores them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_ref.kernels.linear import can_pack
from specdec_ref.models.compiled import CompiledLlama
from specdec_ref.models.layout import keep_stored
from specdec_ref.models.llama import Llama, LlamaConfig
from specdec_ref.models.names import LAYER, MATRICES
from specdec_ref.models.store.blocks import READERS

needs_packing = pytest.mark.skipif(not can_pack(), reason="no oneDNN bfloat16 products on this machine")


def divisible_llama(seed=5, tied=True):
    """A tiny model whose matrices the integer products take."""
    config = LlamaConfig(48, 64, 96, 2, 4, 2, 32, 256, 10_000.0, 1e-5, tied)
    torch.manual_seed(seed)
    model = Llama(config, torch.float32)
    for parameter in model.parameters():
        parameter.copy_(torch.randn_like(parameter) * (0.15 if parameter.dim() > 1 else 0.1) + (parameter.dim() == 1))
    return model.eval()


def stored(model, kind="Q4_1"):
    """The model's matrices quantised, by Hugging Face name, and the model with those weights in float32."""
    import copy

    import gguf

    def quantise(weight):
        type_ = getattr(gguf.GGMLQuantizationType, kind)
        raw = gguf.quantize(weight.numpy(), type_)
        return READERS[kind](raw), torch.from_numpy(np.array(gguf.dequantize(raw, type_)))

    found, exact = {}, copy.deepcopy(model)
    c = model.config
    sizes = {
        "qkv": [c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim, c.n_kv_heads * c.head_dim],
        "out": [c.hidden_size],
        "gate_up": [c.intermediate_size] * 2,
        "down": [c.hidden_size],
    }
    for i, layer in enumerate(model.layers):
        for name in MATRICES:
            rows = []
            for part, weight in zip(LAYER[name], getattr(layer, name).weight.split(sizes[name])):
                found[f"model.layers.{i}.{part}.weight"], w = quantise(weight)
                rows.append(w)
            getattr(exact.layers[i], name).weight.copy_(torch.cat(rows))
    found["model.embed_tokens.weight"], w = quantise(model.embed.weight)
    exact.embed.weight.copy_(w)
    return found, exact


def compiled_model(kind="Q4_1", tied=True, bits=16):
    """A tiny model that always takes the compiled pass, and never the 16-bit product."""
    plain = divisible_llama(tied=tied)
    blocks, _ = stored(plain, kind)
    if not tied:
        blocks["lm_head.weight"] = blocks["model.embed_tokens.weight"]
    model = keep_stored(plain.to(torch.bfloat16), blocks, bits)
    assert isinstance(model, CompiledLlama)
    model.wide = None
    for layer in model.layers:
        layer.wide = None
    for module in model.modules():
        if hasattr(module, "weight_bits"):
            module.wide = None
    return model
