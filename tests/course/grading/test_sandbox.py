"""The sandbox by itself: what is in it, that its limits bind, and what happens where there is none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from specdec_course.grading.bubblewrap import MB, Limits, SandboxMissing, bwrap, require_sandbox
from specdec_course.grading.sandbox import CodeCell, Outcome, _Attempt, run

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
LIMITS = Limits(cell_s=4, total_s=60, memory=1500 * MB, disk=32 * MB, file=16 * MB, processes=24, output=200_000)
LOOK_ROUND = """
import glob, json, os, resource, sys
def tree(top):
    return sorted(os.listdir(top)) if os.path.isdir(top) else None
root = os.path.dirname(os.path.dirname(__import__("specdec_ref").__file__))
found = {
    "uid": os.getuid(), "root": tree("/"), "course": tree(root), "pids": len(glob.glob("/proc/[0-9]*")),
    "net": [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line], "cwd": os.getcwd(),
    "env": sorted(os.environ), "model": os.access(os.path.join(os.environ["SPECDEC_HOME"], "x"), os.W_OK),
    "limits": [resource.getrlimit(getattr(resource, "RLIMIT_" + n)) for n in ("DATA", "NPROC", "FSIZE", "CPU")],
}
print(json.dumps(found))
"""


def scores(result, cells):
    return {c.index: result.score(c) for c in cells if c.kind == "test"}


def printed(result, index):
    return "".join(o.get("text", "") for o in result.outputs[index])


@needs_bwrap
def test_what_a_submission_finds(monkeypatch):
    import json

    monkeypatch.setenv("SECRET_TOKEN", "of the instructor")
    result = run([CodeCell(0, LOOK_ROUND)], 1, LIMITS)
    assert result.failure == "", result.failure
    found = json.loads(printed(result, 0))
    assert found["uid"] != 0
    assert {"home", "root", "srv", "mnt"} & set(found["root"]) <= {Path(sys.prefix).parts[1], Path.home().parts[1]}
    # Of the course's folder only the package and an environment that lies in it.
    assert set(found["course"]) <= {"specdec_ref", "specdec_course", Path(sys.prefix).name}
    assert found["cwd"] == "/tmp" and found["pids"] <= 4
    assert not {"SECRET_TOKEN", "SPECDEC_GRADING_SEED", "USER"} & set(found["env"])
    assert found["model"] is False and found["net"] == ["lo"]
    assert found["limits"][0] == [1500 * MB] * 2 and found["limits"][1] == [24] * 2
    assert found["limits"][2] == [16 * MB] * 2 and found["limits"][3] == [60] * 2


CONNECT = """
import socket
try:
    socket.create_connection(("127.0.0.1", {port}), 2).close()
    print("connected")
except OSError as error:
    print("refused")
"""


@needs_bwrap
def test_no_port_of_this_machine_can_be_reached():
    """A server listens; the same lines reach it from here, so the sandbox alone is in the way."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        source = CONNECT.format(port=server.getsockname()[1])
        outside = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
        result = run([CodeCell(0, source)], 1, LIMITS)
    assert (outside.stdout.strip(), printed(result, 0).strip()) == ("connected", "refused")


FORK = """
import os, time
n = 0
try:
    for n in range(60):
        if os.fork() == 0:
            time.sleep(30)
except OSError as error:
    print(n, error)
"""


@needs_bwrap
def test_limits_bind_and_can_not_be_raised():
    """Also for root, who becomes another user inside."""
    raising = "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (99, 99))"
    result = run([CodeCell(0, FORK), CodeCell(1, raising)], 1, LIMITS)
    assert "Resource temporarily unavailable" in printed(result, 0)
    assert int(printed(result, 0).split()[0]) < 24
    assert result.outputs[1][0]["evalue"] == "not allowed to raise maximum limit"


@needs_bwrap
def test_a_cell_that_ends_the_process_is_left_out_and_the_rest_runs():
    cells = [CodeCell(0, "import os\nos._exit(3)"), CodeCell(1, "x = 5"), CodeCell(2, "x", "test", True, 5)]
    result = run(cells, 1, LIMITS)
    assert scores(result, cells) == {2: 5} and result.ended == {0: "ended the process"} and result.failure == ""


