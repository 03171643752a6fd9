"""Faces of packages: names that are imported from their rooms at first use."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` for the package whose `__init__.py` is `file`.

    The names are those that the file imports under `if TYPE_CHECKING:`, so that each stands there once, for type
    checkers and for Python. The idea is that of scientific-python's lazy-loader, which keeps them in a stub file.
    """
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    blocks = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    imports = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
    home = {alias.name: line.module or "" for line in imports for alias in line.names}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home[name]), name)

    return load, lambda: sorted(home), list(home)
