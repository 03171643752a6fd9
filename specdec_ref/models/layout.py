"""How a Llama's matrices lie in memory: in 16 bits laid out for the CPU, or in 4 bits as a GGUF file has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from specdec_ref.interfaces import CausalLM
from specdec_ref.kernels.linear import PackedLinear, can_pack
from specdec_ref.kernels.packing import OUTPUTS, Blocks
from specdec_ref.kernels.quantise import GROUP
from specdec_ref.kernels.stored import StoredLinear, TiedHead
from specdec_ref.models.compiled import CompiledLlama
from specdec_ref.models.config import LlamaConfig
from specdec_ref.models.dtype import has_native_bfloat16
from specdec_ref.models.fused import FusedLayer, FusedRMSNorm, compile_loops
from specdec_ref.models.llama import Layer, Llama
from specdec_ref.models.names import MATRICES, hf_modules
from specdec_ref.models.store import blocks

Matrix = nn.Linear | PackedLinear | StoredLinear


def pack(model: Llama) -> Llama:
    """The same model laid out for bfloat16 on a CPU, in place: packed matrices, compiled loops between them.

    A model in another format, or on another device, is left as it is.
    """
    if model.dtype != torch.bfloat16 or model.device.type != "cpu" or not can_pack():
        return model
    compile_loops()  # now, and not in the first pass, which somebody may be timing
    for name, matrix in matrices(model).items():
        if isinstance(matrix, nn.Linear):
            model.set_submodule(name, PackedLinear(matrix.weight))
    for i, layer in enumerate(model.layers):
        if isinstance(layer, Layer) and not isinstance(layer, FusedLayer):
            model.layers[i] = FusedLayer(layer)
    if not isinstance(model.norm, FusedRMSNorm):
        model.norm = FusedRMSNorm(model.norm)
    return model


def keep_stored(model: Llama, stored: Mapping[str, Blocks], bits: int = 16) -> Llama:
    """A bfloat16 model with its matrices as the file that it came from stores them, in 4 and 8 bits.

    Where all of them are, it is a `CompiledLlama`. Otherwise those that are missing, or whose shapes the product does
    not take, stay in 16 bits, and the model is changed in place.
    stored: by Hugging Face name. bits: of activations, 16 or 8.
    Raises ValueError where no matrix is stored so.
    """
    parts = _parts(model.config)
    if not can_keep_stored(model.config, stored):
        raise ValueError("the file holds no matrix in Q4_0, Q4_1 or Q8_0 that can stay so: load it with weights='full'")
    found = {name: [stored.get(part) for part in parts[name]] for name in parts}
    stays = {name: _stack(blocks) for name, blocks in found.items() if _fit(blocks)}
    replaced = {name: StoredLinear(blocks, _wide(model, name), bits) for name, blocks in stays.items()}
    if len(replaced) == len(parts) and model.config.head_dim % GROUP == 0:
        return CompiledLlama(model, replaced, bits)
    for name, matrix in replaced.items():
        model.set_submodule(name, matrix)
    return pack(model)


def in_8_bits(model: Llama, weights: Mapping[str, Tensor]) -> dict[str, Blocks]:
    """The matrices of `model` rounded to 8 bits, for `keep_stored`.

    weights: what the model was made from, by Hugging Face name.
    Raises ValueError for a matrix whose columns do not divide by 32.
    """
    names = {part for parts in _parts(model.config).values() for part in parts}
    if odd := sorted(name for name in names if weights[name].shape[1] % GROUP):
        raise ValueError(f"{odd[0]} has {weights[odd[0]].shape[1]} columns, and 8 bits need a multiple of {GROUP}")
    return {name: blocks.in_8_bits(weights[name].float().numpy()) for name in names}


def _wide(model: Llama, name: str) -> nn.Module | None:
    """A matrix in 16 bits, for prompts, where this CPU multiplies bfloat16 natively."""
    if not (can_pack() and has_native_bfloat16()):
        return None
    if name == "head" and model.config.tied_head:
        return TiedHead(model.embed)
    matrix = model.get_submodule(name)
    return PackedLinear(matrix.weight) if isinstance(matrix, nn.Linear) else matrix


def can_keep_stored(config: LlamaConfig, stored: Mapping[str, Blocks]) -> bool:
    """Whether any matrix of such a model is stored in 4 or 8 bits, in a shape that the product takes."""
    return any(_fit([stored.get(part) for part in parts]) for parts in _parts(config).values())


def matrices(model: Llama) -> dict[str, Matrix]:
    """The matrices that a pass multiplies by, head included, by their name in the model."""
    return {name: model.get_submodule(name) for name in _parts(model.config)}  # type: ignore[misc]


def bytes_a_pass(model: CausalLM) -> int:
    """Bytes of weights that a pass over one token reads, head included, the embedding's other rows not.

    Raises TypeError for a model other than the reference Llama.
    """
    if not isinstance(model, Llama):
        raise TypeError(f"the bytes per pass are known for the reference Llama, not for a {type(model).__name__}")
    total = sum(m.weight.nbytes if isinstance(m, nn.Linear) else m.nbytes for m in matrices(model).values())
    return total + sum(norm.weight.nbytes for norm in model.modules() if isinstance(norm, nn.RMSNorm))


def _parts(config: LlamaConfig) -> dict[str, list[str]]:
    """For each matrix of the model, the Hugging Face weights that it is stacked from."""
    found = {name: [f"{part}.weight" for part in parts] for name, parts in hf_modules(config.n_layers).items()}
    if config.tied_head:
        found["head"] = found["embed"]
    return {name: parts for name, parts in found.items() if name == "head" or name.split(".")[-1] in MATRICES}


def _fit(parts: Sequence[Blocks | None]) -> bool:
    """Whether these blocks, stacked, are a matrix that the product takes."""
    found = [p for p in parts if p is not None]
    return (
        len(found) == len(parts)
        and len({p.bits for p in found}) == 1
        and sum(len(p.levels) for p in found) % OUTPUTS == 0
    )


def _stack(parts: Sequence[Blocks | None]) -> Blocks:
    found = [p for p in parts if p is not None]
    minima = [p.minimum for p in found if p.minimum is not None]
    return Blocks(
        np.concatenate([p.levels for p in found]),
        np.concatenate([p.scale for p in found]),
        np.concatenate(minima) if minima else None,
    )
