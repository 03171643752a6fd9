"""The number format that "auto" chooses follows from what the processor is, never from a clock."""

import os
import subprocess
import sys

import pytest
import torch

from specdec_ref.models import dtype as dtype_module
from specdec_ref.models.dtype import has_native_bfloat16, resolve_dtype

CHECKS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")


@pytest.fixture
def processor(monkeypatch):
    """Pretend to be another processor: its machine type, what oneDNN says, and its features."""

    def become(machine, onednn, *features):
        monkeypatch.setattr(dtype_module.platform, "machine", lambda: machine)
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: onednn, raising=False)
        for name in CHECKS:
            monkeypatch.setattr(torch.cpu, name, lambda name=name: name in features, raising=False)

    return become


@pytest.mark.parametrize(
    ("machine", "onednn", "features", "native"),
    [
        ("x86_64", True, CHECKS[:1], True),
        ("AMD64", True, CHECKS[1:], True),
        ("x86_64", True, (), False),  # AVX-512 without BF16: oneDNN emulates it
        ("x86_64", False, CHECKS, False),  # ONEDNN_MAX_CPU_ISA=AVX2
        ("aarch64", True, (), True),
        ("arm64", False, (), False),
    ],
)
def test_bfloat16_is_native_where_the_processor_has_its_products(processor, machine, onednn, features, native):
    processor(machine, onednn, *features)
    assert has_native_bfloat16() is native
    assert resolve_dtype("auto") == (torch.bfloat16 if native else torch.float32)
    assert resolve_dtype("auto", "cuda") == torch.bfloat16


def test_a_pytorch_without_onednn_computes_in_float32(processor, monkeypatch):
    processor("x86_64", True, *CHECKS)

    def missing():
        raise RuntimeError("no such operator")

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", missing)
    assert resolve_dtype("auto") == torch.float32


def test_no_clock_has_a_say(monkeypatch):
    """With a clock that makes either format look a thousand times slower the choice stays."""
    choice = resolve_dtype("auto")
    for slow in (0.001, 1000.0):
        monkeypatch.setattr(dtype_module, "bf16_seconds_over_float32", lambda slow=slow: slow)
        assert resolve_dtype("auto") == choice


@pytest.mark.parametrize("isa", [None, "AVX2"])
def test_two_processes_on_one_machine_choose_alike(isa):
    environment = os.environ | ({"ONEDNN_MAX_CPU_ISA": isa} if isa else {})
    code = "from specdec_ref.models.dtype import resolve_dtype; print(resolve_dtype('auto'))"
    command = [sys.executable, "-c", code]
    said = {subprocess.run(command, env=environment, check=True, capture_output=True).stdout for _ in range(3)}
    assert len(said) == 1
    assert isa is None or said == {b"torch.float32\n"}


@pytest.mark.parametrize(
    "short, full", [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32"), ("fp64", "float64")]
)
def test_short_names_are_those_formats(short, full):
    assert resolve_dtype(short) == resolve_dtype(full) == getattr(torch, full)
