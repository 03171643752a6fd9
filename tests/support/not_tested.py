"""A pytest hook: after the tests, what was skipped on this machine, and how to have it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# (what is missing, words that stand in the reasons of its skips, how to have it)
MISSING = (
    ("bubblewrap", ("bubblewrap",), "install your system's package `bubblewrap`"),
    ("Chromium", ("chromium",), "install your system's package `chromium`"),
    ("nbgrader", ("nbgrader",), "python bootstrap.py --extras test,instructor"),
    ("Triton", ("triton",), "it comes with PyTorch for NVIDIA GPUs on Linux; elsewhere: pip install triton"),
    ("a GPU", ("gpu",), "run on a machine with an NVIDIA GPU and PyTorch for CUDA"),
    ("4-bit kernels", ("4-bit",), "run on a CPU that has them: `specdec doctor` says which ones it has"),
    ("bfloat16 arithmetic", ("bfloat16",), "run on a CPU that multiplies bfloat16 in hardware"),
)


def not_tested(skipped: Iterable[tuple[str, int, str]]) -> list[str]:
    """A line for each missing thing, from (file, number of tests, reason).

    A number of 0 says that the whole file was skipped. A reason that fits no missing thing is printed as it is.
    """
    counts: Counter[tuple[str, str]] = Counter()
    whole_files = set()
    for file, tests, reason in skipped:
        reason = reason.removeprefix("Skipped: ")
        fits = ((name, how) for name, words, how in MISSING if any(word in reason.lower() for word in words))
        key = next(fits, (reason, ""))
        counts[key] += tests or _functions(file)
        if not tests:
            whole_files.add(key)
    lines = []
    for (name, how), n in counts.items():
        at_least = "at least " if (name, how) in whole_files else ""
        lines.append(f"{name}: {at_least}{n} test{'' if n == 1 else 's'}" + (f". To have it: {how}" if how else ""))
    return lines


def _functions(file: str) -> int:
    """Test functions of a file that was skipped as a whole; parameters are not counted."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    return sum(isinstance(n, ast.FunctionDef) and n.name.startswith("test_") for n in ast.walk(tree))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was not tested. pytest calls this; a report without a phase is that of a whole file."""
    reports = terminalreporter.stats.get("skipped", [])
    found = [
        (report.longrepr[0], 1 if getattr(report, "when", "") in ("setup", "call") else 0, report.longrepr[2])
        for report in reports
        if isinstance(report.longrepr, tuple)
    ]
    if found:
        terminalreporter.section("not tested on this machine")
        for line in not_tested(found):
            terminalreporter.write_line(line)
