"""Takes submissions in: a folder or an archive, as learning platforms export them -> grading/submitted/.

    STUDENT/ps04-rejection/ps04-rejection.ipynb      STUDENT/ps04.ipynb       STUDENT.zip that holds ps04.ipynb
    STUDENT_ps04.ipynb                               Name_123_assignsubmission_file/ps04.ipynb  (Moodle)
    student_123_456_ps04.ipynb  (Canvas)             and a .zip of any of these

Nothing is extracted under a name that a file chose, no link is followed, and no earlier submission is overwritten.
"""

from __future__ import annotations

import io
import os
import re
import stat
import unicodedata
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from specdec_course.grading.course import Course, digest, write_whole
from specdec_course.grading.submission import MAX_BYTES

IGNORED = {"__MACOSX", ".ipynb_checkpoints", ".DS_Store", "Thumbs.db", "__pycache__"}
MOODLE = re.compile(r"^(?P<student>.+?)_\d+_assignsubmission_\w+?_?$")
CANVAS = re.compile(r"^(?P<student>[^_]+?)(_late)?_\d+_\d+_(?P<file>.+)$", re.IGNORECASE)
PROBLEM_SET = re.compile(r"(?<![a-z0-9])ps[-_ ]?(\d\d)(?!\d)", re.IGNORECASE)


@dataclass
class Collected:
    """What happened to the files of a folder."""

    placed: list[tuple[str, str]] = field(default_factory=list)  # (problem set, student)
    same: list[tuple[str, str]] = field(default_factory=list)  # were there already
    replaced: list[tuple[str, str]] = field(default_factory=list)  # the earlier one is kept beside
    left: list[tuple[str, str]] = field(default_factory=list)  # (file, why it was not taken)


def student_id(name: str) -> str:
    """A name as it is used for folders and in the gradebook; empty where nothing usable is left.

    Letters of all scripts, digits, spaces and `. _ @ -` stay, all else becomes `_`.
    """
    name = " ".join(unicodedata.normalize("NFC", name).split())
    name = re.sub(r"[^\w .@-]", "_", name).strip(" .")[:100].rstrip(" .")
    return "" if not name.strip("_.-@ ") else name.lstrip("@-")


def collect(course: Course, given: Path, replace: bool = False) -> Collected:
    """Place the notebooks of a folder or archive. Raises ValueError where `given` is neither."""
    if not (given.is_dir() or zipfile.is_zipfile(given)):
        raise ValueError(f"{given} is neither a folder nor a .zip archive")
    names = course.problem_sets()
    result = Collected()
    found: dict[tuple[str, str], list[tuple[str, str, bytes]]] = {}
    spelled: dict[str, str] = {}
    for path, data, problem in _files(given):
        if problem or data is None:
            result.left.append((path, problem))
            continue
        who, name, why = identify(path, names)
        student = student_id(who)
        if why or not student:
            result.left.append((path, why or f"no usable name of a student in {who!r}"))
        elif spelled.setdefault(student.casefold(), who) != who:
            result.left.append(
                (path, f"{who!r} and {spelled[student.casefold()]!r} would both be {student!r}: rename one")
            )
        else:
            found.setdefault((name, student), []).append((path, who, data))
    for (name, student), files in found.items():
        exact = [f for f in files if PurePosixPath(f[0]).name == f"{name}.ipynb"]
        chosen = exact if len(exact) == 1 else files
        if len({digest(f[2]) for f in chosen}) > 1:
            result.left += [(f[0], f"{student} has several of {name}: keep one") for f in files]
            continue
        result.left += [(f[0], f"{chosen[0][0]} was taken") for f in files if f not in chosen]
        _place(course, result, name, student, chosen[0], replace)
    return result


def _place(
    course: Course, result: Collected, name: str, student: str, file: tuple[str, str, bytes], replace: bool
) -> None:
    path, _, data = file
    target = course.submission(name, student)
    if target.exists() or target.is_symlink():
        before = b"" if target.is_symlink() else target.read_bytes()
        if before == data:
            result.same.append((name, student))
            return
        if not replace:
            result.left.append(
                (path, f"{student} has another {name} here already: --replace takes this one, keeps both")
            )
            return
        kept = course.grading / "replaced" / student / name / f"{digest(before)}.ipynb"
        write_whole(kept, before)
        result.replaced.append((name, student))
    else:
        result.placed.append((name, student))
    write_whole(target, data)


