"""Notices, inside the sandbox, what a submission changed of the code that its points depend on.

Nothing is put back: a test that runs beside changed code gives no points and no zero, it is left to the instructor.
Two means. `take_snapshot` compares modules, classes and functions with what they were before the submission's first
line. `watch` is an audit hook of the interpreter, which can't be removed: it reports code of the submission that reads
frames, searches the interpreter's memory or calls C.
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import specdec_course
import specdec_ref

# The functions below get builtins of their own here, so that none that a submission replaces is called by them.
globals()["__builtins__"] = dict(vars(builtins))

# `sys` itself is not compared, as its hooks change.
_modules, _current_frames = sys.modules, sys._current_frames

OURS = ("specdec_ref", "specdec_course")
CHECKS = "specdec_course.checks"
# Besides the standard library and the course's own packages: what checks call directly.
ALSO = {"numpy", "numpy.random", "numpy.linalg", "numpy.testing", "torch", "torch.nn.functional", "torch.testing"}
# Changed by libraries themselves: hooks, and modules that IPython and debuggers patch.
NOT_COMPARED = {"sys", "__main__", "linecache", "warnings.showwarning", "warnings._showwarnmsg_impl"}
# Of the standard library, what other libraries replace functions of when they are imported (typing_extensions, torch).
PATCHED_BY_LIBRARIES = {"typing", "inspect", "pickle", "copyreg", "multiprocessing", "logging", "asyncio", "importlib"}
LIBRARY = tuple(
    {
        "<frozen",
        sys.prefix + os.sep,
        sys.base_prefix + os.sep,
        str(Path(os.__file__).parent) + os.sep,
        *(str(Path(str(package.__file__)).parent) + os.sep for package in (specdec_ref, specdec_course)),
    }
)
FUNCTION_LIKE = (types.FunctionType, property, classmethod, staticmethod)
LEFT_ALONE = {"__dict__", "__weakref__", "__doc__", "__abstractmethods__", "_abc_impl", "__annotations__"}
# Methods by which a value of the submission could decide a comparison of the check's in its own favour.
COMPARING = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__bool__", "__class__"}
COMPARING |= {"__sub__", "__rsub__", "__abs__", "__round__", "__getattribute__", "__instancecheck__"}
COMPARING |= {"__subclasscheck__", "__torch_function__", "__array_ufunc__", "__array_function__"}
OF_VALUES = {"__len__", "__iter__", "__getitem__", "__contains__", "__add__", "__radd__", "__mul__", "__rmul__"}
OF_VALUES |= {"__truediv__", "__rtruediv__", "__float__", "__int__", "__index__", "__neg__", "__pow__", "__format__"}
VALUES = (int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
# What code of a submission has no use for but to reach the grading itself.
REACHING = {
    "sys._getframe",
    "sys._current_frames",
    "sys._current_exceptions",
    "sys.settrace",
    "sys.setprofile",
    "sys.addaudithook",
    "gc.get_objects",
    "gc.get_referrers",
    "gc.get_referents",
    "code.__new__",
    "object.__getattr__",
    "object.__setattr__",
}
INSPECT, TRACEBACK, CTYPES = (os.sep + file for file in ("inspect.py", "traceback.py", f"ctypes{os.sep}__init__.py"))


def take_snapshot() -> Callable[[], list[str]]:
    """Keep what points depend on as it is now. Returns a function that names what has changed since."""
    modules = {
        name: (module, dict(vars(module)))
        for name, module in list(sys.modules.items())
        if isinstance(module, types.ModuleType) and name not in NOT_COMPARED and _compared(name)
    }
    values = [v for _, entries in modules.values() for v in entries.values()]
    kinds = {id(v): v for v in values if isinstance(v, type) and (_compared(v.__module__) or v.__name__ == "Tensor")}
    classes = [(kind, dict(vars(kind)), kind.__mro__) for kind in kinds.values()]
    values += [member for _, members, _ in classes for member in members.values()]
    tables: list[tuple[str, Any, Any]] = []
    for name, (_, entries) in modules.items():
        if name.startswith(CHECKS):
            for key, value in entries.items():
                tables += [(f"{name}.{key}", *table) for table in _tables(value)]
    values += [item for _, _, kept in tables for item in (kept.values() if isinstance(kept, dict) else kept)]
    functions = {id(f): f for f in map(_plain, values) if isinstance(f, types.FunctionType)}
    codes = [(f, f.__code__, f.__defaults__, f.__kwdefaults__, _cells(f)) for f in functions.values()]
    known = {id(kind): kind for kind in _all_classes()}
    loaders = [(place, list(place)) for place in (sys.meta_path, sys.path_hooks)]

    def changed() -> Iterator[str]:
        for name, (module, entries) in modules.items():
            if _modules.get(name) is not module:
                yield f"sys.modules[{name!r}]"
            yield from _changed_names(name, vars(module), entries)
        for kind, members, order in classes:
            if kind.__mro__ is not order:
                yield f"the bases of {kind.__module__}.{kind.__name__}"
            yield from _changed_members(kind, members)
        for f, code, defaults, keywords, cells in codes:
            same = f.__code__ is code and f.__defaults__ is defaults and f.__kwdefaults__ is keywords
            if not same or any(now is not then for now, then in zip(_cells(f), cells)):
                yield f"{f.__module__}.{f.__qualname__}"
        for name, table, kept in tables:
            if not _same_table(table, kept):
                yield name
        for place, kept in loaders:
            gone = any(all(now is not then for now in place) for then in kept)
            if gone or any(_of_the_submission(new) for new in place if all(new is not then for then in kept)):
                yield "the import system"
        for kind in _all_classes():
            if id(kind) not in known and (method := _deciding_method(kind)):
                yield f"a class of the submission decides comparisons itself ({method})"
        if len(_current_frames()) > 1:
            yield "a thread was started beside the test"

    return lambda: sorted({_printable(name) for name in changed()})


def _compared(name: str) -> bool:
    top = str(name).split(".")[0]
    return top in sys.stdlib_module_names or top in OURS or name in ALSO


def _changed_names(module: str, now: dict[str, Any], before: dict[str, Any]) -> Iterator[str]:
    ours, whole = module.startswith(OURS), module.startswith(CHECKS)
    for key, then in before.items():
        value = now.get(key)
        works = callable(then) or isinstance(then, types.ModuleType) or key == "environ"
        if value is then or not (works or (ours and then is not None) or whole) or f"{module}.{key}" in NOT_COMPARED:
            continue
        # PyTorch wraps functions of its own when more of it is loaded.
        by_itself = module.split(".")[0] == "torch" == str(getattr(value, "__module__", "")).split(".")[0]
        if not by_itself and not (key.startswith("__") and not ours) and not _by_a_library(module, value):
            yield f"{module}.{key}"
    if ours or module.split(".")[0] in sys.stdlib_module_names:  # a new name may stand before a builtin
        for key in now.keys() - before.keys():
            value = now[key]
            if callable(value) and not isinstance(value, types.ModuleType) and not str(key).startswith("_"):
                yield f"{module}.{key}"


def _by_a_library(module: str, value: object) -> bool:
    top, value = module.split(".")[0], getattr(value, "__wrapped__", value)
    if top not in PATCHED_BY_LIBRARIES or not isinstance(value, types.FunctionType):
        return False
    return value.__code__.co_filename.startswith(LIBRARY) and value.__module__.split(".")[0] != top


def _changed_members(kind: type, before: dict[str, Any]) -> Iterator[str]:
    now = vars(kind)
    for key in {*before, *now} - LEFT_ALONE:
        value, then = now.get(key), before.get(key)
        if value is not then and any(callable(v) or isinstance(v, FUNCTION_LIKE) for v in (value, then)):
            if not _by_a_library(kind.__module__, _plain(value)):
                yield f"{kind.__module__}.{kind.__name__}.{key}"


def _of_the_submission(finder: object) -> bool:
    """Whether something in the import system is neither a class nor an object of a library."""
    kind = finder if isinstance(finder, type) else type(finder)
    module = _modules.get(str(getattr(finder, "__module__", kind.__module__)))
    return not str(getattr(module, "__file__", "") or "<frozen").startswith(LIBRARY) or kind.__module__ == "__main__"


def _tables(value: Any, depth: int = 3) -> Iterator[tuple[Any, Any]]:
    """Lists, dicts and objects of the checks below `value`, each with a copy of what it holds."""
    if isinstance(value, (list, tuple)):
        kept: Any = list(value)
        inner = list(value)
    elif isinstance(value, dict):
        kept, inner = dict(value), list(value.values())
    elif type(value).__module__.startswith(CHECKS) and hasattr(value, "__dict__"):
        kept, inner = dict(vars(value)), list(vars(value).values())
    else:
        return
    yield value, kept
    if depth:
        for item in inner:
            yield from _tables(item, depth - 1)


def _same_table(table: Any, kept: Any) -> bool:
    if isinstance(kept, list):
        return len(table) == len(kept) and all(now is then for now, then in zip(table, kept))
    now = table if isinstance(table, dict) else vars(table)
    return all(now.get(key) is then for key, then in kept.items())  # more entries: a cache


def _plain(value: Any) -> Any:
    """What a class holds under a name, without its wrapping."""
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def _cells(function: types.FunctionType) -> list[Any]:
    """The functions in a function's closure."""
    result = []
    for cell in function.__closure__ or ():
        try:
            if callable(cell.cell_contents):
                result.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    return result


