"""A process that holds one model and runs its arms when asked: `python -m specdec_ref.bench.worker JSON`.

Arms in processes of their own share no threads and no memory, so that what one library leaves running or allocated
does not weigh on the next, and the peak memory of each is known. Requests and answers are lines of JSON; a request
that fails is answered by its error.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from specdec_ref.bench.arms import Sample, make_arms, model_folder
from specdec_ref.models.store.catalog import GGUF_NAME


class WorkerFailed(RuntimeError):
    """A worker could not load its model or run an arm; the message says what it met."""


class Worker:
    """The other end of a worker process. `facts` and `arms` are there once it is loaded."""

    def __init__(self, worker: str, model: str, gamma: int, lookups: Sequence[int], threads: int | None) -> None:
        self.name = worker
        request = {"worker": worker, "model": model, "gamma": gamma, "lookups": list(lookups), "threads": threads}
        command = [sys.executable, "-m", "specdec_ref.bench.worker"]
        if worker == "llamacpp":
            if shutil.which("node") is None:
                raise WorkerFailed("llamacpp: needs Node.js, and `npm install node-llama-cpp` in the folder you are in")
            request["gguf"] = str(model_folder(model) / GGUF_NAME)
            command = ["node", str(Path(__file__).with_name("llamacpp.mjs"))]
        environment = dict(os.environ) | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
        self._process = subprocess.Popen(
            [*command, json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=environment,
        )
        hello = self._read()
        self.facts: dict[str, Any] = hello["facts"]
        self.arms: list[str] = hello["arms"]

    def run(self, arm: str, ids: Sequence[int], n: int) -> Sample:
        """One generation of `n` tokens. Raises WorkerFailed."""
        return Sample(**self._ask({"arm": arm, "ids": list(ids), "n": n}))

    def peak_bytes(self) -> int | None:
        """The most memory the process has held so far (resident), where the system reports it."""
        return self._ask({"arm": None})["peak_bytes"]

    def close(self) -> None:
        """End the process."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"{self.name}: the process ended ({self._process.wait()}), perhaps for lack of memory")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(f"{self.name}: {answer['error']}")
        return answer


def peak_bytes() -> int | None:
    """This process' largest resident size so far, None where the system does not report it."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux: psutil has no peak, and getrusage would count the process that started this one
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    """Load, say so, then answer requests until the input ends."""
    # Libraries print; only answers may reach the pipe.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    try:
        import torch

        request = json.loads(sys.argv[1])
        if request["threads"]:
            torch.set_num_threads(request["threads"])
        arms, facts = make_arms(request["worker"], request["model"], request["gamma"], request["lookups"])
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"facts": facts, "arms": list(arms)})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["arm"] is None:
                answer({"peak_bytes": peak_bytes()})
            else:
                answer(asdict(arms[request["arm"]](request["ids"], request["n"])))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
