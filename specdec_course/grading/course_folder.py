"""The folders of a course that grading reads and writes; the names are those in nbgrader_config.py."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from specdec_ref.files import write_atomic

CONFIG = "nbgrader_config.py"


@dataclass(frozen=True)
class Course:
    """A course's folder: solutions/ and exercises/ in it, everything of the grading under grading/."""

    root: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Course:
        """The course that `start` (the current folder) lies in. Raises ValueError."""
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents):
            if (folder / CONFIG).is_file():
                return cls(folder)
        raise ValueError(f"{here} is not in a course: go to the folder that holds {CONFIG}, or name it with --course")

    @property
    def grading(self) -> Path:
        return self.root / "grading"

    @property
    def submitted(self) -> Path:
        return self.grading / "submitted"

    @property
    def database(self) -> str:
        return f"sqlite:///{self.grading / 'gradebook.db'}"

    def source(self, name: str) -> Path:
        """The instructor's notebook of a problem set."""
        return self.root / "solutions" / name / f"{name}.ipynb"

    def released(self, name: str) -> Path:
        """The learners' notebook."""
        return self.root / "exercises" / name / f"{name}.ipynb"

    def submission(self, name: str, student: str) -> Path:
        """What a student handed in."""
        return self.submitted / student / name / f"{name}.ipynb"

    def autograded(self, name: str, student: str) -> Path:
        """The submission as it was run and graded."""
        return self.grading / "autograded" / student / name / f"{name}.ipynb"

    def feedback(self, name: str, student: str) -> Path:
        """The page for the student."""
        return self.grading / "feedback" / student / name / f"{name}.html"

    def record(self, name: str, student: str) -> Path:
        """What is known of the last grading run."""
        return self.grading / "runs" / name / f"{student}.json"

    def problem_sets(self, wanted: Iterable[str] = ()) -> list[str]:
        """Names of the problem sets; of those that begin with one of `wanted` if any are given. Raises ValueError."""
        names = sorted(p.parent.name for p in self.root.glob("solutions/*/*.ipynb") if p.stem == p.parent.name)
        wanted = list(wanted)
        if unknown := [w for w in wanted if not any(n.startswith(w) for n in names)]:
            raise ValueError(f"no problem set begins with {unknown[0]!r}: there are {', '.join(names) or 'none'}")
        return [n for n in names if not wanted or any(n.startswith(w) for w in wanted)]

    def submissions(self, names: Iterable[str], student: str | None = None) -> list[tuple[str, str]]:
        """(problem set, student) of all that was collected. Raises ValueError where `student` has none."""
        found = [(n, p.parts[-3]) for n in names for p in sorted(self.submitted.glob(f"*/{n}/{n}.ipynb"))]
        if student is not None and all(s != student for _, s in found):
            known = sorted({s for _, s in found})
            raise ValueError(
                f"nothing of {student!r} was collected; there are {', '.join(known[:20]) or 'no submissions'}"
            )
        return [(n, s) for n, s in found if student in (None, s)]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock that lets one command at a time change the grades. Raises ValueError if another holds it."""
        self.grading.mkdir(exist_ok=True)
        try:
            with FileLock(self.grading / ".lock", timeout=0):
                yield
        except Timeout:
            raise ValueError("another `specdec grade` is running here: wait until it has finished") from None


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_atomic(path, json.dumps(value, indent=1, ensure_ascii=False))


def read_json(path: Path) -> Any:
    """What a JSON file holds; None where it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def digest(data: bytes) -> str:
    """A short fingerprint."""
    return hashlib.sha256(data).hexdigest()[:20]
