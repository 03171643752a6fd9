"""Plant small bugs in a copy of the project, one after the other, and see whether the tests named for each notice.

    python tools/plant_bugs.py                  every bug of tests/support/planted_bugs/; about half an hour
    python tools/plant_bugs.py --only TEXT      those with TEXT in their name or file; may be given again
    python tools/plant_bugs.py --list           names, files and tests; runs nothing

Prints a table and ends with 1 where a bug goes unnoticed: then a test is missing. Nothing in the checkout changes.
Where bubblewrap is installed the copy takes the checkout's place for each run, so that programs that tests start see
the bug, too; elsewhere the copy's packages come first on Python's path, which is enough for all but the sandbox.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.planted_bugs import BUGS, Bug  # noqa: E402 - found by the line above

FAST = "not model and not slow and not browser and not install and not timing"
SECONDS = 900  # for the tests of one bug: far more than any needs, on a busy machine too
SURVIVED = "nothing"


def main() -> int:
    """Plant what is asked for. 0 where every bug is noticed, 1 where one is not, 2 where a test fails without any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], help="text in a bug's name or file")
    parser.add_argument("--list", action="store_true", help="show the bugs, run nothing")
    asked = parser.parse_args()
    bugs = [b for b in BUGS if not asked.only or any(text in b.name or text in b.file for text in asked.only)]
    if not bugs:
        parser.error(f"no bug has {' or '.join(asked.only)} in its name or file: --list shows them")
    if asked.list:
        print("\n".join(f"{b.name}\n    {b.file}\n    {' '.join(b.tests)}" for b in bugs))
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would tests
    with tempfile.TemporaryDirectory(prefix="specdec-bugs-") as folder:
        copy = Path(folder) / "copy"
        copy_project(copy)
        failing = failing_without(copy, sorted({t for b in bugs for t in b.tests}))
        print("| bug | noticed by |\n|---|---|", flush=True)
        survivors = []
        for bug in bugs:
            with planted(bug, copy):
                noticed = noticed_by(copy, bug.tests, failing)
            survivors += [bug.name] if noticed == SURVIVED else []
            print(f"| {bug.name} | {noticed} |", flush=True)
    print(f"\n{len(bugs) - len(survivors)} of {len(bugs)} bugs were noticed.")
    print("".join(f"NOT: {name}\n" for name in survivors), end="")
    print("".join(f"left out, as it fails without a bug too: {test}\n" for test in failing), end="")
    return 1 if survivors else 2 if failing else 0


def copy_project(target: Path) -> None:
    """Copy what git knows of the project, and new files that it does not ignore, as they are now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, encoding="utf-8").stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


@contextlib.contextmanager
def planted(bug: Bug, folder: Path) -> Iterator[None]:
    """The project in `folder` with this bug in it, until the block ends."""
    path = folder / bug.file
    before = path.read_text(encoding="utf-8")
    path.write_text(with_bug(bug, before), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(before, encoding="utf-8")


def with_bug(bug: Bug, source: str) -> str:
    """The source with the bug in it. Raises ValueError where the text to change is not there just once."""
    if source.count(bug.old) != 1:
        raise ValueError(f"{bug.file} holds {source.count(bug.old)} times, instead of once: {bug.old}")
    return source.replace(bug.old, bug.new)


def failing_without(copy: Path, tests: Sequence[str]) -> list[str]:
    """The fast tests in these files that fail in the copy as it is, and so can't notice anything."""
    return _failures(_run(copy, [], tests, SECONDS * len(tests)))


def noticed_by(copy: Path, tests: Sequence[str], left_out: Sequence[str] = ()) -> str:
    """What the fast tests in these files say in the copy: the first that fails, that they hang, or SURVIVED."""
    try:
        said = _run(copy, ["-x", *(f"--deselect={test}" for test in left_out)], tests, SECONDS)
    except subprocess.TimeoutExpired:
        return f"hanging: no end after {SECONDS} s"
    return next(iter(_failures(said)), SURVIVED)


def _failures(said: str) -> list[str]:
    """The tests, or files that could not be imported, that pytest's summary names."""
    lines = (line.split(" ", 1)[1] for line in said.splitlines() if line.startswith(("FAILED ", "ERROR ")))
    return [line.partition(" - ")[0] for line in lines]


def _run(copy: Path, options: Sequence[str], tests: Sequence[str], seconds: float) -> str:
    """What pytest prints in the copy. Raises TimeoutExpired, RuntimeError where it could not run the tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", FAST, *options, *tests]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    where = copy
    if shutil.which("bwrap"):
        command, where = [*in_place_of_the_checkout(copy), *command], ROOT
    else:
        environment["PYTHONPATH"] = str(copy)
    process = subprocess.Popen(
        command,
        cwd=where,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=seconds)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode and not _failures(said):
        raise RuntimeError(f"pytest ended with {process.returncode}: {said[-500:]}")
    return said


def in_place_of_the_checkout(copy: Path) -> list[str]:
    """A command after which a program finds the copy where the checkout is, with the checkout's environment in it."""
    command = ["bwrap", "--dev-bind", "/", "/", "--die-with-parent", "--bind", str(copy), str(ROOT)]
    for path in (Path(sys.prefix), ROOT / ".git"):
        if path.is_relative_to(ROOT) and path.exists():
            command += ["--bind", str(path), str(path)]
    return [*command, "--chdir", str(ROOT)]


if __name__ == "__main__":
    sys.exit(main())
