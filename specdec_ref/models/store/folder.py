"""Read a folder in Hugging Face format, as `save_pretrained` writes it or a hub sends it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file


class ModelNotAvailable(RuntimeError):
    """A model is not on this machine and could not be fetched; the message says how to get it."""


def find_folder(name: str, known: Collection[str] = ()) -> Path:
    """The folder of a local path or of a hub id, downloaded if needed.

    known: other names, for the error's hint. Raises ModelNotAvailable.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ValueError(f"{path} has no config.json: give a folder as save_pretrained writes it")
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        near = difflib.get_close_matches(name.lower(), known, 1, 0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ModelNotAvailable(
            f"no model {name!r}: {hint}Give one of {', '.join(known)}, a folder, or a hub id such as owner/name"
        )
    from huggingface_hub import snapshot_download

    patterns = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.jinja"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelNotAvailable(
            f"could not get {name!r} from the hub ({type(error).__name__}: {reason[:160]}). With a network, check the "
            "name and your login; without one, copy the model's folder here and give its path"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file as a dictionary."""
    with path.open(encoding="utf-8") as file:
        return json.load(file)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model, one or several. Raises ValueError where one is missing."""
    index = folder / "model.safetensors.index.json"
    names = set(read_json(index)["weight_map"].values()) if index.exists() else {"model.safetensors"}
    files = [folder / name for name in sorted(names)]
    missing = [file.name for file in files if not file.exists()]
    if missing and index.exists():
        raise ValueError(f"{folder} lacks {', '.join(missing)}, which its {index.name} lists: copy the whole folder")
    if missing:
        pickled = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in folder.glob(pattern))
        only = f", only pickled weights ({pickled[0]}), which can run any code when they are opened" if pickled else ""
        raise ValueError(
            f"{folder} has no model.safetensors{only}: load the model where you trust it and write the folder with "
            "save_pretrained"
        )
    return files


def read_safetensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder by name. Raises ValueError for a damaged file."""
    state: dict[str, torch.Tensor] = {}
    for file in weight_files(folder):
        try:
            state |= load_file(file)
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged ({error}): copy it again") from error
    return state


def read_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, or None where it has none."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    config = folder / "tokenizer_config.json"
    if not config.exists():
        return None
    # transformers 5 writes PreTrainedTokenizerFast by a new name, which 4 does not know.
    renamed = read_json(config).get("tokenizer_class") == "TokenizersBackend"
    return (PreTrainedTokenizerFast if renamed else AutoTokenizer).from_pretrained(folder, local_files_only=True)
