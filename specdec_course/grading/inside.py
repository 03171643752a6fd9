"""The program that runs in the sandbox: limits first, then the cells in order, and each test in a process of its own.

    python inside.py FD      the job is a line of JSON on standard input; what happens leaves as lines on FD

A test runs twice: where it stands in the notebook, as the learner saw it, and again after the last cell if it did not
give all points there. Each time in a forked child, so that no test can change another. The child writes its points
straight to FD, whose reader is outside of the sandbox; a line counts if it starts with a token that the submission is
not given. What was changed of the code that points depend on is reported before and after the test (integrity.py).
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from specdec_course.grading import integrity, notebook_shell

# The functions below get builtins of their own here, so that none that a submission replaces is called by them.
globals()["__builtins__"] = dict(vars(builtins))
# Bound before the submission's first line, for the same reason.
_write, _fork, _kill, _exit, _waitpid = os.write, os.fork, os.kill, os._exit, os.waitpid
_sleep, _clock, _dumps = time.sleep, time.monotonic, json.dumps
_settrace, _setprofile = sys.settrace, sys.setprofile
_parse, _walk, _compile = ast.parse, ast.walk, compile
_modules = sys.modules
SEED = "SPECDEC_GRADING_SEED"
FULL = 7  # exit code of a test that gave all points
Send = Callable[..., None]  # (kind of line, cell, text)


def main() -> None:
    """Read the job, confine this process, run the cells and the tests."""
    channel = int(sys.argv[1])
    os.set_inheritable(channel, False)
    job = json.loads(sys.stdin.buffer.readline())
    limits, token = job["limits"], job.pop("token").encode()
    confine(limits, job.get("uid"))

    def send(kind: str, cell: int = -1, text: str = "") -> None:
        line = b"\n%s %s %d %s\n" % (token, kind.encode(), cell, text.encode("utf-8", "replace"))
        while line:
            line = line[_write(channel, line) :]

    now = {"cell": -1}
    shell = notebook_shell.make_shell(job["names"])
    load_given([c["source"] for c in job["cells"] if c["trusted"]])
    notebook_shell.answer_no_input(lambda: send("asked", now["cell"]))
    run_cell = notebook_shell.run_cell
    hide()
    changed = integrity.take_snapshot()
    integrity.watch(lambda what: send("reached", now["cell"], what))
    with open(os.devnull, "r+b") as quiet:
        for fd in (0, 1, 2):
            os.dup2(quiet.fileno(), fd)
    send("ready")
    runner, given = os.getpid(), [c["source"] for c in job["cells"] if c["trusted"] and c["kind"] == "code"]
    cells = [c for c in job["cells"] if c["index"] not in job["skip"]]
    full = set()
    for last in (False, True):
        if last and job["confined"]:
            end_all_others()
        for cell in cells:
            now["cell"] = cell["index"]
            if cell["kind"] == "test" and cell["index"] not in full:
                if run_test(cell, shell.user_ns, given, changed, job, send) == FULL:
                    full.add(cell["index"])
            elif cell["kind"] == "code" and not last:
                send("start", cell["index"])
                try:
                    outputs, ended = run_cell(shell, cell["source"], limits)
                except notebook_shell.TimeUp as error:  # rung once more while the cell was being closed
                    notebook_shell.alarm(0)
                    outputs, ended = [], notebook_shell.describe(error, limits)
                if os.getpid() != runner:  # the submission forked, and this is its copy of the runner
                    _exit(0)
                send("cell", cell["index"], json.dumps({"outputs": outputs, "ended": ended}))
    send("done")
    _exit(0)  # whatever the submission left running


def confine(limits: dict[str, int], uid: int | None) -> None:
    """Limits of this process and its children, then an ordinary user if this is root: nothing can be raised again."""
    wanted = {
        "RLIMIT_DATA": limits["memory"],
        "RLIMIT_NPROC": limits["processes"],
        "RLIMIT_FSIZE": limits["file"],
        "RLIMIT_CPU": limits["total_s"],
        "RLIMIT_NOFILE": 256,
        "RLIMIT_CORE": 0,
    }
    for name, value in wanted.items():
        if hasattr(resource, name) and not (name == "RLIMIT_NPROC" and not limits["own_processes"]):
            try:
                resource.setrlimit(getattr(resource, name), (value, value))
            except (ValueError, OSError):  # lower already, or a system that has no such limit
                continue
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def load_given(sources: list[str]) -> None:
    """Import what the given cells and the tests import, now or in a function, before any line of the submission."""
    done: set[str] = set()
    todo = list(sources)
    while todo:
        for statement in _imports(todo.pop(), everywhere=True):
            with contextlib.suppress(Exception):  # the cell itself will say so
                exec(compile(ast.Module([statement], []), "<given>", "exec"), {})
        for name, module in list(sys.modules.items()):
            if name.startswith(integrity.CHECKS) and name not in done and getattr(module, "__file__", None):
                done.add(name)
                with open(str(module.__file__), encoding="utf-8") as file:
                    todo.append(file.read())


def _imports(source: str, everywhere: bool = False) -> list[ast.stmt]:
    """The import statements of a cell, at its top level or `everywhere`; none where it is no Python."""
    try:
        tree = _parse(source)
    except SyntaxError:
        return []
    nodes = _walk(tree) if everywhere else tree.body
    return [s for s in nodes if isinstance(s, (ast.Import, ast.ImportFrom)) and not getattr(s, "level", 0)]


def hide() -> None:
    """Take the grading's own modules out of reach of an import: one would get a copy without effect."""
    for name in [n for n in sys.modules if n.startswith("specdec_course.grading")]:
        del sys.modules[name]
    vars(sys.modules["specdec_course"]).pop("grading", None)


