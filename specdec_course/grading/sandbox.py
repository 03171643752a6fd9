"""Runs a submission's cells and tests in the sandbox, and takes in from outside what happened.

Here no line of a submission is ever run: the sandbox writes lines into a pipe, and this side decides what they mean
(`Outcome`). The limits are set inside, before the first line of the submission (`inside.confine`); from outside, time,
memory of all its processes together and output are watched, and the whole is killed where they are passed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from specdec_course.grading.bubblewrap import MB, Limits, bwrap, environment, require_sandbox

RESTARTS = 4  # of a submission whose cells end the process; each time without the cell that did
STOPPED_BEFORE = "no zero, as a cell before it was stopped"
TIME_OVER = "stopped: the whole submission took more than {} s"


@dataclass
class CodeCell:
    """A code cell to run. kind: "code" or "test"; trusted: its source is the instructor's.

    reaching: what in its source reaches for the grading itself; tests that run after it give no points.
    """

    index: int
    source: str
    kind: str = "code"
    trusted: bool = False
    points: float = 0
    reaching: str = ""


@dataclass
class TestRun:
    """One run of a test: at its place, or after the last cell."""

    points: float | None = None
    ended: str = ""  # why it gave no points
    tampered: bool = False
    hindered: str = ""  # what kept it, or a cell before it, from running as it should
    outputs: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Outcome:
    """What came of running a submission."""

    outputs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)  # how a cell ended, where not as it should
    tests: dict[int, list[TestRun]] = field(default_factory=dict)
    tampered: dict[str, None] = field(default_factory=dict)  # what was reached for or replaced, in order
    rebound: dict[int, list[str]] = field(default_factory=dict)  # given names that were bound anew, by test
    asked: dict[int, None] = field(default_factory=dict)  # cells that wanted input()
    failure: str = ""  # why it ended early
    started: bool = False
    seconds: float = 0

    def score(self, cell: CodeCell) -> float | None:
        """The points of a test, the better of its runs; None where a human has to decide.

        A run beside code that was replaced counts for nothing, and not as a zero either. Nothing is a zero where a run
        was stopped, or where a cell before it was stopped or asked for input.
        """
        runs = self.tests.get(cell.index, [])
        best = max((r.points for r in runs if r.points is not None and not r.tampered), default=None)
        if best is None or best == cell.points:
            return best
        undecided = best == 0 and any(r.points is None or r.hindered for r in runs)
        return None if undecided or any(r.tampered for r in runs) else best

    def shown(self, index: int) -> list[dict[str, Any]]:
        """The outputs of a cell; of a test, those of its best run."""
        runs = self.tests.get(index)
        return (
            max(runs, key=lambda r: -1.0 if r.points is None else r.points).outputs
            if runs
            else self.outputs.get(index, [])
        )

    def stopped(self, index: int) -> str:
        """Why a test gave no points in any of its runs; empty where it did."""
        runs = self.tests.get(index, [])
        return "" if any(r.points is not None for r in runs) else next((r.ended for r in runs if r.ended), "")

    def why_undecided(self, cell: CodeCell) -> str:
        """Why `score` is None, in a few words."""
        runs = self.tests.get(cell.index, [])
        if any(r.tampered for r in runs):
            return f"left to you, as the submission reached for the grading ({', '.join([*self.tampered][:3])})"
        ended = [r.ended for r in runs if r.ended] or [r.hindered for r in runs if r.hindered]
        return ended[0] if ended else self.ended.get(cell.index, "was not reached")


def run(
    cells: Sequence[CodeCell],
    seed: int,
    limits: Limits | None = None,
    *,
    confined: bool = True,
    names: dict[str, str] | None = None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Run code cells and tests in order, in a sandbox (`confined`) or without.

    seed: of the checks' inputs. names: strings that the cells find. stop: set it to end the run early.
    A cell that ends the process is left out and the rest run again, so that one cell does not cost the others their
    points; what was stopped for its time or memory is not run again either. One limit of time holds for all of it.
    Raises SandboxMissing.
    """
    if confined:
        require_sandbox()
    limits = limits or Limits()
    result, until = Outcome(), time.monotonic() + limits.total_s
    began, skip = time.monotonic(), set[int]()
    for _ in range(RESTARTS + 1):
        died_in = _Attempt(result, cells, limits, until, stop).run(sorted(skip), seed, confined, names or {})
        if died_in is None:
            break
        full = {c.index for c in cells if c.kind == "test" and result.score(c) == c.points}
        skip |= {died_in, *full, *(i for i, how in result.ended.items() if how.startswith("stopped"))}
    else:
        result.failure = result.failure or "cells ended its process again and again"
    result.seconds = time.monotonic() - began
    return result


