"""What runs in the sandbox: limits first, then the submission's cells, then the tests, each in a process of its own.

    python inside.py FD      the job comes as a line of JSON on standard input, what happened leaves as lines on FD

Every line carries a token that the submission isn't given. A test runs in a child forked after the last cell: its own
death, endless loop or changes reach no other test. Before it runs, functions of `specdec_ref`, of the checks and of the
standard library that the submission replaced are put back, and named.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import os
import resource
import select
import signal
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

# Marks depend on these; `specdec_ref` and all its modules come on top.
# fmt: off
GUARDED = {
    "abc", "bisect", "builtins", "cmath", "collections", "contextlib", "copy", "decimal", "dataclasses",
    "fractions", "functools", "heapq", "inspect", "io", "itertools", "json", "math", "numbers", "operator",
    "random", "re", "statistics", "traceback", "typing", "numpy", "numpy.random", "numpy.testing", "torch",
    "torch.nn.functional", "torch.testing",
}
# fmt: on
OURS = ("specdec_ref", "specdec_course")
CLASSES_FROM = (*OURS, "random", "fractions", "statistics")  # their classes' own functions are put back too
# The parts of the package that load fast; a submission that imports another one is looked at anyway.
PRELOADED = (
    "ref.arithmetic",
    "ref.sampling",
    "ref.cache",
    "ref.models",
    "ref.verify",
    "ref.draft",
    "ref.engine",
    "course.checks",
)
SEED = "SPECDEC_GRADING_SEED"
KEPT = ("text/plain", "image/png")  # of what a cell shows: HTML and scripts would run in the instructor's browser


class TimeUp(BaseException):
    """A cell's time is over. Not an Exception, so that `except Exception` in a loop does not keep it alive."""


class Outputs(io.TextIOBase):
    """What a cell prints and shows, as a notebook's outputs; cut while it runs, so that no memory is filled."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.items: list[dict[str, Any]] = []
        self.room = room

    def writable(self) -> bool:
        return True

    def write(self, text: str, name: str = "stdout") -> int:
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
        kept = {k: v for k, v in data.items() if k in KEPT and isinstance(v, str)}
        size = sum(len(v) for v in kept.values())
        if kept and size <= self.room:
            self.room -= size
            kind = (
                {"output_type": "execute_result", "execution_count": None}
                if result
                else {"output_type": "display_data"}
            )
            self.items.append({**kind, "data": kept, "metadata": {}})

    def error(self, kind: str, message: str, trace: list[str]) -> None:
        text = [line[:2000] for line in trace[:100]]
        self.items.append({"output_type": "error", "ename": kind, "evalue": message[:2000], "traceback": text})

    def finished(self) -> list[dict[str, Any]]:
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
        return self.outputs.write(text, "stderr")


def main() -> None:
    """Read the job, confine this process, run the cells, run the tests."""
    channel = int(sys.argv[1])
    os.set_inheritable(channel, False)
    job = json.loads(sys.stdin.buffer.readline())
    confine(job["limits"], job.get("uid"))

    def send(event: str, **values: Any) -> None:
        line = json.dumps({"token": job["token"], "event": event, **values}).encode() + b"\n"
        while line:
            line = line[os.write(channel, line) :]

    shell = make_shell(job["names"])
    load_trusted([c["source"] for c in job["cells"] if c["trusted"]])
    snapshot = Snapshot()
    with open(os.devnull, "r+b") as quiet:
        for fd in (0, 1, 2):
            os.dup2(quiet.fileno(), fd)
    send("ready")
    limits, runner = job["limits"], os.getpid()
    for cell in job["cells"]:
        if cell["kind"] == "code" and cell["index"] not in job["skip"]:
            send("start", cell=cell["index"])
            try:
                outputs, ended = run_cell(shell, cell["source"], limits)
            except TimeUp:  # rung once more while the cell was being closed
                alarm(0)
                outputs, ended = [], describe(TimeUp(), limits)
            if os.getpid() != runner:  # the submission forked, and this is its copy of the runner
                os._exit(0)
            send("cell", cell=cell["index"], outputs=outputs, ended=ended)
    for cell in job["cells"]:
        if cell["kind"] == "test" and cell["index"] not in job["skip"]:
            send("start", cell=cell["index"])
            if job["confined"]:
                end_all_others()
            names = [c["source"] for c in job["cells"] if c["trusted"] and c["kind"] == "code"]
            send("test", cell=cell["index"], **run_test(cell, shell.user_ns, names, snapshot, job))
    send("done")
    os._exit(0)  # whatever the submission left running


def end_all_others() -> None:
    """Nothing that the submission started goes on beside a test. In the sandbox this user has no other processes."""
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:  # the dead count as processes until they are seen off
            os.waitpid(-1, 0)


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


def make_shell(names: dict[str, str]) -> Any:
    """An IPython shell without history, colours or files, as a notebook's kernel is one."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = config.InteractiveShell.xmode = "NoColor"
    config.InteractiveShell.xmode = "Context"
    config.InteractiveShell.autocall = 0
    shell = InteractiveShell.instance(config=config)
    # It would keep all that is printed, without a limit.
    setattr(shell, "_tee", lambda channel: contextlib.nullcontext())  # noqa: B010
    shell.user_ns.update(names)
    return shell


