"""Threads of a notebook's kernel yield the core while they wait, unless the learner has chosen otherwise."""

import os
import subprocess
import sys

import pytest
from support.paths import ROOT


def report(code, **environment):
    """What GNU's OpenMP says of itself when it is loaded."""
    inherited = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    environment = inherited | {"OMP_DISPLAY_ENV": "VERBOSE"} | environment
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("this PyTorch uses another OpenMP")
    return done.stderr


def test_a_lessons_import_keeps_waiting_threads_from_spinning():
    assert "GOMP_SPINCOUNT = '0'" not in report("import torch")
    assert "GOMP_SPINCOUNT = '0'" in report("import specdec_course, torch")


def test_a_learners_own_choice_is_kept():
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in report("import specdec_course, torch", OMP_WAIT_POLICY="active")


@pytest.mark.parametrize("own, expected", [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_make_lab_hands_it_to_its_kernels(own, expected, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    import bootstrap

    started = []

    class Done:
        returncode = 0

    monkeypatch.setattr(bootstrap.subprocess, "run", lambda command, **options: started.append(options) or Done())
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if own:
        monkeypatch.setenv("OMP_WAIT_POLICY", own)
    with pytest.raises(SystemExit):
        bootstrap.lab([])
    assert started[0]["env"]["OMP_WAIT_POLICY"] == expected