class _Attempt:
    """One process in the sandbox, listened to from outside."""

    def __init__(
        self,
        result: Outcome,
        cells: Sequence[CodeCell],
        limits: Limits,
        until: float,
        stop: threading.Event | None,
    ) -> None:
        self.result, self.cells, self.limits = result, {c.index: c for c in cells}, limits
        self.token = secrets.token_hex(16)
        self.until, self.cell_until, self.stop = until, until, stop
        self.running: int | None = None
        self.test = TestRun()
        self.reached, self.hindered = False, ""  # by a cell, for the tests after it
        self.received, self.looked, self.done, self.stopped = 0, 0.0, False, ""

    def run(self, skip: list[int], seed: int, confined: bool, names: dict[str, str]) -> int | None:
        """Fill the result. The index of the cell in which the process ended; None where that was the end."""
        limits, result = self.limits, self.result
        self.hindered = STOPPED_BEFORE if skip and any(self.cells[i].kind == "code" for i in skip) else ""
        as_root = hasattr(os, "geteuid") and os.geteuid() == 0
        left_s = max(1, round(self.until - time.monotonic()))
        job = {
            "token": self.token,
            "cells": [asdict(c) for c in self.cells.values()],
            "skip": skip,
            "seed": seed,
            "names": names,
            "confined": confined,
            "limits": {**asdict(limits), "total_s": left_s, "own_processes": confined and limits.own_processes},
            # Limits on processes don't bind root; a number that no other sandbox has is counted by itself.
            "uid": 200_000 + int(self.token[:5], 16) if confined and as_root else None,
        }
        reading, writing = os.pipe()
        with tempfile.TemporaryDirectory(prefix="specdec-grade-") as folder, tempfile.TemporaryFile() as complaints:
            start = [sys.executable, "-I", str(Path(__file__).with_name("inside.py")), str(writing)]
            process = subprocess.Popen(
                [*bwrap(limits, as_root), *start] if confined else start,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                pass_fds=[writing],
                cwd="/" if confined else folder,  # without a sandbox, not the course's folder
                env=environment(folder),
                start_new_session=True,
            )
            os.close(writing)
            try:
                assert process.stdin
                line = json.dumps(job).encode() + b"\n"
                threading.Thread(target=_feed, args=(process.stdin, line), daemon=True).start()
                for kind, cell, text in self._lines(reading, process):
                    self._take(kind, cell, text)
            finally:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)  # bubblewrap's namespace goes down with it
                process.kill()
                os.close(reading)
            process.wait()
            complaints.seek(0)
            said = complaints.read()[-2000:].decode(errors="replace").strip()
        if self.done:
            return None
        over = TIME_OVER.format(limits.total_s)
        if self.running is not None:
            self._end_running(self.stopped or "ended the process")
        if self.stopped in ("interrupted", over, MACHINE_FULL):
            result.failure = self.stopped
        elif not result.started:
            result.failure = self.stopped or f"it did not start: {said.splitlines()[-1] if said else 'no reason given'}"
        elif self.running is not None:
            return self.running
        else:
            result.failure = self.stopped or "its process ended between two cells"
        return None

    def _end_running(self, how: str) -> None:
        assert self.running is not None
        self.result.ended[self.running] = how
        if self.cells[self.running].kind == "test":
            self.result.tests.setdefault(self.running, []).append(TestRun(ended=how))

    def _lines(self, reading: int, process: subprocess.Popen[bytes]) -> Iterator[tuple[str, int, str]]:
        """(kind, cell, text) of each line that carries the token, until the end."""
        rest = b""
        while not self.done and self._goes_on(process):
            if not select.select([reading], [], [], 0.1)[0]:
                continue
            piece = os.read(reading, 1 << 18)
            if not piece:
                return
            self.received += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if not line:
                    continue
                token, _, message = line.partition(b" ")
                kind, cell, text = [*message.split(b" ", 2), b"", b"", b""][:3]
                if token == self.token.encode() and cell.lstrip(b"-").isdigit():
                    yield kind.decode(), int(cell), text.decode("utf-8", "replace")
                else:
                    self._tamper("the channel of the grading")

    def _take(self, kind: str, cell: int, text: str) -> None:
        """Take in one line. What does not fit the order of things is somebody else's work, and counts as such."""
        result = self.result
        if kind == "ready":
            result.started = True
        elif kind == "done":
            self.done = True
        elif kind == "asked":
            result.asked[cell] = None
            self.hindered = self.test.hindered = "no zero, as the submission waits for input()"
        elif kind == "reached":
            self._tamper(text)
        elif kind == "start" and self.running is None and cell in self.cells:
            self.running, self.test = cell, TestRun(tampered=self.reached, hindered=self.hindered)
            self.cell_until = time.monotonic() + self.limits.cell_s + 10
            if self.cells[cell].reaching:
                self._tamper(self.cells[cell].reaching)
        elif cell != self.running:
            self._tamper("a forged message")
        elif kind == "cell":
            result.outputs[cell], ended = _parsed(text)
            result.ended.pop(cell, None)
            if ended not in ("", "error"):
                result.ended[cell] = ended
                self.hindered = STOPPED_BEFORE
            self._stand_still()
        elif kind == "touched":
            result.tampered[text] = None
            self.test.tampered = True
        elif kind == "rebound":
            result.rebound[cell] = sorted({*result.rebound.get(cell, ()), text})
        elif kind == "test":
            self.test.outputs, self.test.ended = _parsed(text)
        elif kind == "points":
            if self.test.points is not None:
                self._tamper("a forged message")
            with contextlib.suppress(ValueError):
                points = float(text)
                self.test.points = points if 0 <= points <= self.cells[cell].points else None
        elif kind == "ended":
            self.test.ended = self.test.ended or text
            if self.test.points is None and not self.test.ended:
                self.test.ended = "the process ended before there was a mark"
            result.tests.setdefault(cell, []).append(self.test)
            self._stand_still()

    def _stand_still(self) -> None:
        self.running, self.cell_until = None, self.until

    def _tamper(self, how: str) -> None:
        self.result.tampered[how] = None
        self.reached = self.test.tampered = True

    def _goes_on(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it may go on; `stopped` says why not."""
        now, most = time.monotonic(), self.limits.memory
        if self.stop is not None and self.stop.is_set():
            self.stopped = "interrupted"
        elif now > self.until:
            self.stopped = TIME_OVER.format(self.limits.total_s)
        elif now > self.cell_until:  # it did not heed the alarm inside
            self.stopped = f"stopped after {self.limits.cell_s} s, the time that a cell has"
        elif self.received > 16 * self.limits.output:
            self.stopped = "stopped: too much output"
        elif now - self.looked > 0.2:
            self.looked = now
            if memory_of_tree(process.pid) > most and memory_of_tree(process.pid, shared_once=True) > most:
                self.stopped = f"stopped at {most // MB} MB of memory"
            elif psutil.virtual_memory().available < 300 * MB:
                self.stopped = MACHINE_FULL
        return not self.stopped


MACHINE_FULL = "stopped: this machine ran out of memory"


def _parsed(text: str) -> tuple[list[dict[str, Any]], str]:
    """Outputs and end of a cell, as the inside says; empty where that is no JSON of this kind."""
    try:
        said = json.loads(text)
        return [o for o in said["outputs"] if isinstance(o, dict)], str(said["ended"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return [], ""


def _feed(pipe: IO[bytes], line: bytes) -> None:
    with contextlib.suppress(OSError), pipe:  # it ended before it read all
        pipe.write(line)


def memory_of_tree(pid: int, shared_once: bool = False) -> int:
    """Bytes in memory of a process and all below it.

    Memory that a child shares with its parent since it was forked counts for both; only once where `shared_once`, which
    takes longer.
    """
    total = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                if shared_once:
                    total += getattr(each.memory_full_info(), "pss", 0)
                else:
                    total += each.memory_info().rss
    return total
