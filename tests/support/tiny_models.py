"""Tiny random Llamas in float64, in which greedy identity is exact."""

from __future__ import annotations

import torch

from specdec_ref.models.llama import Llama, LlamaConfig


def tiny_config(**changes: object) -> LlamaConfig:
    sizes = dict(
        vocab_size=13,
        hidden_size=24,
        intermediate_size=40,
        n_layers=2,
        n_heads=4,
        n_kv_heads=2,
        head_dim=6,
        max_context=96,
        rope_theta=10_000.0,
        rms_norm_eps=1e-5,
        tied_head=False,
    )
    return LlamaConfig(**(sizes | changes))  # type: ignore[arg-type]


def tiny_llama(seed: int = 0, **changes: object) -> Llama:
    """Random weights, large enough that its distributions are neither flat nor one-hot."""
    torch.manual_seed(seed)
    model = Llama(tiny_config(**changes), torch.float64).eval()
    for name, weight in model.named_parameters():
        if "norm" not in name:
            weight.copy_(torch.randn_like(weight) * (0.4 if "layers" in name else 1.0))
    return model
