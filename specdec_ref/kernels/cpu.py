"""Which instructions compiled loops may use: what this CPU has, or what SPECDEC_CPU says."""

from __future__ import annotations

import os
from functools import cache

import numba
from llvmlite import binding

OPTION = "SPECDEC_CPU"
VARIANTS = ("avx512-vnni", "avx-vnni", "avx2", "neon-dotprod", "plain")
"""Ways of taking an integer dot product, from the fastest on; all give the same bits."""
_NEEDS = {
    "avx512-vnni": ("avx512f", "avx512bw", "avx512vnni"),
    "avx-vnni": ("avx2", "fma", "f16c", "avxvnni"),
    "avx2": ("avx2", "fma", "f16c"),
    "neon-dotprod": ("neon", "dotprod"),
    "plain": (),
}
# What a CPU that is limited to a variant must not have.
_LACKS = {"avx-vnni": ("avx512",), "avx2": ("avx512", "avxvnni", "amx")}


@cache
def host_features() -> frozenset[str]:
    """What this CPU has, by LLVM's names."""
    return frozenset(name for name, has in binding.get_host_cpu_features().items() if has)


def possible() -> tuple[str, ...]:
    """The variants that this CPU can run, the fastest first."""
    return tuple(name for name in VARIANTS if host_features().issuperset(_NEEDS[name]))


@cache
def variant() -> str:
    """The variant that compiled loops use in this process: the fastest possible, or the one that SPECDEC_CPU names.

    Numba compiles for no more than it, and keeps compiled code by the instructions that it was compiled for, so that
    variants don't mix. Has to be called before anything is compiled. Raises ValueError for a variant that this CPU
    lacks.
    """
    wanted = os.environ.get(OPTION) or possible()[0]
    if wanted not in possible():
        raise ValueError(f"{OPTION}={wanted!r} is not possible on this CPU: give one of {', '.join(possible())}")
    config = numba.config
    if wanted == "plain" and os.environ.get(OPTION):
        config.CPU_NAME, config.CPU_FEATURES = "generic", ""  # type: ignore[attr-defined]
    elif wanted in _LACKS and os.environ.get(OPTION):
        off = [name for name in host_features() if name.startswith(_LACKS[wanted])]
        on = [f"+{name}" for name in host_features() if name not in off]
        config.CPU_FEATURES = ",".join(sorted(on) + sorted(f"-{name}" for name in off))  # type: ignore[attr-defined]
        config.CPU_NAME = binding.get_host_cpu_name()  # type: ignore[attr-defined]
    elif config.CPU_NAME:  # type: ignore[attr-defined]
        return "plain"  # NUMBA_CPU_NAME names a CPU, and what that has is not known here
    return wanted