@needs_bwrap
def test_the_seed_reaches_the_tests_and_no_other_cell():
    look = "import os\nos.environ.get('SPECDEC_GRADING_SEED')"
    cells = [CodeCell(0, look), CodeCell(1, "int(__import__('os').environ['SPECDEC_GRADING_SEED'])", "test", True, 99)]
    result = run(cells, 42, LIMITS)
    assert result.outputs[0] == [] and scores(result, cells) == {1: 42}


@needs_bwrap
def test_tests_can_not_change_each_other():
    cells = [
        CodeCell(0, "x = [1]"),
        CodeCell(1, "x.append(1) or len(x)", "test", True, 5),
        CodeCell(2, "len(x)", "test", True, 5),
    ]
    assert scores(run(cells, 1, LIMITS), cells) == {1: 2, 2: 1}


@needs_bwrap
@pytest.mark.parametrize("value", ["True", "-1", "6", "float('nan')", "'5'", "None", "type('F', (float,), {})(3)"])
def test_only_a_plain_number_within_the_points_is_a_mark(value):
    cells = [CodeCell(0, value, "test", True, 5)]
    result = run(cells, 1, LIMITS)
    assert scores(result, cells) == {0: None} and "no mark between 0 and 5" in result.why_undecided(cells[0])


@needs_bwrap
def test_pictures_come_through_and_html_does_not():
    source = "from IPython.display import HTML, Javascript, display\ndisplay(HTML('<b>x</b>'), Javascript('alert(1)'))"
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
    result = run([CodeCell(0, source), CodeCell(1, plot)], 1, replace(LIMITS, cell_s=40))
    assert all(set(o["data"]) == {"text/plain"} for o in result.outputs[0])
    assert any("image/png" in o.get("data", {}) for o in result.outputs[1])


@needs_bwrap
def test_the_sandbox_goes_when_whoever_started_it_is_killed(tmp_path):
    """Also by a signal that can't be caught."""
    program = tmp_path / "grade.py"
    program.write_text(
        "from specdec_course.grading.sandbox import *\n"
        "run([CodeCell(0, 'import time\\ntime.sleep(50)')], 1, Limits(cell_s=55, total_s=60))",
        encoding="utf-8",
    )
    process = subprocess.Popen([sys.executable, str(program)])
    try:
        assert wait_for(lambda: below(process.pid), 30)
        inside = below(process.pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside), 10)