def load_trusted(sources: list[str]) -> None:
    """Import what the given cells and the tests import, and most of the package, before any line of the submission."""
    for source in sources:
        for statement in imports(source):
            try:
                exec(compile(ast.Module([statement], []), "<given>", "exec"), {})
            except Exception:  # the cell itself will say so
                continue
    for module in PRELOADED:
        importlib.import_module(f"specdec_{module}")


def imports(source: str) -> list[ast.stmt]:
    """The import statements at the top level of a cell; none where it is no Python."""
    try:
        return [s for s in ast.parse(source).body if isinstance(s, (ast.Import, ast.ImportFrom))]
    except SyntaxError:
        return []


class Snapshot:
    """Functions and classes that marks depend on, as they were before the submission ran."""

    def __init__(self) -> None:
        places: tuple[list[Any], ...] = (sys.path, sys.meta_path, sys.path_hooks)
        self.paths = [(place, list(place)) for place in places]
        self.modules = [
            (name, module, dict(vars(module)))
            for name, module in list(sys.modules.items())
            if isinstance(module, types.ModuleType) and (name.split(".")[0] in OURS or name in GUARDED)
        ]
        values = [v for _, _, entries in self.modules for v in entries.values()]
        # By identity: values need not be hashable.
        classes = {id(v): v for v in values if isinstance(v, type) and kept_class(v)}
        self.classes = [(c, dict(vars(c))) for c in classes.values()]
        members = [m for _, entries in self.classes for m in entries.values()]
        functions = {id(f): f for f in map(plain_function, [*values, *members]) if f is not None}
        self.functions = [(f, f.__code__, f.__defaults__, f.__kwdefaults__) for f in functions.values()]
        own = {id(v): v for v in values if type(v).__module__.startswith(OURS) and hasattr(v, "__dict__")}
        self.objects = [(v, {k: content(x) for k, x in vars(v).items()}) for v in own.values()]

    def restore(self) -> list[str]:
        """Put everything back. Returns the names of what had been changed."""
        for place, before in self.paths:
            place[:] = before
        return sorted({*self._modules(), *self._classes(), *self._functions(), *self._objects()})

    def _modules(self) -> Iterator[str]:
        for name, module, entries in self.modules:
            if sys.modules.get(name) is not module:
                sys.modules[name] = module
                yield f"sys.modules: {name}"
            for key, value in entries.items():
                works = callable(value) or isinstance(value, types.ModuleType)
                # Other libraries keep counters and caches at their top level; those may go on.
                now = vars(module).get(key, self)
                if now is not value and (works or name.startswith(OURS)):
                    vars(module)[key] = value
                    # PyTorch wraps functions of its own when parts of it load: nobody has to look at that.
                    by_itself = name.split(".")[0] == "torch" == str(getattr(now, "__module__", "")).split(".")[0]
                    if works and not key.startswith("__") and not by_itself:
                        yield f"{name}.{key}"

    def _classes(self) -> Iterator[str]:
        left_alone = {"__dict__", "__weakref__", "__doc__", "__abstractmethods__", "_abc_impl"}
        for cls, members in self.classes:
            for key in {*members, *vars(cls)} - left_alone:
                now, before = vars(cls).get(key), members.get(key)
                if now is before or not (callable(plain(now)) or callable(plain(before))):
                    continue
                if key in members:
                    setattr(cls, key, before)
                else:
                    delattr(cls, key)
                yield f"{cls.__module__}.{cls.__name__}.{key}"

    def _functions(self) -> Iterator[str]:
        for function, code, defaults, keywords in self.functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                yield f"{function.__module__}.{function.__qualname__}"
            function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, keywords

    def _objects(self) -> Iterator[str]:
        """Objects of the package at the top of its modules, such as the checks with their lists of parts."""
        for thing, values in self.objects:
            for key, (value, items) in values.items():
                now = vars(thing).get(key)
                if now is not value or content(now)[1] != items:
                    if isinstance(value, list) and items is not None:
                        value[:] = items
                    vars(thing)[key] = value
                    yield f"{type(thing).__name__} {vars(thing).get('name', '')}: {key}"


