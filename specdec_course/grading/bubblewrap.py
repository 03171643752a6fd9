"""The bubblewrap sandbox that submissions run in: nothing of this machine but Python, the package and the model.

What the sandbox holds is named here, everything else is absent: /usr and the libraries, the Python environment, the
course's packages and the cache of models, all read-only; /tmp is its own, in memory, and of a fixed size. No network,
its own processes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import specdec_course
import specdec_ref

MB = 1 << 20
INSTALL = "install bubblewrap (Debian, Ubuntu: `sudo apt install bubblewrap`; Fedora: `sudo dnf install bubblewrap`)"


class SandboxMissing(OSError):
    """There is no working bubblewrap on this machine; the text says what to do."""


@dataclass(frozen=True)
class Limits:
    """What a submission may use. Seconds and bytes."""

    cell_s: int = 60  # a cell, and each run of a test
    total_s: int = 300  # the whole submission, whatever is run again included
    memory: int = 4096 * MB  # of each process and, watched, of all together
    disk: int = 256 * MB  # what it can write in all; it lies in memory
    file: int = 64 * MB
    processes: int = 64  # threads count
    output: int = 4 * MB  # of one cell
    own_processes: bool = True  # whether they can be counted apart from the user's other ones


def environment(folder: str) -> dict[str, str]:
    """Variables that a submission sees: none of the instructor's own."""
    from specdec_ref.models.store.catalog import home

    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {
        **threads,
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": folder,
        "TMPDIR": folder,
        "IPYTHONDIR": f"{folder}/ipython",
        "MPLCONFIGDIR": f"{folder}/matplotlib",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "SPECDEC_HOME": str(home()),
    }


def bwrap(limits: Limits, as_root: bool) -> list[str]:
    """The bubblewrap command, up to the program that runs in it."""
    from specdec_ref.models.store.catalog import home

    # Root makes no user namespace: its limits would not bind there. It becomes an ordinary user inside instead.
    if as_root:
        user = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        user = ["--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    command = ["bwrap", *user, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--hostname", "grading"]
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix"):
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            command += ["--ro-bind", path, path]
    disk = ["--size", str(limits.disk), "--perms", "1777", "--tmpfs"]
    command += [*disk, "/tmp"]  # before all else: a course may lie in there
    seen = {
        sys.prefix,
        sys.base_prefix,
        str(Path(specdec_ref.__file__).parent),
        str(Path(specdec_course.__file__).parent),
        str(home()),
    }
    seen |= {"/usr", "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"}
    made = {"/", "/tmp"}
    for path in sorted(p for p in seen if os.path.exists(p)):
        for folder in map(str, reversed(Path(path).parents)):
            if folder not in made and not any(Path(folder).is_relative_to(s) for s in seen):
                command += ["--perms", "0755", "--dir", folder]
                made.add(folder)
        command += ["--ro-bind", path, path]
    command += ["--proc", "/proc", "--dev", "/dev", *disk, "/dev/shm", "--remount-ro", "/dev"]
    command += ["--chdir", "/tmp", "--clearenv"]
    for name, value in environment("/tmp").items():
        command += ["--setenv", name, value]
    return [*command, "--remount-ro", "/"]


@lru_cache(maxsize=1)
def require_sandbox() -> None:
    """Check that bubblewrap is installed and works on this machine. Raises SandboxMissing."""
    if shutil.which("bwrap") is None:
        raise SandboxMissing(
            f"submissions are untrusted code and run in a sandbox only: {INSTALL}, "
            "or say --no-sandbox if this machine holds nothing that they could harm or read"
        )
    as_root = os.geteuid() == 0
    done = subprocess.run(
        [*bwrap(Limits(), as_root), sys.executable, "-I", "-c", "print('in')"], capture_output=True, text=True
    )
    if done.stdout.strip() != "in":
        raise SandboxMissing(
            f"bubblewrap is here but makes no sandbox ({done.stderr.strip()[-200:]}): on some systems user namespaces "
            "have to be allowed first (`sysctl kernel.unprivileged_userns_clone`, AppArmor's restriction of them, "
            "a container's settings); or say --no-sandbox where this machine holds nothing to harm or to read"
        )
