"""Make the archive that learners get: the course at HEAD without the answers.

    python tools/student_kit.py              dist/specdec-course.zip
    python tools/student_kit.py FILE.zip     another place

The same commit gives the same bytes. What is not committed is not in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = [
    "solutions",
    "grading",
    "specdec_course/grading",
    "tests/course/checks",
    "tests/course/grading",
    "tests/support/variants",
    "tests/support/harness.py",
    "tests/support/grading_course.py",
    "tools/build_exercises.py",
    "tools/student_kit.py",
    "tools/sample_submissions.py",
    "nbgrader_config.py",
    "INSTRUCTORS.md",
    ".ci",
]


def make(target: Path, root: Path = ROOT) -> None:
    """Write the archive of the commit that is checked out in `root`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "archive", "--format=zip", "--prefix=specdec-course/", f"--output={target.resolve()}", "HEAD"]
    # A zip holds local times; one zone for all makes its bytes the same everywhere.
    environment = {**os.environ, "TZ": "UTC"}
    exclude = [f":(exclude,glob){p}" if "*" in p else f":(exclude){p}" for p in LEFT_OUT]
    subprocess.run([*command, "--", ".", *exclude], cwd=root, check=True, env=environment)


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / "specdec-course.zip"
    make(place)
    print(f"{place}: {place.stat().st_size / 1e6:.1f} MB, without {', '.join(LEFT_OUT[:3])} and what belongs to them")
