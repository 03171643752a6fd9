"""Read a folder in Hugging Face format, as `save_pretrained` writes it or a hub sends it."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase

from specdec_ref.kernels.packing import Blocks
from specdec_ref.models.store.blocks import read_blocks
from specdec_ref.models.store.catalog import CATALOG, GGUF_NAME, INDEX, ModelNotAvailable


class ModelFolder:
    """A model in Hugging Face format; beside it may lie the GGUF file that it was converted from."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def config(self) -> dict[str, Any]:
        """`config.json`, with the end tokens of `generation_config.json` where that names any."""
        config = read_json(self.path / "config.json")
        generation = self.path / "generation_config.json"
        if generation.exists() and (eos := read_json(generation).get("eos_token_id")) is not None:
            config["eos_token_id"] = eos
        return config

    def tensors(self) -> dict[str, torch.Tensor]:
        """All weights by name. Raises ValueError where some are missing, damaged or pickled."""
        return read_safetensors(self.path)

    def blocks(self) -> dict[str, Blocks]:
        """The matrices that its GGUF file holds in 4 and 8 bits, by name; empty where there is none."""
        index = self.path / INDEX
        return read_blocks(self.path / GGUF_NAME, read_json(index)) if index.exists() else {}

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """See `read_tokenizer`."""
        return read_tokenizer(self.path)


def find_folder(name: str) -> Path:
    """The folder of a local path or of a hub id, downloaded if needed.

    Raises ModelNotAvailable where there is none, ValueError for a folder that is no model.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            files = sorted(p.name for p in path.iterdir() if p.suffix.lower() == ".gguf")
            what = f"give the path of {files[0]} in it" if files else "give a folder as save_pretrained writes it"
            raise ValueError(f"{path} has no config.json: {what}")
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        near = difflib.get_close_matches(name.lower(), CATALOG, 1, 0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ModelNotAvailable(
            f"no model {name!r}: {hint}Give one of {', '.join(CATALOG)}, a folder, a GGUF file, or a hub id such as "
            "owner/name"
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
    """A JSON file as a dictionary. Raises ValueError, with the file's name, for one that is damaged."""
    try:
        with path.open(encoding="utf-8") as file:
            content = json.load(file)
    except ValueError as error:  # JSON, or UTF-8
        raise ValueError(f"{path} is no whole JSON file ({error}): copy it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__} where names and values are expected")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model, one or several. Raises ValueError where one is missing."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        if "weight_map" not in (listed := read_json(index)):
            raise ValueError(f"{index} lists no weights: copy it again")
        names = set(listed["weight_map"].values())
    else:
        names = {"model.safetensors"}
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


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    """The folder's tokenizer, or None where it has none. Raises ValueError for one that cannot be read."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    config, alone = folder / "tokenizer_config.json", folder / "tokenizer.json"
    # transformers 5 writes PreTrainedTokenizerFast by a new name, which 4 does not know.
    if config.exists():
        plain = read_json(config).get("tokenizer_class") == "TokenizersBackend"
    else:
        plain = alone.exists()  # that file says everything but the names of special tokens
        if not plain and not any((folder / name).exists() for name in ("tokenizer.model", "vocab.json", "vocab.txt")):
            return None
    try:
        return (PreTrainedTokenizerFast if plain else AutoTokenizer).from_pretrained(folder, local_files_only=True)
    except Exception as error:
        reason = " ".join((str(error) or type(error).__name__).split())
        raise ValueError(f"{folder}: its tokenizer cannot be read ({reason[:300]})") from error
