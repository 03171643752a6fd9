"""The project as a whole: layers, versions, set-up, README."""

import ast
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "specdec_ref"
LAYERS = [
    "arithmetic",
    "penalties",
    "filters",
    "sampling",
    "loops",
    "cache",
    "models",
    "measure",
    "verify",
    "draft",
    "engine",
    "proof",
    "lab",
    "bench",
    "grading",
    "cli",
]


def layer(module):
    return LAYERS.index(module.split(".")[1]) if module.count(".") else None


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specdec_ref."):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("specdec_ref."))


def test_arrows_point_downwards_only():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        assert here in LAYERS, f"{path.relative_to(ROOT)} has no place in the layers"
        wrong += [f"{path.relative_to(ROOT)} -> {m}" for m in imports(path) if layer(m) > LAYERS.index(here)]
    assert wrong == []


def test_the_arithmetic_does_without_torch():
    code = "import sys, specdec_ref.arithmetic; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_exported_names_are_there():
    import specdec_ref

    for name in specdec_ref.__all__:
        assert getattr(specdec_ref, name)
    with pytest.raises(AttributeError):
        specdec_ref.nothing  # noqa: B018


def test_every_file_is_opened_with_an_encoding():
    wrong = []
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tools").glob("*.py"), ROOT / "bootstrap.py"]:
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
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if not path.name.startswith("__main__") and path.stat().st_size and ast.get_docstring(tree) is None:
            wrong.append(str(path.relative_to(ROOT)))
        public = [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")]
        # The computations of the claims are described by the claims that name them.
        public = [n for n in public if "_computation" not in [getattr(d, "id", "") for d in n.decorator_list]]
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
    assert lines == ["-c constraints.txt", "-e .[test]"]
    requirements = tmp_path / "pip.txt"
    requirements.write_text(f"-c {ROOT / 'constraints.txt'}\n-e {ROOT}[test]\n", encoding="utf-8")
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", requirements], check=True)
    subprocess.run([python, "-m", "specdec_ref.cli", "--version"], check=True, cwd=tmp_path)
