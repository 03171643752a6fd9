"""How a Llama's matrices lie in memory: in 16 bits laid out for the CPU, or in 4 bits as a GGUF file has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from specdec_ref.kernels import loops
from specdec_ref.kernels.linear import Blocks, FourBitLinear, PackedLinear, TiedHead, can_pack
from specdec_ref.models.fused import FusedLayer, FusedRMSNorm
from specdec_ref.models.llama import Layer, Llama

# Which of a file's matrices make up one of ours.
PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def pack(model: Llama) -> Llama:
    """The same model laid out for bfloat16 on a CPU, in place: packed matrices, compiled loops between them.

    A model in another format, or on another device, is left as it is.
    """
    if model.dtype != torch.bfloat16 or model.device.type != "cpu" or not can_pack():
        return model
    for owner, name in _matrices(model):
        linear = getattr(owner, name)
        if isinstance(linear, nn.Linear):
            setattr(owner, name, PackedLinear(linear.weight))
    for each in (loops.attend, loops.norm, loops.rotate, loops.gate):
        _ = each.compiled  # now, and not in the first pass, which somebody may be timing
    for i, layer in enumerate(model.layers):
        if isinstance(layer, Layer) and not isinstance(layer, FusedLayer):
            model.layers[i] = FusedLayer(layer)
    if not isinstance(model.norm, FusedRMSNorm):
        model.norm = FusedRMSNorm(model.norm)
    return model


def keep_four_bits(model: Llama, stored: Mapping[str, Blocks]) -> Llama:
    """A bfloat16 model with its matrices in 4 bits, as the file where it came from stores them; changed in place.

    stored: by Hugging Face name. Matrices that it lacks, or whose shapes the kernel does not take, stay in 16 bits.
    Raises ValueError where that is all of them.
    """
    kept = 0
    for i, layer in enumerate(model.layers):
        for name, parts in PARTS.items():
            wide = getattr(layer, name)
            kept += _replace(layer, name, [stored.get(f"model.layers.{i}.{p}.weight") for p in parts], wide)
    head = "model.embed_tokens.weight" if model.config.tied_head else "lm_head.weight"
    kept += _replace(model, "head", [stored.get(head)], TiedHead(model.embed) if model.config.tied_head else model.head)
    if not kept:
        raise ValueError("the file holds no matrix in Q4_0, Q4_1 or Q8_0 that can stay so: load it with weights='full'")
    for owner, name in _matrices(model):
        linear = getattr(owner, name)
        if isinstance(linear, FourBitLinear) and isinstance(linear.wide, nn.Linear) and can_pack():
            linear.wide = PackedLinear(linear.wide.weight)
    return pack(model)


def _replace(owner: nn.Module, name: str, parts: list[Blocks | None], wide: nn.Module) -> bool:
    """Put the parts, one below the other, in place of a matrix; False where that cannot be done."""
    found = [p for p in parts if p is not None]
    if len(found) < len(parts) or len({p.repeat for p in found}) > 1:
        return False
    levels, scale, zero = (torch.cat([getattr(p, field) for p in found]) for field in ("levels", "scale", "zero"))
    whole = Blocks(levels, scale, zero, found[0].repeat)
    if whole.levels.shape[0] % 16:
        return False
    setattr(owner, name, FourBitLinear(whole, wide))
    return True


def _matrices(model: Llama) -> Iterator[tuple[nn.Module, str]]:
    for layer in model.layers:
        for name in PARTS:
            yield layer, name
    yield model, "head"


def bytes_a_pass(model: Llama) -> int:
    """Bytes of weights that a pass over one token reads, head included, the embedding's other rows not."""
    matrices: list[Any] = [getattr(owner, name) for owner, name in _matrices(model)]
    total = sum(m.weight.nbytes if isinstance(m, nn.Linear) else m.nbytes for m in matrices)
    norms: list[Any] = [m for m in model.modules() if isinstance(m, nn.RMSNorm)]
    return total + sum(norm.weight.nbytes for norm in norms)