def kept_class(cls: type) -> bool:
    """Whether a class's own functions are put back."""
    return cls.__module__.split(".")[0] in CLASSES_FROM or (cls.__module__, cls.__name__) == ("torch", "Tensor")


def plain(value: Any) -> Any:
    """What a class holds under a name, without its wrapping."""
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def plain_function(value: Any) -> types.FunctionType | None:
    """The Python function of the package that `value` is or wraps; None for anything else."""
    function = plain(value)
    own = isinstance(function, types.FunctionType) and str(function.__module__).startswith(OURS)
    return function if own else None


def content(value: Any) -> tuple[Any, list[Any] | None]:
    """A value, and where it is a list what is in it."""
    return value, list(value) if isinstance(value, list) else None


def run_cell(shell: Any, source: str, limits: dict[str, int]) -> tuple[list[dict[str, Any]], str]:
    """Run a cell as a notebook does. Its outputs, and how it ended: nothing, "error", or why it was stopped."""
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
        return f"stopped after {limits['cell_s']} s"
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


def run_test(
    cell: dict[str, Any], namespace: dict[str, Any], given: list[str], snapshot: Snapshot, job: dict[str, Any]
) -> dict[str, Any]:
    """Run a test in a child process. Its score (None where it has none), outputs, how it ended, what was put back."""
    limits = job["limits"]
    reading, writing = os.pipe()
    for wait_s in (0.1, 0.5, 2.0):
        try:
            child = os.fork()
            break
        except OSError:  # the system is still clearing away others
            time.sleep(wait_s)
    else:
        return {"score": None, "outputs": [], "ended": "no process was left for it", "changed": []}
    if child == 0:
        try:
            os.close(reading)
            answer = json.dumps(mark(cell, namespace, given, snapshot, job)).encode()
            while answer:
                answer = answer[os.write(writing, answer) :]
        finally:
            os._exit(0)
    os.close(writing)
    answer, until = b"", time.monotonic() + limits["cell_s"] + 5
    while (left := until - time.monotonic()) > 0 and len(answer) < 8 * limits["output"]:
        if select.select([reading], [], [], left)[0]:
            if not (piece := os.read(reading, 1 << 16)):
                break
            answer += piece
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    try:
        return dict(json.loads(answer))
    except ValueError:
        if left <= 0:
            ended = f"stopped after {limits['cell_s']} s"
        else:
            ended = f"the process ended ({'signal' if os.WIFSIGNALED(status) else 'exit'}) before there was a mark"
        return {"score": None, "outputs": [], "ended": ended, "changed": []}


def mark(
    cell: dict[str, Any], namespace: dict[str, Any], given: list[str], snapshot: Snapshot, job: dict[str, Any]
) -> dict[str, Any]:
    """In the child: everything put back, names of the package bound afresh, the test run, its last value the score."""
    sys.settrace(None)
    sys.setprofile(None)
    changed = snapshot.restore()
    namespace["__builtins__"] = vars(sys.modules["builtins"])
    used = {n.id for n in ast.walk(ast.parse(cell["source"])) if isinstance(n, ast.Name)}
    for statement in (s for source in given for s in imports(source)):
        fresh: dict[str, Any] = {}
        exec(compile(ast.Module([statement], []), "<given>", "exec"), fresh)
        for name in (used & set(fresh)) - {"__builtins__"}:
            if namespace.get(name, fresh) is not fresh[name]:
                changed.append(f"the name {name}")
                namespace[name] = fresh[name]
    outputs, limits = Outputs(job["limits"]["output"]), job["limits"]
    sys.stdout, sys.stderr = outputs, Errors(outputs)
    os.environ[SEED] = str(job["seed"])
    score, ended = None, ""
    try:
        alarm(limits["cell_s"])
        tree = ast.parse(cell["source"])
        last = tree.body.pop()
        exec(compile(tree, "<test>", "exec"), namespace)
        value = eval(compile(ast.Expression(last.value), "<test>", "eval"), namespace)
        alarm(0)
        if type(value) in (int, float) and 0 <= value <= cell["points"]:
            score = value
        else:
            ended = f"the test gave no mark between 0 and {cell['points']:g}"
    except BaseException as error:
        alarm(0)
        ended = describe(error, limits)
        if ended == "error":  # an ordinary one is the submission's own fault; others are for a human to judge
            score, ended = (0, "") if isinstance(error, Exception) else (None, f"raised {type(error).__name__}")
        outputs.error(type(error).__name__, str(error), [f"{type(error).__name__}: {error}"])
    if score is not None:
        outputs.room = max(outputs.room, 100)
        outputs.show({"text/plain": repr(score)}, result=True)
    return {"score": score, "outputs": outputs.finished(), "ended": ended, "changed": changed}


if __name__ == "__main__":
    main()