def _all_classes() -> list[type]:
    found, todo = {id(object): object}, [object]
    while todo:
        for kind in type.__subclasses__(todo.pop()):
            if id(kind) not in found:
                found[id(kind)] = kind
                if not issubclass(kind, type):
                    todo.append(kind)
    return list(found.values())


def _deciding_method(kind: type) -> str:
    """The method by which a class that is not a library's decides comparisons; empty where there is none."""
    members = type.__dict__["__dict__"].__get__(kind)
    deciding = COMPARING | (OF_VALUES if any(base in VALUES for base in kind.__mro__) else set())
    for name in sorted(deciding & set(members)):
        method = _plain(members[name])
        if method is None:  # __hash__ of a class with __eq__
            continue
        if not isinstance(method, types.FunctionType):
            if str(members.get("__module__")) == "__main__" and name not in ("__class__", "__hash__"):
                return name
            continue
        file = method.__code__.co_filename
        made = file == "<string>" and ("__dataclass_fields__" in members or "_fields" in members)
        module = _modules.get(str(members.get("__module__")))
        of_library = str(getattr(module, "__file__", "") or "").startswith(LIBRARY)  # attrs and Numba write methods
        made |= of_library and file.startswith("<") and not file.startswith("<ipython")
        if not made and not file.startswith(LIBRARY):
            return name
    return ""


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(name))[:120]


