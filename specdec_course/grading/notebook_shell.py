"""Runs one cell as a notebook does, inside the sandbox: an IPython shell, bounded outputs, a time limit."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from collections.abc import Callable
from typing import Any

KEPT = ("text/plain", "image/png")  # of what a cell shows: HTML and scripts would run in the instructor's browser
NO_INPUT = "nobody answers input() when a notebook is graded: write the value into the code"


class TimeUp(BaseException):
    """A cell's time is over. Not an Exception, so that `except Exception` in a loop does not keep it alive."""


class InputAsked(EOFError):
    """The code waits for a human; the text says what to do instead."""


class Outputs(io.TextIOBase):
    """What a cell prints and shows, as a notebook's outputs; cut while it runs, so that it can't fill the memory."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.items: list[dict[str, Any]] = []
        self.room = room

    def writable(self) -> bool:
        return True

    def write(self, text: str, name: str = "stdout") -> int:
        """Add text to the stream `name`."""
        if self.room > 0 and text:
            kept = text[: self.room]
            self.room -= len(kept)
            if self.room <= 0:
                kept += "\n... cut here: too much output\n"
            if not self.items or self.items[-1].get("name") != name:
                self.items.append({"output_type": "stream", "name": name, "parts": []})
            self.items[-1]["parts"].append(kept)
        return len(text)

    def show(self, data: dict[str, Any], result: bool = False) -> None:
        """Add what a cell displays, or its last value (`result`)."""
        kept = {k: v for k, v in data.items() if k in KEPT and isinstance(v, str)}
        size = sum(len(v) for v in kept.values())
        if kept and size <= self.room:
            self.room -= size
            kind: dict[str, Any] = {"output_type": "display_data"}
            if result:
                kind = {"output_type": "execute_result", "execution_count": None}
            self.items.append({**kind, "data": kept, "metadata": {}})

    def error(self, kind: str, message: str, trace: list[str]) -> None:
        """Add a traceback."""
        text = [line[:2000] for line in trace[:100]]
        self.items.append({"output_type": "error", "ename": kind, "evalue": message[:2000], "traceback": text})

    def finished(self) -> list[dict[str, Any]]:
        """The outputs as a notebook stores them."""
        for item in self.items:
            if "parts" in item:
                item["text"] = "".join(item.pop("parts"))
        return self.items


class Errors(io.TextIOBase):
    """Standard error of a cell: the same outputs under another name."""

    def __init__(self, outputs: Outputs) -> None:
        super().__init__()
        self.outputs = outputs

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Add text to the stream of errors."""
        return self.outputs.write(text, "stderr")


def make_shell(names: dict[str, str]) -> Any:
    """An IPython shell without history, colours or files, as a notebook's kernel is one."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "NoColor"
    config.InteractiveShell.xmode = "Context"
    config.InteractiveShell.autocall = 0
    shell = InteractiveShell.instance(config=config)
    # It would keep all that is printed, without a limit.
    setattr(shell, "_tee", lambda channel: contextlib.nullcontext())  # noqa: B010
    shell.user_ns.update(names)
    return shell


def answer_no_input(report: Callable[[], None]) -> None:
    """Make input() and its like raise InputAsked with a clear message, and report that they were called."""
    import builtins
    import getpass

    def asked(*_: Any, **__: Any) -> str:
        report()
        raise InputAsked(NO_INPUT)

    setattr(builtins, "input", asked)  # noqa: B010
    setattr(getpass, "getpass", asked)  # noqa: B010


def run_cell(shell: Any, source: str, limits: dict[str, int]) -> tuple[list[dict[str, Any]], str]:
    """Run a cell. Its outputs, and how it ended: nothing, "error", or why it was stopped."""
    outputs = Outputs(limits["output"])
    shell._showtraceback = lambda kind, value, trace: outputs.error(kind.__name__, str(value), list(trace))
    shell.display_pub.publish = lambda data, *a, **k: outputs.show(data)
    shell.displayhook.quiet = lambda: source.rstrip().endswith(";")
    shell.displayhook.write_output_prompt = lambda: None
    shell.displayhook.write_format_data = lambda data, *a, **k: outputs.show(data, result=True)
    sys.stdout, sys.stderr = outputs, Errors(outputs)
    ended = ""
    try:
        alarm(limits["cell_s"])
        result = shell.run_cell(source, store_history=False)
        problem = result.error_in_exec or result.error_before_exec
        ended = describe(problem, limits) if problem is not None else ""
    except BaseException as error:  # thrown outside of the cell's own frames
        ended = describe(error, limits)
        outputs.error(type(error).__name__, str(error), [ended])
    finally:
        alarm(0)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    return outputs.finished(), ended


def describe(error: BaseException, limits: dict[str, int]) -> str:
    """How a cell ended that raised `error`, in a few words; "error" for an ordinary one."""
    if isinstance(error, TimeUp):
        return f"stopped after {limits['cell_s']} s, the time that a cell has"
    if isinstance(error, MemoryError):
        return f"stopped at {limits['memory'] >> 20} MB of memory"
    if isinstance(error, SystemExit):
        return "ended the process"
    return "error"


def alarm(seconds: int) -> None:
    """Raise TimeUp in the running code after `seconds`, and again every few seconds; 0 ends it."""

    def ring(*_: Any) -> None:
        raise TimeUp

    try:
        signal.signal(signal.SIGALRM, ring if seconds else signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, seconds, 3 if seconds else 0)
    except TimeUp:
        alarm(seconds)
