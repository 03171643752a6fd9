"""Load a model by name: from the catalogue, a folder, a GGUF file or a hub."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from specdec_ref.kernels.linear import can_use_four_bits
from specdec_ref.models.dtype import resolve_dtype
from specdec_ref.models.layout import keep_four_bits, pack
from specdec_ref.models.llama import Llama, LlamaConfig
from specdec_ref.models.store.catalog import CATALOG, DEFAULT_MODEL, GGUF_NAME, INDEX, fetch
from specdec_ref.models.store.folder import (
    ModelNotAvailable,
    find_folder,
    read_json,
    read_safetensors,
    read_tokenizer,
    weight_files,
)
from specdec_ref.models.store.gguf import GGUFFile, read_blocks


def load_model(
    name: str = DEFAULT_MODEL, dtype: str | torch.dtype = "auto", device: str = "cpu", weights: str = "auto"
) -> Any:
    """A model with its tokenizer, ready for the engine.

    name: a catalogue name, a local folder in Hugging Face format, a Llama-shaped GGUF file, or a hub id
        ("owner/name"; safetensors only, no code from the hub is run).
    dtype: "auto" (bfloat16 where this machine is measured to be fast at it, else float32), a name, or a torch dtype.
    weights: "full" multiplies weights out into `dtype`; "q4" keeps what a GGUF file holds in 4 and 8 bits as it is,
        beside bfloat16 activations, which is a little rounding and far fewer bytes a token; "auto" is "q4" where the
        weights come from a GGUF file, dtype is "auto" and this CPU has the kernels, else "full".
    Raises ModelNotAvailable where weights are missing and can't be fetched, ValueError for a folder that is no
    model and for "q4" where there is nothing in 4 bits. Where the kernels are missing "q4" warns and is "full".
    """
    if weights not in ("auto", "full", "q4"):
        raise ValueError(f"weights {weights!r} is not known: give 'auto', 'full' or 'q4'")
    in_four = _four_bits(name, dtype, device, weights)
    torch_dtype = torch.bfloat16 if in_four else resolve_dtype(dtype, device)
    if Path(name).suffix == ".gguf":
        return _load_file(Path(name).expanduser(), torch_dtype, device, in_four)
    folder = fetch(name) if name in CATALOG else find_folder(name, CATALOG)
    model = load_folder(folder, torch_dtype, device)
    if in_four:
        keep_four_bits(model, read_blocks(folder / GGUF_NAME, read_json(folder / INDEX)))
    return pack(model) if isinstance(model, Llama) else model


def _load_file(path: Path, dtype: torch.dtype, device: str, in_four: bool) -> Llama:
    """A GGUF file of the user's own; nothing of it is kept elsewhere."""
    if not path.is_file():
        raise ModelNotAvailable(f"no file at {path}: give the path of a GGUF file")
    file = GGUFFile(path)
    model = Llama.from_hf(file.config(), dict(file.weights()), dtype).to(device)
    if in_four:
        keep_four_bits(model, read_blocks(path, file.index()))
    model.tokenizer = file.tokenizer()
    return pack(model)


def _four_bits(name: str, dtype: str | torch.dtype, device: str, weights: str) -> bool:
    """Whether the weights stay in 4 bits; see `load_model`."""
    stored = name in CATALOG or Path(name).suffix == ".gguf"
    if weights == "full" or (weights == "auto" and not (stored and dtype == "auto" and device == "cpu")):
        return False
    if not stored:
        raise ValueError(f"weights='q4' needs a GGUF file, and {name!r} is none: leave weights out")
    if device != "cpu" or (dtype != "auto" and resolve_dtype(dtype) != torch.bfloat16):
        raise ValueError(
            f"weights='q4' runs on a CPU with bfloat16 activations, not with dtype {dtype!r} on {device!r}: "
            "leave dtype out, or give weights='full'"
        )
    if can_use_four_bits():
        return True
    if weights == "q4":
        warnings.warn(
            "this CPU or this PyTorch has no fast 4-bit product: the weights are multiplied out to 16 or 32 bits",
            stacklevel=3,
        )
    return False


def load_folder(folder: Path, dtype: torch.dtype, device: str = "cpu") -> Any:
    """Load a folder in Hugging Face format: the reference Llama where it implements the model, else transformers' own.

    Raises ValueError where weights are missing, damaged or pickled, and for a model that cannot take back tokens.
    """
    config = read_json(folder / "config.json")
    try:
        LlamaConfig.from_hf(config)
    except ValueError:
        model: Any = _load_with_transformers(folder, dtype, device)
    else:
        try:
            model = Llama.from_hf(config, read_safetensors(folder), dtype).to(device)
        except KeyError as missing:
            raise ValueError(f"{folder} lacks the model's tensor {missing}") from None
        generation = folder / "generation_config.json"
        if generation.exists() and (eos := read_json(generation).get("eos_token_id")) is not None:
            model.eos_token_ids = tuple(eos) if isinstance(eos, list) else (eos,)
    model.tokenizer = read_tokenizer(folder)
    return model


def _load_with_transformers(folder: Path, dtype: torch.dtype, device: str) -> Any:
    from transformers import AutoModelForCausalLM

    from specdec_ref.models.huggingface import HuggingFaceModel

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
    return HuggingFaceModel(model.to(device))
