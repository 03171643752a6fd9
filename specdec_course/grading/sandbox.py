"""Runs a submission's cells under bubblewrap: nothing of this machine is there but Python, the package and the model.

What the sandbox holds is named here, everything else is absent: /usr and the libraries, the Python environment,
`specdec_ref` and the cache of models, all read-only; /tmp is its own, in memory, and of a fixed size. No network, own
processes. The limits are set inside, before the first line of the submission (`inside.confine`); from outside, time,
memory of all its processes together and output are watched, and the whole is killed where they are passed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import specdec_course
import specdec_ref

MB = 1 << 20
RESTARTS = 4  # of a submission whose cells end the process; each time without the cell that did
INSTALL = "install bubblewrap (Debian, Ubuntu: `sudo apt install bubblewrap`; Fedora: `sudo dnf install bubblewrap`)"


class SandboxMissing(OSError):
    """There is no working bubblewrap on this machine; the text says what to do."""


@dataclass(frozen=True)
class Limits:
    """What a submission may use. Seconds and bytes."""

    cell_s: int = 60
    total_s: int = 300
    memory: int = 4096 * MB  # of each process and, watched, of all together
    disk: int = 256 * MB  # what it can write in all; it lies in memory
    file: int = 64 * MB
    processes: int = 64  # threads count
    output: int = 4 * MB  # of one cell
    own_processes: bool = True  # whether they can be counted apart from the user's other ones


@dataclass
class Cell:
    """A code cell to run. kind: "code" or "test"; trusted: its source is the instructor's."""

    index: int
    source: str
    kind: str = "code"
    trusted: bool = False
    points: float = 0


@dataclass
class Run:
    """What came of running a submission."""

    outputs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    scores: dict[int, float | None] = field(default_factory=dict)  # of test cells; None: it gave no mark
    ended: dict[int, str] = field(default_factory=dict)  # how a cell ended, where not as it should
    changed: list[str] = field(default_factory=list)  # of the package or Python: put back before the tests
    failure: str = ""  # why nothing could be run at all
    seconds: float = 0


def run(
    cells: Sequence[Cell],
    seed: int,
    limits: Limits = Limits(),
    *,
    confined: bool = True,
    names: dict[str, str] | None = None,
    stop: threading.Event | None = None,
) -> Run:
    """Run code cells in order, then each test cell by itself, in a sandbox (`confined`) or without.

    seed: of the checks' inputs. names: strings that the cells find. stop: set it to end the run early.
    A cell that ends the process is left out and the rest run again, so that one cell does not cost the others theirs;
    what was stopped for its time or memory is not run again either.
    Raises SandboxMissing.
    """
    if confined:
        require_sandbox()
    result, began = Run(), time.monotonic()
    skip: list[int] = []
    for _ in range(RESTARTS + 1):
        left = limits.total_s - (time.monotonic() - began)
        died_in = _run_once(result, cells, skip, seed, limits, left, confined, names or {}, stop)
        if died_in is None:
            break
        skip = sorted({*skip, died_in, *(i for i, how in result.ended.items() if how.startswith("stopped"))})
    else:
        result.failure = result.failure or "cells ended its process again and again"
    result.seconds = time.monotonic() - began
    return result


def _run_once(
    result: Run,
    cells: Sequence[Cell],
    skip: list[int],
    seed: int,
    limits: Limits,
    left_s: float,
    confined: bool,
    names: dict[str, str],
    stop: threading.Event | None,
) -> int | None:
    """One process. Fills `result`; the index of the cell in which the process ended, None where it came to its end."""
    token = secrets.token_hex(16)
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    job = {
        "token": token,
        "cells": [asdict(c) for c in cells],
        "skip": skip,
        "seed": seed,
        "names": names,
        "confined": confined,
        "limits": asdict(limits) if confined else {**asdict(limits), "own_processes": False},
        # Limits on processes don't bind root; a number that no other sandbox has is counted by itself.
        "uid": 200_000 + int(token[:5], 16) if confined and as_root else None,
    }
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory(prefix="specdec-grade-") as folder, tempfile.TemporaryFile() as complaints:
        inside = str(Path(__file__).with_name("inside.py"))
        start = [sys.executable, "-I", inside, str(writing)]
        # Without a sandbox, the package has to be found from another folder than the course's.
        process = subprocess.Popen(
            [*bwrap(limits, as_root), *start] if confined else start,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            pass_fds=[writing],
            cwd="/" if confined else folder,
            env=environment(folder),
            start_new_session=True,
        )
        os.close(writing)
        watch = _Watch(process, limits, left_s, stop)
        try:
            assert process.stdin
            threading.Thread(target=_feed, args=(process.stdin, json.dumps(job).encode() + b"\n"), daemon=True).start()
            running, done = _listen(result, reading, token, watch, limits)
        finally:
            _kill(process)
            os.close(reading)
        process.wait()
        complaints.seek(0)
        said = complaints.read()[-2000:].decode(errors="replace").strip()
    if done:
        return None
    if watch.reason in ("interrupted", watch.TIME):
        if running is not None and running >= 0:
            result.ended[running] = watch.reason
        result.failure = watch.reason
        return None
    if running is None or running < 0:
        result.failure = watch.reason or f"it did not start: {said.splitlines()[-1] if said else 'no reason given'}"
        return None
    result.ended[running] = watch.reason or "ended the process"
    if any(c.index == running and c.kind == "test" for c in cells):
        result.scores[running] = None
    return running


