"""The commands where a machine is not as it should be: they work, or say in one line what to do.

Each environment runs several commands in one process, so that PyTorch is imported once for all of them.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.paths import ROOT
from support.tiny_folder import save_tiny_model

DRIVER = """
import json, sys
from specdec_ref.cli import main
for command in json.load(open(sys.argv[1], encoding="utf-8")):
    sys.stderr.write("\\n>>> " + json.dumps(command) + "\\n")
    code = main(command)
    if sys.stdout is not None:
        sys.stdout.flush()
    sys.stderr.write("<<< %d\\n" % code)
"""
RECORD = ROOT / "lessons" / "recorded" / "bench.json"
LIGHT = [
    ["--help"],
    ["demo", "--help"],
    ["kv", "--model", "gemma-2-2b", "--chip", "l4"],
    ["roofline", "--model", "llama-3-70b", "--chip", "h100-sxm", "--tp", "2"],
    ["roofline", "--model", "llama-3-70b", "--chip", "h100"],
]
"""Commands without PyTorch; the last one makes no sense, and says so."""


@dataclass
class Environment:
    """What is set, what is missing, where it runs, and what it runs in."""

    variables: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    folder: str | None = None
    wrapper: tuple[str, ...] = ()
    shell: str = 'exec "$@"'


@dataclass
class Outcome:
    """What came of one command."""

    code: int
    errors: str


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model that any user can read."""
    folder = save_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
    for path in (folder, *folder.parents):
        if path.stat().st_uid == os.getuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    for file in folder.iterdir():
        file.chmod(0o644)
    return str(folder)


def run(tmp_path, environment, commands):
    """Run the commands in one process in that environment; output, and the outcome of each of them."""
    script, todo = tmp_path / "driver.py", tmp_path / "commands.json"
    script.write_text(DRIVER, encoding="utf-8")
    todo.write_text(json.dumps(commands), encoding="utf-8")
    tmp_path.chmod(0o755)
    variables = {k: v for k, v in os.environ.items() if k not in environment.without} | environment.variables
    variables["PYTHONPATH"] = f"{tmp_path}:{ROOT}"  # a sitecustomize.py there is run first
    done = subprocess.run(
        [*environment.wrapper, "sh", "-c", environment.shell, "sh", sys.executable, str(script), str(todo)],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=variables,
        cwd=environment.folder or tmp_path,
        timeout=300,
    )
    errors = done.stderr.decode("utf-8", "replace")
    assert "Traceback" not in errors and "Exception ignored" not in errors, errors
    assert done.returncode == 0, errors
    outcomes = []
    for part in errors.split("\n>>> ")[1:]:
        said, _, code = part.partition("\n")[2].rpartition("<<< ")
        outcomes.append(Outcome(int(code), said))
    assert len(outcomes) == len(commands), errors
    for command, outcome in zip(commands, outcomes, strict=True):
        assert outcome.code in (0, 1, 2), (command, outcome)
        if outcome.code:
            said = [line for line in outcome.errors.splitlines() if line.startswith("specdec: ")]
            assert len(said) == 1 or command[0] == "doctor", (command, outcome)
    return done.stdout, outcomes


NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
NO_ACCOUNT = ("bwrap", "--dev-bind", "/", "/", "--unshare-user", "--uid", "54321", "--")
FULL_DISK = ("bwrap", "--dev-bind", "/", "/", "--size", "65536", "--tmpfs", "/mnt", "--")
FILL = 'head -c 1000000 /dev/zero >/mnt/fill 2>/dev/null; exec "$@"'
ON_A_FULL_DISK = {name: "/mnt/x" for name in ("HOME", "SPECDEC_HOME", "NUMBA_CACHE_DIR", "TMPDIR", "XDG_CACHE_HOME")}


def works(*command):
    """Whether this machine can set up such an environment."""
    try:
        return shutil.which(command[0]) and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


def nobody_can_use_this_python():
    # By way of a shell: what setpriv itself starts still has root's rights to files.
    return works(*NOBODY, "sh", "-c", f"exec {sys.executable} -c ''", "sh")


