"""Files are written whole or not at all."""

from __future__ import annotations

import os
import tempfile

import pytest

from specdec_ref.files import write_atomic


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "marks.csv"
    write_atomic(path, b"old")

    def fails(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["marks.csv"]


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
def test_others_may_read_what_was_written(tmp_path):
    write_atomic(tmp_path / "marks.csv", "text")
    assert (tmp_path / "marks.csv").stat().st_mode & 0o777 == 0o644


def test_a_file_is_written_beside_the_one_that_it_replaces(tmp_path, monkeypatch):
    """A rename is atomic on one disk only, and the folder of temporary files may lie on another."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "another disk"))
    write_atomic(tmp_path / "marks.csv", "text")
    assert (tmp_path / "marks.csv").read_text(encoding="utf-8") == "text"
