"""Run the Triton kernel of paged attention on a GPU: its errors and its times, as JSON.

    python tools/record_paged_gpu.py lessons/recorded/paged_attention_gpu.json

Four ways take turns on the same keys and values: dense attention on keys in one piece, the plain paged function
(gather, then the same), and the kernel, which reads each key where it lies: with the context in as many parts as it
chooses, and in one.
"""

from __future__ import annotations

import datetime
import json
import statistics
import sys
from pathlib import Path

import torch
import triton

from specdec_ref.kernels.attention import attention, paged_attention
from specdec_ref.kernels.triton_paged import paged_attention as kernel

N_KV_HEADS, GROUP, HEAD_DIM, BLOCK = 8, 4, 128, 16  # Llama-3-8B's heads, vLLM's block
CONTEXTS, TOKENS = (256, 1024, 4096, 16384, 65536), (1, 5)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
REPEATS = 30


def pools(length: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, values and a scattered block table of one sequence; what is not its own is NaN."""
    generator = torch.Generator("cuda").manual_seed(length)
    n_blocks = -(-length // BLOCK)
    table = torch.randperm(2 * n_blocks, generator=generator, device="cuda")[:n_blocks]
    data = torch.full((2, N_KV_HEADS, 2 * n_blocks, BLOCK, HEAD_DIM), torch.nan, dtype=dtype, device="cuda")
    slots = (table[:, None] * BLOCK + torch.arange(BLOCK, device="cuda")).flatten()[:length]
    drawn = torch.randn(2, N_KV_HEADS, length, HEAD_DIM, generator=generator, device="cuda")
    data.flatten(2, 3)[:, :, slots] = drawn.to(dtype)
    return data[0], data[1], table


def microseconds(run: object) -> float:
    """One call on the device's own clock, the host's launches included where they take longer."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    run()  # type: ignore[operator]
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


def measure(length: int, n: int, name: str) -> dict[str, object]:
    """Errors against float64 and times of the four ways, n new tokens behind `length` - n."""
    keys, values, table = pools(length, DTYPES[name])
    generator = torch.Generator("cuda").manual_seed(n)
    q = torch.randn(N_KV_HEADS, GROUP * n, HEAD_DIM, generator=generator, device="cuda").to(DTYPES[name])
    mask = None
    if n > 1:
        mask = torch.ones(n, length, dtype=torch.bool, device="cuda").tril(length - n).repeat(GROUP, 1)
    dense_k, dense_v = (p.index_select(1, table).flatten(1, 2)[:, :length].contiguous() for p in (keys, values))
    ways = {
        "dense": lambda: attention(q, dense_k, dense_v, mask),
        "gathered": lambda: paged_attention(q, keys, values, table, length, mask),
        "kernel": lambda: kernel(q, keys, values, table, length, mask),
        "one_part": lambda: kernel(q, keys, values, table, length, mask, parts=1),
    }
    exact = attention(q.double(), dense_k.double(), dense_v.double(), mask)
    errors = {w: ((run().double() - exact).norm() / exact.norm()).item() for w, run in ways.items()}
    times: dict[str, list[float]] = {w: [] for w in ways}
    for i in range(REPEATS + 5):
        for way, run in ways.items():
            took = microseconds(run)
            if i >= 5:  # the first rounds warm up
                times[way].append(took)
    kv_bytes = 2 * N_KV_HEADS * length * HEAD_DIM * keys.element_size()
    return {
        "context": length,
        "new_tokens": n,
        "dtype": name,
        "relative_error": errors,
        "microseconds": {w: [min(t), statistics.median(t), max(t)] for w, t in times.items()},
        "kv_bytes": kv_bytes,
    }


def main() -> None:
    if len(sys.argv) != 2 or not torch.cuda.is_available():
        sys.exit("give the JSON file to write; needs an NVIDIA GPU")
    runs = [measure(c, n, d) for d in DTYPES for c in CONTEXTS for n in TOKENS]
    record = {
        "what": "paged attention on a GPU: dense, gathered, Triton kernel, the same with the context in one part, "
        "in turns; microseconds as [min, median, max]",
        "command": "python tools/record_paged_gpu.py FILE",
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "shape": {"n_kv_heads": N_KV_HEADS, "queries_per_head": GROUP, "head_dim": HEAD_DIM, "block_size": BLOCK},
        "repeats": REPEATS,
        "runs": runs,
    }
    Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for r in runs:
        low = {w: f"{t[1]:.0f}" for w, t in r["microseconds"].items()}  # type: ignore[attr-defined]
        print(r["dtype"], r["context"], r["new_tokens"], low, {w: f"{e:.1e}" for w, e in r["relative_error"].items()})  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