def signal_others(number: int) -> None:
    """To all processes that the submission started: in the sandbox this user has no others."""
    with contextlib.suppress(OSError):
        _kill(-1, number)


def end_all_others() -> None:
    """Nothing that the submission started goes on after its last cell."""
    signal_others(signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:  # the dead count as processes until they are reaped
            _waitpid(-1, 0)


def run_test(
    cell: dict[str, Any], names: dict[str, Any], given: list[str], changed: Callable, job: dict[str, Any], send: Send
) -> int:
    """Run a test in a child, with everything else that the submission started held. The child's exit code."""
    index, limit_s = cell["index"], job["limits"]["cell_s"]
    send("start", index)
    if job["confined"]:
        signal_others(signal.SIGSTOP)
    child = 0
    for wait_s in (0.1, 0.5, 2.0, 0.0):
        try:
            child = _fork()
            break
        except OSError:  # the system is still clearing away others
            if not wait_s:
                send("ended", index, "no process was left for it")
                return 1
            _sleep(wait_s)
    if child == 0:
        code = 1
        try:
            code = grade(cell, names, given, changed, job, send)
        finally:
            _exit(code)
    how = ""
    until = _clock() + limit_s + 5
    while _waitpid_now(child) is None:
        if _clock() > until:
            _kill(child, signal.SIGKILL)
            how = f"stopped after {limit_s} s, the time that a cell has"
            until = _clock() + 60
        _sleep(0.01)
    status = _statuses.pop(child)
    if job["confined"]:
        signal_others(signal.SIGCONT)
    send("ended", index, how)
    return status


_statuses: dict[int, int] = {}


def _waitpid_now(child: int) -> int | None:
    """The exit code of `child`, -1 where a signal ended it, None while it runs."""
    try:
        pid, status = _waitpid(child, os.WNOHANG)
    except ChildProcessError:  # the submission reaps all children
        pid, status = child, 256
    if pid:
        _statuses[child] = status >> 8 if not status & 0x7F else -1
    return _statuses.get(child)


def grade(
    cell: dict[str, Any], names: dict[str, Any], given: list[str], changed: Callable, job: dict[str, Any], send: Send
) -> int:
    """In the child: run the test; its last value is the points. Returns the exit code."""
    _settrace(None)
    _setprofile(None)
    gc.callbacks.clear()
    index, limits = cell["index"], job["limits"]
    for what in changed():
        send("touched", index, what)
    names["__builtins__"] = _modules["builtins"]
    tree = _parse(cell["source"])
    used = {n.id for n in _walk(tree) if type(n) is ast.Name}
    for statement in [s for source in given for s in _imports(source)]:
        fresh: dict[str, Any] = {}
        exec(_compile(ast.Module([statement], []), "<given>", "exec"), fresh)
        for name in (used & set(fresh)) - {"__builtins__"}:
            if names.get(name, fresh) is not fresh[name]:
                send("rebound", index, name)
                names[name] = fresh[name]
    outputs = notebook_shell.Outputs(limits["output"])
    sys.stdout, sys.stderr = outputs, notebook_shell.Errors(outputs)
    os.environ[SEED] = str(job["seed"])
    points, ended = None, ""
    try:
        notebook_shell.alarm(limits["cell_s"])
        last = tree.body.pop()
        exec(_compile(tree, "<test>", "exec"), names)
        value = eval(_compile(ast.Expression(getattr(last, "value")), "<test>", "eval"), names)  # noqa: B009
        notebook_shell.alarm(0)
        if type(value) in (int, float) and 0 <= value <= cell["points"]:
            points = value
        else:
            ended = f"the test gave no mark between 0 and {cell['points']:g}"
    except BaseException as error:
        notebook_shell.alarm(0)
        ended = notebook_shell.describe(error, limits)
        if ended == "error":  # an ordinary one is the submission's own fault; others are for a human to judge
            points, ended = (0, "") if isinstance(error, Exception) else (None, f"raised {type(error).__name__}")
        outputs.error(type(error).__name__, str(error), [f"{type(error).__name__}: {error}"])
    for what in changed():
        send("touched", index, what)
    if points is not None:
        outputs.room = max(outputs.room, 100)
        outputs.show({"text/plain": repr(points)}, result=True)
    send("test", index, _dumps({"outputs": outputs.finished(), "ended": ended}))
    if points is not None:
        send("points", index, repr(points))
    return FULL if points == cell["points"] else 0


if __name__ == "__main__":
    main()
