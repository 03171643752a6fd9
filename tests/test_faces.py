"""Faces of packages: what they promise is there, nothing else, and nothing heavy before it is asked for."""

import importlib
import subprocess
import sys

import pytest

from specdec_ref.lazy import attach

LAZY = ("specdec_course", "specdec_ref", "specdec_ref.cache", "specdec_ref.models")
EAGER = ("specdec_ref.arithmetic", "specdec_ref.draft", "specdec_ref.engine", "specdec_ref.measure")
EAGER += ("specdec_ref.proof", "specdec_ref.sampling", "specdec_ref.verify")


@pytest.mark.parametrize("name", LAZY + EAGER)
def test_every_name_of_a_face_is_there_once(name):
    package = importlib.import_module(name)
    assert package.__all__ and len(set(package.__all__)) == len(package.__all__)
    for each in package.__all__:
        assert getattr(package, each) is not None
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = package.nothing_of_this_name


@pytest.mark.parametrize("name", LAZY)
def test_a_lazy_face_loads_no_torch_by_itself(name):
    code = f"import sys, {name}; assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_is_imported_from_where_the_file_says(tmp_path):
    file = tmp_path / "__init__.py"
    file.write_text(
        "if TYPE_CHECKING:\n    from fractions import Fraction as Fraction\n    from json import dumps as dumps\n",
        encoding="utf-8",
    )
    load, names, exported = attach("toy", str(file))
    assert load("Fraction")(1, 2) * 2 == 1 and load("dumps")([1]) == "[1]"
    assert names() == ["Fraction", "dumps"] == exported
    with pytest.raises(AttributeError, match="module 'toy' has no attribute 'loads'"):
        load("loads")


def test_a_star_import_brings_the_face():
    space = {}
    exec("from specdec_ref.cache import *", space)
    assert {"BlockPool", "PagedKVPool", "OutOfBlocks"} <= set(space)
