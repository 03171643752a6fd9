"""Convert a GGUF file to a folder in Hugging Face format."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file

from specdec_ref.models.store.catalog import INDEX, MANIFEST
from specdec_ref.models.store.gguf import GGUFFile

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, 0 to 1."""


def convert(gguf: Path, folder: Path, what: str, progress: Progress | None = None) -> None:
    """Write `folder` in Hugging Face format from a GGUF file (float32 weights), with a manifest of hashes."""
    report = progress or PrintEachStep()
    report("converting to safetensors", 0)
    source = GGUFFile(gguf)
    config = source.config()
    state = {}
    for i, (name, tensor) in enumerate(source.weights()):
        state[name] = tensor
        report("converting to safetensors", 0.8 * (i + 1) / (9 * config["num_hidden_layers"] + 2))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    generation = {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    (folder / INDEX).write_text(json.dumps(source.index()), encoding="utf-8")
    source.tokenizer().save_pretrained(folder)
    files = {
        p.name: {"bytes": p.stat().st_size, "mtime_ns": p.stat().st_mtime_ns, "sha256": sha256(p)}
        for p in sorted(folder.iterdir())
        if p.is_file()
    }
    manifest = {"what": what, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    report("converting to safetensors", 1)


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


class PrintEachStep:
    """Progress for a plain console: one line on standard error as each step begins."""

    def __init__(self) -> None:
        self._step = ""

    def __call__(self, what: str, share: float) -> None:
        """Print `what` the first time that it comes."""
        if what != self._step:
            self._step = what
            print(f"specdec: {what} ...", file=sys.stderr, flush=True)