def _of_the_process(path: str) -> bool:
    """Whether a file is a process's memory or one of its open files."""
    return path.startswith("/dev/fd") or (path.startswith("/proc/") and (path.endswith("/mem") or "/fd" in path))


def _who_gets_it(frame: types.FrameType | None, what: object) -> types.FrameType | None:
    """The frame that a library's function does this for, where it hands on what it finds; else its own."""
    file = frame.f_code.co_filename if frame is not None else ""
    if file.endswith(TRACEBACK) and frame is not None:  # walk_tb, walk_stack; printing is several calls deep
        return frame.f_back
    through = INSPECT if what in ("sys._getframe", "tb_frame") else CTYPES
    while frame is not None and frame.f_code.co_filename.endswith(through):
        frame = frame.f_back
    return frame


def watch(report: Callable[[str], None]) -> None:
    """Report once, and at once, each way in which code that is no library's reaches into the interpreter."""
    frame_of, busy, reported = sys._getframe, threading.Lock(), set[str]()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not (event in REACHING or event.startswith("ctypes.") or event == "open"):
            return
        if event == "open" and not _of_the_process(str(arguments[0])):
            return
        if not busy.acquire(blocking=False):
            return
        try:
            what = arguments[1] if event.startswith("object.") else event
            frame = _who_gets_it(frame_of(1), what)
            if frame is not None and not frame.f_code.co_filename.startswith(LIBRARY):
                if type(what) is str and what not in reported:
                    reported.add(what)
                    report(_printable(what))
        finally:
            busy.release()

    sys.addaudithook(hook)
    watch_modules(report)


def watch_modules(report: Callable[[str], None]) -> None:
    """Report at once what is assigned to a module of the checks, also if it is put back before a comparison."""

    class Watched(types.ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            if not isinstance(value, types.ModuleType):  # one that is imported
                report(_printable(f"{self.__name__}.{name}"))
            super().__setattr__(name, value)

        def __delattr__(self, name: str) -> None:
            report(_printable(f"{self.__name__}.{name}"))
            super().__delattr__(name)

    for name, module in list(sys.modules.items()):
        if name.startswith(CHECKS) and type(module) is types.ModuleType:
            module.__class__ = Watched