def _feed(pipe: Any, line: bytes) -> None:
    try:
        with pipe:
            pipe.write(line)
    except OSError:  # it ended before it read all
        return


def _listen(result: Run, reading: int, token: str, watch: _Watch, limits: Limits) -> tuple[int | None, bool]:
    """Take in what the inside tells. The cell that runs (-1: not begun, None: between cells), and whether it is done.

    Lines without the token do not come from the runner.
    """
    rest = b""
    running: int | None = -1
    while watch.goes_on():
        if not select.select([reading], [], [], 0.1)[0]:
            continue
        piece = os.read(reading, 1 << 18)
        if not piece:
            break
        *lines, rest = (rest + piece).split(b"\n")
        watch.received += len(piece)
        for line in lines:
            try:
                event = json.loads(line)
                if event.get("token") != token:
                    continue
                kind, cell = event["event"], event.get("cell")
                if kind == "done":
                    return None, True
                running = cell if kind == "start" else None
                watch.cell_until = time.monotonic() + limits.cell_s + 10 if kind == "start" else watch.until
                if kind in ("cell", "test"):
                    result.outputs[cell] = list(event["outputs"])
                    result.ended.pop(cell, None)
                    if event["ended"] not in ("", "error"):
                        result.ended[cell] = str(event["ended"])
                if kind == "test":
                    result.scores[cell] = event["score"]
                    result.changed = sorted({*result.changed, *event["changed"]})
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
    return running, False


class _Watch:
    """Looks after a running sandbox: its time, the memory of all its processes, the output it sends."""

    TIME = "stopped: over its time in all"

    def __init__(self, process: subprocess.Popen, limits: Limits, left_s: float, stop: threading.Event | None) -> None:
        self.process, self.limits, self.stop = process, limits, stop
        self.until = self.cell_until = time.monotonic() + left_s
        self.received, self.reason, self.looked = 0, "", 0.0

    def goes_on(self) -> bool:
        """Whether it may go on; `reason` says why not."""
        now = time.monotonic()
        if self.stop is not None and self.stop.is_set():
            self.reason = "interrupted"
        elif now > self.until:
            self.reason = self.TIME
        elif now > self.cell_until:  # it did not heed the alarm inside
            self.reason = f"stopped after {self.limits.cell_s} s"
        elif self.received > 16 * self.limits.output:
            self.reason = "stopped: too much output"
        elif now - self.looked > 0.2:
            self.looked = now
            pid, most = self.process.pid, self.limits.memory
            if memory_of_tree(pid) > most and memory_of_tree(pid, exact=True) > most:
                self.reason = f"stopped at {self.limits.memory // MB} MB of memory"
            elif memory_left() < 300 * MB:
                self.reason = "stopped: this machine ran out of memory"
        return not self.reason


def memory_of_tree(pid: int, exact: bool = False) -> int:
    """Bytes in memory of a process and all below it; Linux, elsewhere 0.

    Memory that a child shares with its parent since it was forked counts for both; only once where `exact`, which takes
    longer.
    """
    total, todo = 0, [pid]
    while todo:
        at = Path("/proc") / str(todo.pop())
        try:
            todo += map(int, (at / "task" / at.name / "children").read_text(encoding="ascii").split())
            file, row = ("smaps_rollup", "Pss:") if exact else ("status", "VmRSS:")
            lines = (at / file).read_text(encoding="utf-8").splitlines()
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith(row))
        except (OSError, ValueError):  # it ended meanwhile
            continue
    return total


def memory_left() -> int:
    """Bytes that this machine can still give; Linux, elsewhere a large number."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 1 << 60


def _kill(process: subprocess.Popen) -> None:
    """The process and its group; bubblewrap's namespace goes down with it."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


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
    """See that bubblewrap is there and that it works on this machine. Raises SandboxMissing."""
    if shutil.which("bwrap") is None:
        raise SandboxMissing(
            f"submissions are programs of others and run in a sandbox only: {INSTALL}, "
            "or say --no-sandbox where this machine holds nothing that they could harm or read"
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
