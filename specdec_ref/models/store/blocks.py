"""Matrices in 4 and 8 bits as a GGUF file stores them: read straight from its bytes, or rounded the same way."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import numpy as np

from specdec_ref.kernels.packing import Blocks
from specdec_ref.kernels.quantise import GROUP


class Place(TypedDict):
    """Where a matrix is in a GGUF file.

    type: of the quantisation, one of `READERS`.
    offset, bytes: its bytes in the file.
    rows: of the matrix.
    permuted_heads: heads whose rows GGUF reordered, see `unpermute`; 0 for other matrices.
    """

    type: str
    offset: int
    rows: int
    bytes: int
    permuted_heads: int


def read_blocks(path: Path, index: dict[str, Place]) -> dict[str, Blocks]:
    """The matrices of a file's `GGUFFile.index`, as stored, by Hugging Face name.

    Raises ValueError for a file that ends too early.
    """
    raw, found = np.memmap(path, np.uint8, "r"), {}
    for name, at in index.items():
        if at["offset"] + at["bytes"] > len(raw):
            raise ValueError(f"{path.name} ends before its tensor {name} does: fetch it again")
        rows = np.asarray(raw[at["offset"] : at["offset"] + at["bytes"]]).reshape(at["rows"], -1)
        if at["permuted_heads"]:
            rows = unpermute(rows, at["permuted_heads"])
        found[name] = READERS[at["type"]](rows)
    return found


def read_q4_0(rows: np.ndarray) -> Blocks:
    """Q4_0 rows, uint8 `[out, in / 32 * 18]`: per block a float16 d, then 32 levels; w = d level - 8 d."""
    block = rows.reshape(len(rows), -1, 18)
    scale = _float16(block[..., :2])
    return Blocks(_nibbles(block[..., 2:]), scale, -8 * scale)


def read_q4_1(rows: np.ndarray) -> Blocks:
    """Q4_1 rows, uint8 `[out, in / 32 * 20]`: per block float16 d and m, then 32 levels; w = d level + m."""
    block = rows.reshape(len(rows), -1, 20)
    return Blocks(_nibbles(block[..., 4:]), _float16(block[..., :2]), _float16(block[..., 2:4]))


def read_q8_0(rows: np.ndarray) -> Blocks:
    """Q8_0 rows, uint8 `[out, in / 32 * 34]`: per block a float16 d, then 32 int8; w = d level."""
    block = rows.reshape(len(rows), -1, 34)
    return Blocks(block[..., 2:].view(np.int8).reshape(len(rows), -1), _float16(block[..., :2]))


READERS = {"Q4_0": read_q4_0, "Q4_1": read_q4_1, "Q8_0": read_q8_0}


def in_8_bits(weight: np.ndarray) -> Blocks:
    """A float32 matrix `[out, in]` rounded to 8 bits as in Q8_0: the largest weight of 32 has level 127 or -127."""
    groups = weight.reshape(len(weight), -1, GROUP)
    scale = (np.abs(groups).max(-1) / np.float32(127)).astype(np.float16)
    levels = np.rint(groups / np.maximum(scale.astype(np.float32), np.float32(1e-12))[..., None])
    return Blocks(np.clip(levels, -127, 127).astype(np.int8).reshape(weight.shape), scale)


def unpermute(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Undo GGUF's order of query and key rows, `[heads * head_dim, in]`.

    GGUF stores the two halves of a rotated pair side by side; Hugging Face keeps them head_dim / 2 apart.
    """
    rows, columns = weight.shape
    return weight.reshape(n_heads, rows // n_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _float16(pairs: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(pairs).view(np.float16)[..., 0]


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """`[out, blocks, 16]` bytes -> levels `[out, blocks * 32]`: the low halves are a block's first 16."""
    return np.concatenate([packed & 15, packed >> 4], -1).reshape(len(packed), -1)
