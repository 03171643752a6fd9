"""A trained draft on disk: one safetensors file with matrices in 8 bits, and in its header what it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from specdec_ref.files import write_atomic
from specdec_ref.kernels.quantise import GROUP
from specdec_ref.models.store.blocks import in_8_bits

SCALE = ".scale"


def write_draft(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write `tensors` and what they are. A matrix whose rows divide by 32 becomes int8 with a scale per 32 weights.

    about: kind of draft, its sizes, the target's fingerprint: anything JSON can hold.
    """
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and tensor.is_floating_point() and tensor.shape[1] % GROUP == 0:
            stored[name], stored[name + SCALE] = rounded(tensor)
        else:
            stored[name] = tensor.float().contiguous() if tensor.is_floating_point() else tensor.int().contiguous()
    write_atomic(path, save(stored, metadata={"about": json.dumps(about)}))


def read_draft(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, float32 and int64, and what they are. Raises ValueError for a file that is none of ours."""
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is no trained draft ({error}): get it again, or train one") from error
    tensors = {}
    for name, tensor in stored.items():
        if name.endswith(SCALE):
            continue
        scale = stored.get(name + SCALE)
        tensors[name] = tensor.long() if scale is None and tensor.dtype == torch.int32 else widened(tensor, scale)
    return tensors, about


def read_kind(path: Path, kind: str, called: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors in a file that `specdec train-draft run --kind KIND` wrote, and what they are; sizes with tuples.

    Raises ValueError for a file of another kind of draft. called: this kind, in words.
    """
    tensors, about = read_draft(path)
    if about.get("kind") != kind:
        raise ValueError(f"{path} holds a draft of kind {about.get('kind')!r}, not {called}")
    sizes = {name: tuple(size) if isinstance(size, list) else size for name, size in about["sizes"].items()}
    return tensors, about | {"sizes": sizes}


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`weight` `[out, in]` as int8 levels `[out, in]` and a float16 scale for each 32 of them, `[out, in / 32]`."""
    blocks = in_8_bits(weight.detach().float().numpy(force=True))
    return torch.from_numpy(blocks.levels), torch.from_numpy(blocks.scale)


def widened(levels: Tensor, scale: Tensor | None) -> Tensor:
    """What `rounded` has stored, float32; a tensor without a scale as it is."""
    if scale is None:
        return levels
    return (levels.float().unflatten(1, (-1, GROUP)) * scale.float()[..., None]).flatten(1)
