"""Small bugs to plant in the package, and the tests that have to notice each: the data of `tools/plant_bugs.py`.

`specdec_ref.proof.mutants` plants bugs in rules, engine and drafters for the exact checks; these are of other kinds, in
all the other rooms.
"""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """A small plausible mistake: in `file`, where `old` occurs once, it becomes `new`.

    name: what goes wrong, in a few words.
    tests: files of the fast tests, of which one has to fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def bug(name: str, file: str, old: str, new: str, *tests: str) -> Bug:
    """A bug; its tests as file names below tests/, without `test_` and `.py`: "models/gguf"."""
    paths = (f"tests/{folder}test_{stem}.py" for folder, stem in map(_split, tests))
    return Bug(name, file, old, new, tuple(paths))


def _split(test: str) -> tuple[str, str]:
    folder, slash, stem = test.rpartition("/")
    return folder + slash, stem


from support.planted_bugs import computing, course, drafting, measuring, models  # noqa: E402 - they need `bug`

BUGS: list[Bug] = [*models.BUGS, *computing.BUGS, *drafting.BUGS, *measuring.BUGS, *course.BUGS]
"""Every one of them."""
