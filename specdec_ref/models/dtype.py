"""Which number format this machine computes a decode step fastest in."""

from __future__ import annotations

import time
from functools import cache

import torch

NAMES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
# bfloat16 halves the bytes of a decode step, so it is taken unless it is clearly slower in the small products below;
# where cores emulate it, it takes several times as long.
SLOW = 1.3
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


def resolve_dtype(dtype: str | torch.dtype, device: torch.device | str = "cpu") -> torch.dtype:
    """A torch dtype for "auto", a name such as "bfloat16" or "bf16", or a dtype itself.

    "auto" is bfloat16 on an accelerator and where the CPU is measured to be fast at it, else float32.
    Raises ValueError for a name that is not known.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        if torch.device(device).type != "cpu":
            return torch.bfloat16
        return torch.bfloat16 if bf16_seconds_over_float32() < SLOW else torch.float32
    name = _SHORT.get(dtype, dtype)
    if name not in NAMES:
        raise ValueError(f"dtype {dtype!r} is not known: give 'auto' or one of {', '.join(NAMES)}")
    return NAMES[name]


@cache
def bf16_seconds_over_float32() -> float:
    """Time of small bfloat16 matrix products over float32 ones on this CPU, for 1 and 8 tokens.

    Below 1 where the cores have bfloat16 instructions; far above it where they are emulated. Takes about 0.1 s;
    measured once a process, the minimum over interleaved repeats, on matrices that do not fit a small cache.
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
