"""The compiled loops on disk: whatever is wrong there costs time and one warning, never a load."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_ref.kernels import loops

CODE = """
import torch, warnings
from specdec_ref.kernels import loops
loops.gate.compile()
out = torch.empty(1, 4, dtype=torch.bfloat16)
loops.gate(torch.ones(1, 8, dtype=torch.bfloat16), out, 1, 4)
print(out[0, 0].item(), loops.cache_folder())
"""
GATE = 0.73046875  # silu(1) in bfloat16


def start(folder, **environment):
    variables = os.environ | {"NUMBA_CACHE_DIR": str(folder)} | environment
    return subprocess.Popen(
        [sys.executable, "-c", CODE], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(folder, **environment):
    process = start(folder, **environment)
    out, err = process.communicate(timeout=300)
    return process.returncode, out.split(), err


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder of compiled loops, written by two processes that start at once."""
    folder = tmp_path_factory.mktemp("kept")
    both = [start(folder) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0 and float(out.split()[0]) == GATE
        assert err == ""
    assert sorted(folder.rglob("loops.gate*.nbi")) and sorted(folder.rglob("loops.gate*.nbc"))
    return folder


def test_what_was_kept_is_read(kept):
    before = {path: path.stat().st_mtime_ns for path in kept.rglob("*.nb?")}
    code, out, err = run(kept)
    assert (code, float(out[0]), err) == (0, GATE, "")
    assert Path(out[1]).is_relative_to(kept)
    assert {path: path.stat().st_mtime_ns for path in kept.rglob("*.nb?")} == before


@pytest.mark.parametrize("pattern", ["*.nbi", "*.nbc"], ids=["index", "code"])
def test_a_truncated_file_costs_a_warning(kept, tmp_path, pattern):
    folder = Path(shutil.copytree(kept, tmp_path / "kept"))
    for path in folder.rglob(pattern):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    code, out, err = run(folder)
    assert (code, float(out[0])) == (0, GATE), err
    assert err.count("RuntimeWarning") == 1 and "cannot be read from disk or kept there" in err
    assert str(folder) in err and "delete the files there" in err


def test_a_disk_that_is_full_costs_a_warning(tmp_path):
    """A limit on the size of files stands in for it: an error while the compiled code is written."""
    code = "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n" + CODE
    variables = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and float(done.stdout.split()[0]) == GATE
    assert done.stderr.count("RuntimeWarning") == 1 and "make room" in done.stderr
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size] == []


def test_files_of_another_user_cost_one_warning(monkeypatch):
    """The error is made here: as root, the tests may read everything."""

    def unreadable(self, cache):
        if cache:
            raise PermissionError(13, "Permission denied", "loops.gate.py311.nbi")
        return compiled(self, cache)

    compiled = loops.Loop._compiled
    monkeypatch.setattr(loops.Loop, "_compiled", unreadable)
    monkeypatch.setattr(loops, "trouble", None)
    with pytest.warns(RuntimeWarning, match="Permission denied") as said:
        for each in (loops.gate, loops.norm):
            loops.Loop(each.function, each.signature).compile()
    assert len(said) == 1


def test_without_a_compiler_the_message_is_one_line(tmp_path):
    code, _, err = run(tmp_path, NUMBA_DISABLE_JIT="1")
    assert code == 1
    assert err.strip().splitlines()[-1].startswith("ValueError: NUMBA_DISABLE_JIT is set")
    command = [sys.executable, "-m", "specdec_ref.cli", "doctor"]
    done = subprocess.run(command, env=os.environ | {"NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True)
    assert "no   compiled loops: NUMBA_DISABLE_JIT is set" in done.stdout and done.returncode == 1
