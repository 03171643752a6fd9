"""Which number format a model computes in: by name, or chosen by what the machine's processor can do."""

from __future__ import annotations

import platform
import time
from functools import cache

import torch

NAMES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


def resolve_dtype(dtype: str | torch.dtype, device: torch.device | str = "cpu") -> torch.dtype:
    """A torch dtype for "auto", a name such as "bfloat16" or "bf16", or a dtype itself.

    "auto" is bfloat16 on an accelerator and on a CPU that multiplies it natively, else float32.
    Raises ValueError for a name that is not known.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        native = torch.device(device).type != "cpu" or has_native_bfloat16()
        return torch.bfloat16 if native else torch.float32
    name = _SHORT.get(dtype, dtype)
    if name not in NAMES:
        raise ValueError(f"dtype {dtype!r} is not known: give 'auto' or one of {', '.join(NAMES)}")
    return NAMES[name]


def has_native_bfloat16() -> bool:
    """Whether this CPU has bfloat16 products (AVX-512 BF16, AMX, Arm's BF16) and PyTorch's oneDNN may use them.

    bfloat16 halves the bytes of a decode step, but where cores emulate it, it takes several times as long as float32.
    The choice between the two decides what a seeded model writes, so it follows from what the processor is, and not
    from a measurement, which could differ from one start to the next.
    """
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
    except (AttributeError, RuntimeError):  # a PyTorch without oneDNN
        return False
    if platform.machine().lower() in ("arm64", "aarch64"):
        return True
    # On x86, oneDNN also takes bfloat16 where it has to emulate the products.
    checks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(check() for check in checks if check)


@cache
def bf16_seconds_over_float32() -> float:
    """Time of small bfloat16 matrix products over float32 ones on this CPU, for 1 and 8 tokens.

    Below 1 where the cores have bfloat16 instructions; far above it where they are emulated. Takes about 0.1 s;
    measured once in a process, the minimum over interleaved repeats, on matrices that do not fit a small cache.
    """
    n = 2048
    best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    with torch.inference_mode():
        weights = {dtype: torch.randn(n, n).to(dtype) for dtype in best}
        for repeat in range(6):
            for dtype, weight in weights.items():
                start = time.perf_counter()
                for tokens in (1, 8):
                    torch.nn.functional.linear(torch.ones(tokens, n, dtype=dtype), weight)
                if repeat:
                    best[dtype] = min(best[dtype], time.perf_counter() - start)
    return best[torch.bfloat16] / best[torch.float32]
