"""Models that tests share; the real one only where a test is marked `model`."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may need the hub

import pytest
import torch
from hypothesis import HealthCheck, settings
from support.not_tested import pytest_terminal_summary  # noqa: F401 - a hook: pytest finds it here
from support.tiny_models import tiny_llama

from specdec_ref.models.llama import Llama

# Tiny tensors gain nothing from threads, and on a busy machine threads that wait for each other cost a factor of ten.
ALL_THREADS = torch.get_num_threads()
torch.set_num_threads(1)

# A busy machine makes no test fail: hypothesis must not take slowness for a fault.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture
def all_threads():
    """For tests that time the real model."""
    torch.set_num_threads(ALL_THREADS)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def target() -> Llama:
    return tiny_llama(1)


@pytest.fixture(scope="session")
def draft() -> Llama:
    return tiny_llama(2, n_layers=1)


@pytest.fixture(scope="session")
def smollm():
    """The default model in bfloat16, whatever this machine would choose."""
    from specdec_ref import load_model

    return load_model(dtype="bfloat16")