ENVIRONMENTS = {
    "no HOME": Environment(without=("HOME",)),
    "HOME cannot be written": Environment({"HOME": "/proc/nowhere"}),
    "LC_ALL=C": Environment({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "ASCII": Environment({"PYTHONIOENCODING": "ascii"}),
    "cp1252, as a redirect on Windows": Environment({"PYTHONIOENCODING": "cp1252"}),
    "a narrow terminal": Environment({"COLUMNS": "20"}),
    "a folder that cannot be written": Environment(folder="/proc"),
    "standard input closed": Environment(shell='exec "$@" <&-'),
    "standard output closed": Environment(shell='exec "$@" >&-'),
    "no folder for temporary files": Environment({"TMPDIR": "/nowhere", "TEMP": "/nowhere"}),
    "caches that cannot be written": Environment({"SPECDEC_HOME": "/proc/x", "NUMBA_CACHE_DIR": "/proc/x"}),
    "SPECDEC_HOME is a file": Environment({"SPECDEC_HOME": str(Path(__file__))}),
    "a bare environment": Environment(without=tuple(k for k in os.environ if k != "PATH")),
    "another user": Environment(wrapper=NOBODY, without=("HOME",)),
    "a user without an account": Environment(wrapper=NO_ACCOUNT, without=("HOME",)),
    "a full disk": Environment(ON_A_FULL_DISK, wrapper=FULL_DISK, shell=FILL),
}
NEEDS = {
    "another user": nobody_can_use_this_python,
    "a user without an account": lambda: works(*NO_ACCOUNT),
    "a full disk": lambda: works(*FULL_DISK),
}


def require(name):
    if name in NEEDS and not NEEDS[name]():
        pytest.skip(f"this machine cannot set up: {name}")
    return ENVIRONMENTS[name]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_what_needs_no_model_works_anywhere(tmp_path, name):
    out, outcomes = run(tmp_path, require(name), LIGHT)
    assert [o.code for o in outcomes] == [0, 0, 0, 0, 2]
    assert "nearest known" in outcomes[-1].errors
    assert name == "standard output closed" or (b"Usage: specdec" in out and b"295 FLOP/byte" in b" ".join(out.split()))


@pytest.mark.parametrize(
    "name",
    [
        "a bare environment",
        "cp1252, as a redirect on Windows",
        "standard input closed",
        "caches that cannot be written",
        "a user without an account",
        "another user",
        pytest.param("a full disk", marks=pytest.mark.slow),  # each loop is compiled anew
    ],
)
def test_a_model_generates_anywhere(tmp_path, name, model):
    """And what cannot be had there is refused in one line: the default model, a prompt from a closed input."""
    generate = ["generate", "a b", "--model", model, "--max-new-tokens", "5"]
    commands = [generate, [*generate[:1], "-", *generate[2:]], ["bench", "--read", str(RECORD)], ["doctor"]]
    if name == "caches that cannot be written":
        commands.append(["fetch"])
    out, outcomes = run(tmp_path, require(name), commands)
    codes = [o.code for o in outcomes]
    assert codes[0] == codes[2] == 0 and "5 tokens in" in outcomes[0].errors
    # An empty prompt is refused as well, by the engine.
    assert codes[1] == (2 if name == "standard input closed" else 1)
    assert ("standard input is closed" if codes[1] == 2 else "the prompt is empty") in outcomes[1].errors
    shown = out.decode("utf-8", "replace").splitlines()[0]
    assert shown.split() == ["?" if "cp1252" in name else "😀"] * 5
    assert b"ok   torch" in out
    for outcome in outcomes[4:]:
        assert outcome.code == 1
        assert ENVIRONMENTS[name].variables["SPECDEC_HOME"] in outcome.errors


def test_output_that_cannot_be_written_is_one_line(tmp_path):
    for where, words in (("/dev/full", "No space left"), ("closed pipe", "")):
        shell = '"$@" >/dev/full' if where == "/dev/full" else '"$@" | true'
        command = [sys.executable, "-m", "specdec_ref.cli", "roofline", "--model", "llama-3-8b", "--chip", "l4"]
        done = subprocess.run(["sh", "-c", shell, "sh", *command], capture_output=True, text=True, cwd=ROOT)
        assert done.stderr.count("\n") <= 1 and words in done.stderr, done.stderr


HIDES = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if any((name + ".").startswith(hidden + ".") for hidden in {names}):
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Hide())
"""


def hiding(tmp_path, *names):
    """An environment in which these modules cannot be imported."""
    (tmp_path / "sitecustomize.py").write_text(HIDES.replace("{names}", repr(set(names))), encoding="utf-8")
    return Environment()


def test_every_command_works_without_the_lessons_packages(tmp_path, model):
    """What `pip install .` brings: no JupyterLab, matplotlib or ipywidgets, and the doctor only notes it."""
    environment = hiding(tmp_path, "jupyterlab", "matplotlib", "ipywidgets", "IPython", "ipykernel", "jupyter_client")
    pair = ["try", "--target", model, "--prompts", str(tmp_path / "p.txt"), "--max-new-tokens", "4", "--repeats", "1"]
    (tmp_path / "p.txt").write_text("a b\n", encoding="utf-8")
    demo = ["demo", "--model", model, "--prompt", "a [/b] b", "--max-new-tokens", "4", "--repeats", "1"]
    generate = ["generate", "a", "--model", model, "--max-new-tokens", "3"]
    rest = [
        generate,
        demo,
        pair,
        ["bench", "--read", str(RECORD)],
        ["bench", "--help"],
        ["fetch", "--help"],
        ["doctor"],
    ]
    out, outcomes = run(tmp_path, environment, [*LIGHT[:-1], *rest])
    assert [o.code for o in outcomes[:-1]] == [0] * (len(outcomes) - 1)
    for name in ("jupyterlab", "ipywidgets", "matplotlib"):
        assert f"note {name}: not installed\n       -> needed for the lessons: pip install '.[course]'".encode() in out
    assert b"kernel python3" not in out.split(b"note jupyterlab")[1]


def test_grading_is_a_command_where_it_is_installed_and_no_traceback_where_it_is_not(tmp_path):
    (tmp_path / "with").mkdir()
    out, (found, _) = run(tmp_path / "with", Environment(), [["grade", "--help"], ["--help"]])
    assert found.code == 0 and b"\n  grade " in out
    for hidden in ("specdec_course", "specdec_course.grading"):
        folder = tmp_path / hidden
        folder.mkdir()
        environment = hiding(folder, hidden)
        out, (missing, _) = run(folder, environment, [["grade", "--help"], ["--help"]])
        assert missing.code == 2 and "No such command 'grade'" in missing.errors
        assert b"  grade " not in out and b"  generate " in out
