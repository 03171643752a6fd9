"""Small GGUF files, entry by entry and tensor by tensor as you choose."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

BYTES = [*map(chr, range(33, 127)), "Ġ", "Ċ"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *BYTES, "he", "Ġhe"]
HIDDEN, INNER, HEADS, KV_HEADS = 64, 96, 4, 2

ENTRIES: dict[str, Any] = {
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INNER,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.rope.dimension_count": HIDDEN // HEADS,
    "llama.rope.freq_base": 10_000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)),
    "tokenizer.ggml.merges": ["h e", "Ġ he"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
}


def llama_tensors(rows: int = len(TOKENS), seed: int = 0, layers: int = 1) -> dict[str, np.ndarray]:
    """The float32 tensors of a Llama of those sizes, whose embedding has `rows` rows and is the head."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (rows, HIDDEN)}
    for i in range(layers):
        shapes |= {
            f"blk.{i}.attn_q": (HIDDEN, HIDDEN),
            f"blk.{i}.attn_k": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
            f"blk.{i}.attn_v": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
            f"blk.{i}.attn_output": (HIDDEN, HIDDEN),
            f"blk.{i}.ffn_gate": (INNER, HIDDEN),
            f"blk.{i}.ffn_up": (INNER, HIDDEN),
            f"blk.{i}.ffn_down": (HIDDEN, INNER),
        }
    tensors = {f"{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    norms = [f"blk.{i}.{name}_norm" for i in range(layers) for name in ("attn", "ffn")]
    return tensors | {f"{name}.weight": np.ones(HIDDEN, np.float32) for name in (*norms, "output_norm")}


def write_gguf(
    path: Path,
    entries: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    formats: Mapping[str, str] | str = "Q4_1",
    architecture: str = "llama",
) -> Path:
    """A Llama of one layer with a byte-level tokenizer, as the default model's file is built.

    entries: other values of `ENTRIES`, or more entries; None leaves one out.
    tensors: in place of `llama_tensors()`.
    formats: of all matrices, or by tensor name; the embedding is in Q8_0 unless named.
    """
    out = gguf.GGUFWriter(path, architecture)
    kinds = gguf.GGUFValueType
    types = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING}
    for key, value in (ENTRIES | dict(entries or {})).items():
        if isinstance(value, list):
            out.add_array(key, value)
        elif value is not None:
            out.add_key_value(key, value, types[type(value)])
    for name, tensor in (llama_tensors() if tensors is None else tensors).items():
        given = formats if isinstance(formats, str) else formats.get(name, "Q4_1")
        named = "Q8_0" if name == "token_embd.weight" and isinstance(formats, str) and formats == "Q4_1" else given
        kind = gguf.GGMLQuantizationType["F32" if tensor.ndim == 1 else named]
        out.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path
