"""Collects submissions: a folder or an archive, as learning platforms export them -> grading/submitted/.

    STUDENT/ps04-rejection/ps04-rejection.ipynb      STUDENT/ps04.ipynb       STUDENT.zip that holds ps04.ipynb
    STUDENT_ps04.ipynb                               Name_123_assignsubmission_file/ps04.ipynb  (Moodle)
    student_123_456_ps04.ipynb  (Canvas)             and a .zip of any of these

Nothing is extracted under a name that a file chose, no link is followed, no earlier submission is overwritten, and the
bytes of a file and of a whole run are limited. A file that can't be taken is listed with the reason, and the others go
on. (`nbgrader zip_collect` extracts whole archives without any limit, and finds students by one regular expression.)
"""

from __future__ import annotations

import io
import os
import re
import stat
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from specdec_course.grading.course_folder import Course, digest
from specdec_course.grading.submission import MAX_BYTES
from specdec_ref.files import write_atomic

MAX_RUN = 2 << 30  # bytes taken in one run
MAX_FILES = 20_000  # in one archive
MOST_COMPRESSED = 100  # times; notebooks with pictures reach 1 to 2, with much text 20
MAX_NAME = 100  # bytes of a student's name: file systems allow 255, and something is added to it
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

    Letters of all scripts, digits, spaces and `. _ @ -` stay, all else becomes `_`. A name of more than 100 bytes
    is cut and ends with a fingerprint, so that two long ones stay different.
    """
    name = " ".join(unicodedata.normalize("NFC", name).split())
    name = re.sub(r"[^\w .@-]", "_", name).strip(" .")
    if len(whole := name.encode("utf-8", "replace")) > MAX_NAME:
        name = f"{whole[: MAX_NAME - 9].decode('utf-8', 'ignore').rstrip(' .')}-{digest(whole)[:8]}"
    return "" if not name.strip("_.-@ ") else name.lstrip("@-")


@dataclass
class _Found:
    """A notebook that was found, its bytes kept in a file of ours until it is placed."""

    path: str
    who: str
    kept: Path
    fingerprint: str


def collect(course: Course, given: Path, replace: bool = False) -> Collected:
    """Place the notebooks of a folder or archive. Raises ValueError where `given` is neither."""
    if not (given.is_dir() or zipfile.is_zipfile(given)):
        raise ValueError(f"{given} is neither a folder nor a .zip archive")
    names, result = course.problem_sets(), Collected()
    found: dict[tuple[str, str], list[_Found]] = {}
    spelled: dict[str, str] = {}
    course.grading.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".collect-", dir=course.grading) as folder:
        taken = 0
        for path, data, problem in _files(given):
            if problem or data is None:
                result.left.append((path, problem))
                continue
            who, name, why = identify(path, names)
            student = student_id(who)
            if why or not student:
                result.left.append((path, why or f"no usable name of a student in {who!r}"))
            elif spelled.setdefault(student.casefold(), who) != who:
                other = spelled[student.casefold()]
                result.left.append((path, f"{who!r} and {other!r} would both be {student!r}: rename one"))
            elif (taken := taken + len(data)) > MAX_RUN:
                result.left.append((path, f"more than {MAX_RUN >> 30} GB in one run: collect it by itself"))
            else:
                kept = Path(folder) / str(sum(map(len, found.values())))
                kept.write_bytes(data)
                found.setdefault((name, student), []).append(_Found(path, who, kept, digest(data)))
        for (name, student), files in found.items():
            exact = [f for f in files if PurePosixPath(f.path).name == f"{name}.ipynb"]
            chosen = exact if len(exact) == 1 else files
            if len({f.fingerprint for f in chosen}) > 1:
                result.left += [(f.path, f"{student} has several of {name}: keep one") for f in files]
                continue
            result.left += [(f.path, f"{chosen[0].path} was taken") for f in files if f not in chosen]
            try:
                _place(course, result, name, student, chosen[0], replace)
            except OSError as error:
                result.left.append((chosen[0].path, f"can't be stored: {error.strerror or error}"))
    return result


def _place(course: Course, result: Collected, name: str, student: str, file: _Found, replace: bool) -> None:
    target, data = course.submission(name, student), file.kept.read_bytes()
    if target.exists() or target.is_symlink():
        before = b"" if target.is_symlink() else target.read_bytes()
        if before == data:
            result.same.append((name, student))
            return
        if not replace:
            result.left.append((file.path, f"{student} has a different {name} here already: --replace keeps both"))
            return
        write_atomic(course.grading / "replaced" / student / name / f"{digest(before)}.ipynb", before)
        write_atomic(target, data)
        result.replaced.append((name, student))
    else:
        write_atomic(target, data)
        result.placed.append((name, student))


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
        yield from _archive(given, "")
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
            try:
                yield from _file(path, full)
            except OSError as error:
                yield path, None, f"can't be read: {error.strerror or error}"


def _file(path: str, full: Path) -> Iterator[tuple[str, bytes | None, str]]:
    info = full.lstat()
    if not stat.S_ISREG(info.st_mode):
        yield path, None, "a link or a device: not opened"
    elif full.suffix.lower() == ".zip":
        yield from _archive(full, path)
    elif full.suffix == ".ipynb":
        if info.st_size > MAX_BYTES:
            yield path, None, _too_large(info.st_size)
        else:
            yield path, full.read_bytes(), ""
    elif full.name != "timestamp.txt":
        yield path, None, "not a notebook"


def _too_large(size: int) -> str:
    return f"{size >> 20} MB: too large (at most {MAX_BYTES >> 20} MB)"


def _archive(place: Path | io.BytesIO, prefix: str, depth: int = 0) -> Iterator[tuple[str, bytes | None, str]]:
    try:
        archive = zipfile.ZipFile(place)
    except (zipfile.BadZipFile, ValueError, OSError, RuntimeError):
        yield prefix, None, "a damaged archive"
        return
    with archive:
        entries = archive.infolist()
        if len(entries) > MAX_FILES:
            yield prefix, None, f"{len(entries)} files in one archive: not opened (at most {MAX_FILES})"
            return
        for entry in entries:
            yield from _entry(archive, entry, prefix, depth)


def _entry(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, prefix: str, depth: int
) -> Iterator[tuple[str, bytes | None, str]]:
    inside = entry.filename.replace("\\", "/")
    parts = PurePosixPath(inside).parts
    path = f"{prefix}/{inside}" if prefix else inside
    if not parts or entry.is_dir() or IGNORED & set(parts) or parts[-1].startswith("."):
        return
    problem = ""
    if inside.startswith("/") or ".." in parts or ":" in parts[0]:
        problem = "a path that leads out of the archive"
    elif stat.S_ISLNK(entry.external_attr >> 16):
        problem = "a link: not followed"
    elif not inside.endswith((".ipynb", ".zip")):
        problem = "not a notebook"
    elif entry.file_size > MAX_BYTES:
        problem = _too_large(entry.file_size)
    elif entry.file_size > MOST_COMPRESSED * max(entry.compress_size, 10_000):
        problem = (
            f"compressed {entry.file_size // max(entry.compress_size, 1)} times: not a notebook that was worked on"
        )
    elif inside.endswith(".zip") and depth:
        problem = "an archive in an archive in an archive: not opened"
    if problem:
        yield path, None, problem
        return
    try:
        with archive.open(entry) as file:
            content = file.read(MAX_BYTES + 1)  # the size in the archive's list may be a lie
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError, EOFError, ValueError, zlib.error) as error:
        yield path, None, f"can't be read from the archive: {str(error)[:80]}"
        return
    if len(content) > MAX_BYTES:
        yield path, None, _too_large(len(content))
    elif inside.endswith(".ipynb"):
        yield path, content, ""
    else:
        yield from _archive(io.BytesIO(content), path, depth + 1)
