"""Set up everything the course needs: an environment in .venv, PyTorch, this package, the default model.

    python3 bootstrap.py                set up (a second run takes seconds and needs no network)
    python3 bootstrap.py lab            ... and open JupyterLab on the first lesson
    python3 bootstrap.py --extras test  ... with what the tests need

Needs Python 3.10 or newer and nothing else. Environment variables:
    VENV          where the environment goes (.venv)
    TORCH_INDEX   package index to take PyTorch from; overrides the choice made here
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = Path(os.environ.get("VENV", ROOT / ".venv"))
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=["setup", "lab"], default="setup")
    parser.add_argument("--extras", default="", help="optional dependencies of pyproject.toml, such as test,instructor")
    args, lab_args = parser.parse_known_args()
    if lab_args and args.action != "lab":
        parser.error(f"{' '.join(lab_args)} is not known here; only lab passes options on, to jupyter lab")
    if sys.version_info < (3, 10):
        stop(f"Python 3.10 or newer is needed, this is {platform.python_version()}. Try: python3.11 bootstrap.py")
    install(sorted(e for e in args.extras.split(",") if e))
    if subprocess.run([PYTHON, "-m", "specdec_ref.cli", "fetch", "--quiet"]).returncode:
        stop("the default model is missing (see above)")
    if args.action == "lab":
        lab(lab_args)


def install(extras: list[str]) -> None:
    """Install what pyproject.toml names, unless the stamp says that it is there already."""
    stamp = VENV / "specdec-setup"
    done = stamp.read_text(encoding="utf-8").split() if stamp.exists() else []
    want = fingerprint()
    if PYTHON.exists() and done[:1] == [want] and set(extras) <= set(done[1:]):
        return
    extras = sorted({*extras, *done[1:]})
    if not PYTHON.exists():
        say(f"creating an environment in {VENV.name}")
        run([sys.executable, "-m", "venv", VENV], "install your system's python3-venv package, or use conda")
    install_torch()
    say("installing the package and JupyterLab")
    what = f"-e.[{','.join(['course', *extras])}]"
    run([*pip("install"), "-c", ROOT / "constraints.txt", what], "check the network; what was installed stays")
    stamp.write_text(" ".join([want, *extras]), encoding="utf-8")


def install_torch() -> None:
    """PyTorch before all else: without a word from us pip would take the CUDA build of several GB on Linux."""
    if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode == 0:
        return
    pinned = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    requirement = pinned.group() if pinned else "torch"
    index = os.environ.get("TORCH_INDEX")
    if not index:
        # A folder of wheels that pip was told about (find-links) comes first: that is how a workshop without a
        # fast network brings PyTorch along.
        local = [*pip("install"), "--no-index", requirement, "-c", ROOT / "constraints.txt"]
        if subprocess.run([*local, "--no-deps"], capture_output=True).returncode == 0:
            say(f"{requirement} from a local wheel")
            run([*pip("install"), "-c", ROOT / "constraints.txt", requirement], "check the network")
            return
        nvidia = shutil.which("nvidia-smi") or Path("/proc/driver/nvidia/version").exists()
        if platform.system() == "Linux" and not nvidia:
            index = CPU_INDEX
    size = "about 200 MB, the build for CPUs" if index == CPU_INDEX else "200 MB to 3 GB, depending on the build"
    say(f"downloading {requirement} ({size}); TORCH_INDEX chooses another source")
    source = ["--index-url", index] if index else []
    run([*pip("install"), requirement, *source], "check the network, or set TORCH_INDEX")


def lab(args: list[str]) -> None:
    """JupyterLab on the first lesson; it takes the next port where one is busy, and prints its address.

    The lesson is the server's default page, so that it is found without a browser on this machine too.
    """
    first = "--LabApp.default_url=/lab/tree/lessons/00_start_here.ipynb"
    command = [str(PYTHON), "-m", "jupyterlab", f"--ServerApp.root_dir={ROOT}", first, *args]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # in a container the learner is root
    # For its kernels: threads that spin while they wait come to a crawl when another program wants a core.
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    sys.exit(subprocess.run(command, cwd=ROOT, env=environment).returncode)


def fingerprint() -> str:
    """Changes where the dependencies or the Python change."""
    digest = hashlib.sha256(platform.python_version().encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()[:16]


def pip(*args: str) -> list[str | Path]:
    return [PYTHON, "-m", "pip", *args, "--quiet", "--disable-pip-version-check"]


def run(command: list[str | Path], hint: str) -> None:
    result = subprocess.run([str(c) for c in command], cwd=ROOT)
    if result.returncode:
        stop(f"{' '.join(str(c) for c in command[1:5])} failed: {hint}")


def say(message: str) -> None:
    print(f"setup: {message}", flush=True)


def stop(message: str) -> None:
    sys.exit(f"setup: {message}")


if __name__ == "__main__":
    main()
