"""How a Llama's matrices lie in memory: in 16 bits laid out for the CPU, or in 4 bits as a GGUF file has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from specdec_ref.interfaces import CausalLM
from specdec_ref.kernels import loops
from specdec_ref.kernels.linear import Blocks, FourBitLinear, PackedLinear, TiedHead, can_pack
from specdec_ref.models.config import LlamaConfig
from specdec_ref.models.fused import FusedLayer, FusedRMSNorm
from specdec_ref.models.llama import Layer, Llama
from specdec_ref.models.names import MATRICES, hf_modules

Matrix = nn.Linear | PackedLinear | FourBitLinear


def pack(model: Llama) -> Llama:
    """The same model laid out for bfloat16 on a CPU, in place: packed matrices, compiled loops between them.

    A model in another format, or on another device, is left as it is.
    """
    if model.dtype != torch.bfloat16 or model.device.type != "cpu" or not can_pack():
        return model
    loops.compile_all()  # now, and not in the first pass, which somebody may be timing
    for name, matrix in matrices(model).items():
        if isinstance(matrix, nn.Linear):
            model.set_submodule(name, PackedLinear(matrix.weight))
    for i, layer in enumerate(model.layers):
        if isinstance(layer, Layer) and not isinstance(layer, FusedLayer):
            model.layers[i] = FusedLayer(layer)
    if not isinstance(model.norm, FusedRMSNorm):
        model.norm = FusedRMSNorm(model.norm)
    return model


def keep_four_bits(model: Llama, stored: Mapping[str, Blocks]) -> Llama:
    """A bfloat16 model with its matrices in 4 bits, as the file that it came from stores them; changed in place.

    stored: by Hugging Face name. Matrices that it lacks, or whose shapes the kernel does not take, stay in 16 bits.
    Raises ValueError where that is all of them.
    """
    parts, tied = _parts(model.config), model.config.tied_head
    if not can_keep_four_bits(model.config, stored):
        raise ValueError("the file holds no matrix in Q4_0, Q4_1 or Q8_0 that can stay so: load it with weights='full'")
    for name, matrix in matrices(model).items():
        blocks = [stored.get(part) for part in parts[name]]
        if not _fit(blocks):
            continue
        if name == "head" and tied:
            wide: nn.Module = TiedHead(model.embed)
        else:
            wide = PackedLinear(matrix.weight) if isinstance(matrix, nn.Linear) and can_pack() else matrix
        model.set_submodule(name, FourBitLinear(_stack([b for b in blocks if b is not None]), wide))
    return pack(model)


def can_keep_four_bits(config: LlamaConfig, stored: Mapping[str, Blocks]) -> bool:
    """Whether any matrix of such a model is stored in 4 bits, in a shape that the kernel takes."""
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
    """Whether these blocks, stacked, are a matrix that the 4-bit kernel takes."""
    found = [p for p in parts if p is not None]
    return (
        len(found) == len(parts)
        and len({p.repeat for p in found}) == 1
        and sum(p.levels.shape[0] for p in found) % FourBitLinear.ROWS == 0
    )


def _stack(parts: Sequence[Blocks]) -> Blocks:
    levels, scale, zero = (torch.cat([getattr(p, field) for p in parts]) for field in ("levels", "scale", "zero"))
    return Blocks(levels, scale, zero, parts[0].repeat)
