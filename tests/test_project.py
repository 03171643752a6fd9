"""The project as a whole: layers, versions, set-up, README."""

import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml
from support.paths import PACKAGES, ROOT

BIN = Path(sys.executable).parent
SOURCES = [f for p in PACKAGES for f in p.rglob("*.py")]


def test_arrows_between_packages_hold():
    """The contracts stand in pyproject.toml; import-linter reads every import, also those inside functions."""
    result = subprocess.run([BIN / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_wrong_arrow_would_be_seen(tmp_path):
    for package in ("specdec_ref", "specdec_course"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "specdec_ref" / "cache" / "dense.py").open("a", encoding="utf-8") as file:
        file.write("\n\ndef late():\n    from specdec_ref.engine import SpeculativeEngine  # noqa\n")
    result = subprocess.run(
        [BIN / "lint-imports", "--no-cache"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert result.returncode == 1 and "specdec_ref.cache.dense" in result.stdout


def test_the_arithmetic_does_without_torch():
    code = "import sys, specdec_ref.arithmetic; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_file_is_opened_with_an_encoding():
    wrong = []
    for path in [
        *(f for p in PACKAGES for f in p.rglob("*.py")),
        *(ROOT / "tools").glob("*.py"),
        ROOT / "bootstrap.py",
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            binary = any(isinstance(a, ast.Constant) and "b" in str(a.value) for a in node.args)
            owner = getattr(getattr(node.func, "value", None), "id", "")
            if name in {"open", "read_text", "write_text"} and not binary and owner != "archive":
                if not any(k.arg == "encoding" for k in node.keywords):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert wrong == []


def test_public_functions_have_docstrings_and_types():
    wrong = []
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if not path.name.startswith("__main__") and path.stat().st_size and ast.get_docstring(tree) is None:
            wrong.append(str(path.relative_to(ROOT)))
        public = [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")]
        wrong += [f"{path.relative_to(ROOT)}:{n.lineno} {n.name}" for n in public if ast.get_docstring(n) is None]
    assert wrong == []


def test_constraints_meet_the_ranges():
    """Every direct dependency is pinned, to a version that its range admits."""
    from packaging.requirements import Requirement

    pinned = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            pinned[requirement.name.lower().replace("_", "-")] = next(
                iter(requirement.specifier)
            ).version  # markers do not matter here
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    peers = text[text.index("peers = ") :].split("]")[0]
    names = [
        Requirement(r)
        for r in re.findall(r'^ *"([a-z][\w.-]*(?:\[\w+\])?[<>=].*)",$', text, re.MULTILINE)
        if r not in peers
    ]
    assert len(names) > 20
    for requirement in names:
        assert requirement.name.lower() in pinned, f"{requirement.name} is not in constraints.txt"
        assert requirement.specifier.contains(pinned[requirement.name.lower()]), str(requirement)


def test_readme_names_both_commands_and_the_makefile_has_them():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("lab", "test"):
        assert f"make {target}" in readme
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_the_readmes_python_is_valid_and_its_names_exist():
    import specdec_ref

    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "specdec_ref":
                assert all(hasattr(specdec_ref, a.name) for a in node.names)


def test_a_second_setup_installs_nothing():
    """Where the stamp fits, set-up only looks whether the model is there."""
    code = "import bootstrap, sys; bootstrap.run = lambda *a: sys.exit('tried to install'); bootstrap.install(['test'])"
    if not (Path(sys.prefix) / "specdec-setup").exists():
        pytest.fail("this environment was not made by bootstrap.py: run `make setup`")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={"VENV": sys.prefix, "PATH": ""})


@pytest.mark.install
@pytest.mark.slow
def test_the_pip_section_of_environment_yml_installs_in_an_empty_environment(tmp_path):
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    lines = next(d["pip"] for d in environment["dependencies"] if isinstance(d, dict))
    assert lines == ["-c constraints.txt", "-e .[course]"]
    requirements = tmp_path / "pip.txt"
    requirements.write_text(f"-c {ROOT / 'constraints.txt'}\n-e {ROOT}[course]\n", encoding="utf-8")
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", requirements], check=True)
    subprocess.run([python, "-m", "specdec_ref.cli", "--version"], check=True, cwd=tmp_path)
