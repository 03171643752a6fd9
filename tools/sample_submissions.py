"""Makes sample submissions of a problem set, to try the grading with: a perfect, a half-finished and a hostile one.

    python tools/sample_submissions.py ps01 FOLDER       FOLDER/perfect/ps01-roofline.ipynb, FOLDER/half/..., ...

perfect is the instructor's solution; half leaves out every second part; hostile has no solutions and tries to get full
marks by replacing the checks, to read the solutions, to use the network and to end the grading.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = [
    "from specdec_course.checks import Check\nCheck.__call__ = lambda self, *learners, points=1, seed=None: points",
    f"print(open({str(ROOT / 'solutions' / 'src')!r} + '/ps01_roofline.py').read())",
    "import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=2)",
    "b = bytearray(8 << 30)",
    "while True:\n    print('x' * 100_000)",
    "import os\nos._exit(0)",
]


def samples(name: str, root: Path = ROOT) -> dict[str, nbformat.NotebookNode]:
    """The three submissions of problem set `name`."""
    released = nbformat.read(root / "exercises" / name / f"{name}.ipynb", as_version=4)
    solved = nbformat.read(root / "solutions" / name / f"{name}.ipynb", as_version=4)
    answers = {
        c.metadata.nbgrader.grade_id: c.source for c in solved.cells if c.metadata.get("nbgrader", {}).get("solution")
    }
    parts = [i for i in answers if i.startswith("solve-")]
    made = {}
    for kind, known in (("perfect", list(answers)), ("half", parts[::2]), ("hostile", [])):
        notebook = copy.deepcopy(released)
        for cell in notebook.cells:
            if (grade_id := cell.metadata.get("nbgrader", {}).get("grade_id")) in known:
                cell.source = answers[grade_id]
        made[kind] = notebook
    made["hostile"].cells += [nbformat.v4.new_code_cell(source, id=f"extra-{i}") for i, source in enumerate(HOSTILE)]
    return made


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    names = [p.name for p in sorted((ROOT / "solutions").glob(f"{sys.argv[1]}*")) if p.is_dir()]
    if len(names) != 1:
        sys.exit(f"{sys.argv[1]} is not the beginning of one problem set's name: {', '.join(names) or 'none'}")
    for student, notebook in samples(names[0]).items():
        place = Path(sys.argv[2]) / student / f"{names[0]}.ipynb"
        place.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, place)
        print(place)


if __name__ == "__main__":
    main()