def identify(path: str, names: list[str]) -> tuple[str, str, str]:
    """(student, problem set, "") of a file by its path, or ("", "", why not)."""
    parts = list(PurePosixPath(path).parts)
    if canvas := CANVAS.match(parts[-1]):
        parts[-1:] = [canvas["student"], canvas["file"]]
    stem = parts[-1].removesuffix(".ipynb")
    number, where = None, -1
    for part in [stem, *reversed(parts[:-1])]:
        if hits := list(PROBLEM_SET.finditer(part)):
            number, where = hits[-1], parts.index(part) if part in parts[:-1] else len(parts) - 1
            break
    if number is None:
        return "", "", "no problem set in its name (ps01.ipynb or a folder ps01-...)"
    name = next((n for n in names if n.startswith(f"ps{number[1]}-")), None)
    if name is None:
        return "", "", f"there is no problem set ps{number[1]} here"
    folders = [p for p in parts[:-1] if not (PROBLEM_SET.match(p) and parts.index(p) <= where)]
    if folders:
        who = folders[0]
    elif where == len(parts) - 1 and number.start() > 0:
        who = stem[: number.start()].rstrip("_- ")
    else:
        return "", "", "no student in its path (STUDENT/ps01.ipynb or STUDENT_ps01.ipynb)"
    who = who.removesuffix(".zip")
    if moodle := MOODLE.match(who):
        who = moodle["student"]
    return who, name, ""


def _files(given: Path) -> Iterator[tuple[str, bytes | None, str]]:
    """(path below `given`, its bytes, "") of every notebook, or (path, None, why not)."""
    if given.is_file():
        yield from _archive(given.read_bytes(), "")
        return
    for folder, folders, files in os.walk(given):
        linked = [f for f in folders if os.path.islink(os.path.join(folder, f))]
        folders[:] = sorted(f for f in folders if f not in IGNORED and f not in linked)
        here = Path(folder).relative_to(given)
        for file in linked:
            yield str(here / file), None, "a link to a folder: not followed"
        for file in sorted(files):
            path, full = (here / file).as_posix(), Path(folder) / file
            if file in IGNORED or file.startswith("."):
                continue
            info = full.lstat()
            if not stat.S_ISREG(info.st_mode):
                yield path, None, "a link or a device: not opened"
            elif info.st_size > MAX_BYTES:
                yield path, None, f"{info.st_size >> 20} MB: too large"
            elif file.endswith(".ipynb"):
                yield path, full.read_bytes(), ""
            elif file.lower().endswith(".zip"):
                yield from _archive(full.read_bytes(), path)
            elif file != "timestamp.txt":
                yield path, None, "not a notebook"


def _archive(data: bytes, prefix: str, depth: int = 0) -> Iterator[tuple[str, bytes | None, str]]:
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError):
        yield prefix, None, "a damaged archive"
        return
    for entry in archive.infolist():
        inside = entry.filename.replace("\\", "/")
        parts = PurePosixPath(inside).parts
        path = f"{prefix}/{inside}" if prefix else inside
        if entry.is_dir() or IGNORED & set(parts) or parts[-1].startswith("."):
            continue
        if inside.startswith("/") or ".." in parts or ":" in parts[0]:
            yield path, None, "a path that leads out of the archive"
        elif stat.S_ISLNK(entry.external_attr >> 16):
            yield path, None, "a link: not followed"
        elif entry.file_size > MAX_BYTES:
            yield path, None, f"{entry.file_size >> 20} MB: too large"
        elif not inside.endswith((".ipynb", ".zip")):
            yield path, None, "not a notebook"
        else:
            try:
                with archive.open(entry) as file:
                    content = file.read(MAX_BYTES + 1)  # the size in the archive's list may be a lie
            except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError, EOFError, ValueError) as error:
                yield path, None, f"can't be read from the archive: {str(error)[:80]}"
                continue
            if len(content) > MAX_BYTES:
                yield path, None, "too large"
            elif inside.endswith(".ipynb"):
                yield path, content, ""
            elif depth == 0:
                yield from _archive(content, path, 1)
            else:
                yield path, None, "an archive in an archive in an archive: not opened"
