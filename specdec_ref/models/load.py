"""Load a model by name: find it, read it, and lay it out for this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from specdec_ref.interfaces import CausalLM
from specdec_ref.models.config import LlamaConfig
from specdec_ref.models.dtype import resolve_dtype
from specdec_ref.models.huggingface import HuggingFaceModel
from specdec_ref.models.layout import can_keep_stored, in_8_bits, keep_stored, pack
from specdec_ref.models.llama import Llama
from specdec_ref.models.store.catalog import CATALOG, DEFAULT_MODEL
from specdec_ref.models.store.fetch import fetch
from specdec_ref.models.store.folder import ModelFolder, find_folder, weight_files
from specdec_ref.models.store.gguf import GGUFFile


def load_model(
    name: str | os.PathLike[str] = DEFAULT_MODEL,
    dtype: str | torch.dtype = "auto",
    device: str = "cpu",
    weights: str = "auto",
    activations: int = 16,
) -> CausalLM:
    """A model with its tokenizer, ready for the engine.

    name: a catalogue name, a local folder in Hugging Face format, a Llama-shaped GGUF file, or a hub id
        ("owner/name"; safetensors only, no code from the hub is run).
    dtype: "auto" (bfloat16 where the processor multiplies it natively, else float32), a name, or a torch dtype.
    weights: "full" converts all weights to `dtype`; "q4" keeps what a GGUF file holds in 4 and 8 bits as it is, with
        bfloat16 between the products, which saves most of the bytes per token; "auto" is "q4" on a CPU where the
        weights come from a GGUF file that holds such and dtype is "auto", else "full". "q8" rounds any Llama's matrices
        to 8 bits, with a scale for 32 weights, and computes as "q4" does: half the bytes of bfloat16 per token, and
        weights off by about 1/254 of the largest of their 32. For a draft model from a folder.
    activations: bits in which "q4" and "q8" multiply activations: 16, as near to float32 as bfloat16 allows, or 8, as
        llama.cpp and OpenVINO do: faster for several tokens, at four times the divergence from float32 (a mean KL
        of .0023, not .0006, over the default model's own greedy answers).
    Raises ModelNotAvailable where weights are missing and can't be fetched, ValueError for a folder or file that is no
    model, for "q4" where there is nothing in 4 bits, and for "q8" where the model is no Llama or does not divide.
    """
    name = os.fspath(name)
    if activations not in (8, 16):
        raise ValueError(f"activations of {activations!r} bits are not implemented: give 16 or 8")
    weights = _chosen(name, dtype, device, weights)
    source = _find(name)
    config = source.config()
    if isinstance(source, ModelFolder) and not _is_reference_llama(config):
        if weights == "q8":
            raise ValueError(f"{name} is no Llama that this package implements: leave weights out")
        return _load_with_transformers(source, resolve_dtype(dtype, device), device)

    sizes = LlamaConfig.from_hf(config)
    stored = source.blocks() if weights in ("q4", "auto") else {}
    if weights in ("q4", "auto") and not can_keep_stored(sizes, stored):
        if weights == "q4":
            raise ValueError(f"{name} holds no matrix in Q4_0, Q4_1 or Q8_0 that can stay so: leave weights out")
        weights = "full"
    try:
        number_format = resolve_dtype(dtype, device) if weights == "full" else torch.bfloat16
        tensors = source.tensors()
        model = Llama.from_hf(config, tensors, number_format).to(device)
        if weights == "q8":
            stored = in_8_bits(model, tensors)
    except ValueError as error:
        raise ValueError(f"{source.path}: {error}") from error
    model.tokenizer = source.tokenizer()
    return pack(model) if weights == "full" else keep_stored(model, stored, activations)


def _find(name: str) -> GGUFFile | ModelFolder:
    """Where the model is: a GGUF file, or a folder, fetched if need be."""
    if _is_gguf(name):
        return GGUFFile(Path(name).expanduser())
    return ModelFolder(fetch(name) if name in CATALOG else find_folder(name))


def _is_gguf(name: str) -> bool:
    return Path(name).suffix.lower() == ".gguf" and not Path(name).expanduser().is_dir()


def _is_reference_llama(config: dict[str, Any]) -> bool:
    """Whether the reference Llama implements this model."""
    try:
        LlamaConfig.from_hf(config)
    except ValueError:
        return False
    return True


def _chosen(name: str, dtype: str | torch.dtype, device: str, weights: str) -> str:
    """The option `weights` of `load_model`, where "auto" remains only if the file may hold matrices in 4 bits."""
    if weights not in ("auto", "full", "q4", "q8"):
        raise ValueError(f"weights {weights!r} is not known: give 'auto', 'full', 'q4' or 'q8'")
    possible = name in CATALOG or _is_gguf(name)
    if weights == "full" or (weights == "auto" and not (possible and dtype == "auto" and device == "cpu")):
        return "full"
    if weights == "q4" and not possible:
        raise ValueError(f"weights='q4' needs a GGUF file, and {name!r} is none: leave weights out")
    if device != "cpu" or (dtype != "auto" and resolve_dtype(dtype) != torch.bfloat16):
        raise ValueError(
            f"weights={weights!r} runs on a CPU with bfloat16 activations, not with dtype {dtype!r} on {device!r}: "
            "leave dtype out, or give weights='full'"
        )
    return weights


def _load_with_transformers(source: ModelFolder, dtype: torch.dtype, device: str) -> HuggingFaceModel:
    """A model that the reference Llama does not implement, as transformers does."""
    from transformers import AutoModelForCausalLM

    folder = source.path
    weight_files(folder)  # its errors say more than those of transformers
    load: Any = AutoModelForCausalLM.from_pretrained
    try:
        model, report = load(
            folder,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{folder}: transformers cannot load this model ({reason[:300]})") from error
    if missing := sorted(report["missing_keys"]):
        # transformers would go on with random numbers in their place.
        raise ValueError(f"{folder} lacks {len(missing)} of the model's tensors, for instance {missing[0]!r}")
    return HuggingFaceModel(model.to(device), source.tokenizer())
