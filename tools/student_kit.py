"""Make the archive for learners: the course as committed, without the answers and without grading.

    python tools/student_kit.py              writes dist/specdec-course.zip
    python tools/student_kit.py FILE.zip     writes FILE.zip

The same commit gives the same bytes. Uncommitted changes are not included.
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
    "tests/support/planted_bugs",
    "tests/support/harness.py",
    "tests/support/grading_course.py",
    "tests/support/honest_class.py",
    "tests/support/hostile_cells.py",
    "tests/tools/test_plant_bugs.py",
    "tests/tools/test_student_kit.py",
    "tools/build_exercises.py",
    "tools/plant_bugs.py",
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
    # A zip stores local times: with one time zone its bytes are the same everywhere.
    environment = {**os.environ, "TZ": "UTC"}
    exclude = [f":(exclude,glob){p}" if "*" in p else f":(exclude){p}" for p in LEFT_OUT]
    subprocess.run([*command, "--", ".", *exclude], cwd=root, check=True, env=environment)


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / "specdec-course.zip"
    make(place)
    print(f"{place}: {place.stat().st_size / 1e6:.1f} MB, without answers and grading")