def below(pid):
    """Ids of a process's children and theirs."""
    try:
        children = [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []
    return [*children, *(p for c in children for p in below(c))]


def wait_for(condition, seconds):
    until = time.monotonic() + seconds
    while not (done := condition()) and time.monotonic() < until:
        time.sleep(0.1)
    return done


def test_without_bubblewrap_it_refuses_and_says_what_to_do(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    require_sandbox.cache_clear()
    with pytest.raises(SandboxMissing, match=r"apt install bubblewrap.*--no-sandbox"):
        run([CodeCell(0, "1")], 1, LIMITS)


def test_a_bubblewrap_that_may_not_make_namespaces_is_told(monkeypatch, tmp_path):
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'No permissions to create a new namespace' >&2\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    require_sandbox.cache_clear()
    with pytest.raises(SandboxMissing, match=r"No permissions.*user namespaces"):
        run([CodeCell(0, "1")], 1, LIMITS)
    require_sandbox.cache_clear()


def test_without_a_sandbox_time_and_memory_are_limited_all_the_same():
    cells = [CodeCell(0, "while True: pass"), CodeCell(1, "b = bytearray(8 << 30)"), CodeCell(2, "1", "test", True, 1)]
    result = run(cells, 1, LIMITS, confined=False)
    assert scores(result, cells) == {2: 1}
    assert result.ended == {0: "stopped after 4 s, the time that a cell has", 1: "stopped at 1500 MB of memory"}


def test_an_ordinary_user_gets_a_user_namespace_and_root_an_ordinary_user():
    assert "--unshare-user" in bwrap(LIMITS, as_root=False) and "CAP_SETUID" not in bwrap(LIMITS, as_root=False)
    assert "--unshare-user" not in bwrap(LIMITS, as_root=True)
    for command in (bwrap(LIMITS, False), bwrap(LIMITS, True)):
        assert {"--unshare-net", "--unshare-pid", "--die-with-parent", "--clearenv", "--new-session"} <= set(command)
        assert "--bind" not in command and "--dev-bind" not in command
        # The own /tmp comes first, so that it does not cover a course that lies in there.
        assert command.index("/tmp") < command.index(sys.prefix)


@needs_bwrap
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_number_of_processes_binds_an_ordinary_user_too():
    """As an instructor runs it, with a Python that this user can read."""
    python = shutil.which("python3", path="/usr/bin")
    if python is None:
        pytest.skip("no Python in /usr/bin")
    code = "import os, resource, time\nresource.setrlimit(resource.RLIMIT_NPROC, (8, 8))\nn = 0\ntry:\n"
    code += "    for _ in range(30):\n        if os.fork() == 0: time.sleep(5); os._exit(0)\n        n += 1\n"
    code += "except OSError: print('bound', n)"
    base = ["bwrap", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--unshare-pid", "--unshare-net"]
    base += [
        "--die-with-parent",
        "--ro-bind",
        "/usr",
        "/usr",
        "--symlink",
        "usr/lib",
        "/lib",
        "--symlink",
        "usr/lib64",
        "/lib64",
    ]
    as_user = ["setpriv", "--reuid", "23456", "--regid", "23456", "--clear-groups"]
    done = subprocess.run(
        [*as_user, *base, "--proc", "/proc", python, "-I", "-c", code], capture_output=True, text=True
    )
    assert done.stdout.startswith("bound "), done
    assert int(done.stdout.split()[1]) < 8


@needs_bwrap
def test_all_runs_of_a_submission_share_one_limit_of_time():
    """Each cell that ends the process starts the rest again, and each of them would have ten seconds."""
    cells = [CodeCell(i, "import os, time\ntime.sleep(3)\nos._exit(1)") for i in range(5)]
    cells.append(CodeCell(5, "1", "test", True, 1))
    began = time.monotonic()
    result = run(cells, 1, replace(LIMITS, cell_s=10, total_s=10))
    assert time.monotonic() - began < 15
    assert result.failure == "stopped: the whole submission took more than 10 s"
    assert scores(result, cells) == {5: None}


@needs_bwrap
def test_a_test_that_gave_points_keeps_them_when_the_time_is_over():
    cells = [CodeCell(0, "2", "test", True, 5), CodeCell(1, "import time\ntime.sleep(60)")]
    result = run(cells, 1, replace(LIMITS, cell_s=20, total_s=9))
    assert result.failure.startswith("stopped: the whole") and scores(result, cells) == {0: 2}


@needs_bwrap
def test_a_test_runs_at_its_place_and_at_the_end_and_the_better_counts():
    at_place = [CodeCell(0, "x = 5"), CodeCell(1, "x", "test", True, 5), CodeCell(2, "x = 1")]
    at_the_end = [CodeCell(0, "x = 1"), CodeCell(1, "x", "test", True, 5), CodeCell(2, "x = 5")]
    assert scores(run(at_place, 1, LIMITS), at_place) == {1: 5}
    assert scores(run(at_the_end, 1, LIMITS), at_the_end) == {1: 5}


@needs_bwrap
def test_the_memory_of_all_processes_together_is_watched():
    source = "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        b = bytearray(200 << 20)\n"
    source += "        time.sleep(25)\ntime.sleep(25)"
    result = run([CodeCell(0, source)], 1, replace(LIMITS, cell_s=30, memory=800 * MB))
    assert result.ended == {0: "stopped at 800 MB of memory"}


@pytest.mark.parametrize("second, score", [(None, 3), ("8", None), ("3", None)])
def test_a_second_mark_for_a_test_is_a_forgery_and_none_of_both_counts(second, score):
    cell, result = CodeCell(0, "", "test", True, points=8), Outcome()
    attempt = _Attempt(result, [cell], Limits(), time.monotonic() + 60, None)
    for kind, text in (("start", ""), ("points", "3"), ("points", second), ("ended", "")):
        if text is not None:
            attempt._take(kind, 0, text)
    assert result.score(cell) == score
    assert [*result.tampered] == (["a forged message"] if second else [])
