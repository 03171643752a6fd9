"""Files are written whole or not at all."""

from __future__ import annotations

import os

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
