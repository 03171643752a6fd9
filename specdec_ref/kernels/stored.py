"""A matrix product by itself, with weights as a GGUF file stores them: one compiled function."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numba import types
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_ref.kernels.loops import BITS, COUNT, loop
from specdec_ref.kernels.memory import address_of
from specdec_ref.kernels.packing import OUTPUTS, Blocks, packed, some_outputs
from specdec_ref.kernels.product import eight_by_8, eight_by_16, four_by_8, four_by_16
from specdec_ref.kernels.quantise import GROUP, quantise8, quantise16

ADDRESS = types.int64
PAGE = 2**21  # bytes of a large page
# From this many tokens on, the 16-bit product is taken. Fixed, not measured at each start: the two products round
# differently, and a seed has to give the same text tomorrow.
WIDE = 32


@loop(BITS, ADDRESS, ADDRESS, ADDRESS, BITS, COUNT, COUNT, COUNT, COUNT, COUNT)
def multiply(
    x: Any, levels: int, scales: int, room: int, out: Any, rows: int, width: int, outs: int, weight_bits: int, bits: int
) -> None:
    """out = x W^T: `[rows, width]` and `[rows, outs]` bfloat16.

    room: for the activations in integers, 16-bit levels and three numbers of 4 bytes for each group.
    """
    groups = width // GROUP
    after = room + 2 * rows * width
    into = (room, after, after + 4 * rows * groups, after + 8 * rows * groups)
    if bits == 8:
        quantise8(address_of(x), into, 0, rows * groups)
    else:
        quantise16(address_of(x), into, 0, rows * groups)
    n, matrix, y = outs // OUTPUTS, (levels, scales), address_of(out)
    if weight_bits == 4 and bits == 8:
        four_by_8(0, n, matrix, into, y, rows, groups, outs)
    elif weight_bits == 4:
        four_by_16(0, n, matrix, into, y, rows, groups, outs)
    elif bits == 8:
        eight_by_8(0, n, matrix, into, y, rows, groups, outs)
    else:
        eight_by_16(0, n, matrix, into, y, rows, groups, outs)


class StoredLinear(nn.Module):
    """x W^T with W in 4 or 8 bits as a GGUF file stores it, and activations in `bits` bits.

    wide: the same matrix in 16 bits, `[n, in]` -> `[n, out]`, where the CPU's own bfloat16 products are faster for many
    rows; taken from `WIDE` rows on.
    Raises ValueError for a matrix whose outputs do not divide by 16, or its inputs by 32.
    """

    levels: Tensor
    scales: Tensor

    def __init__(self, blocks: Blocks, wide: nn.Module | None = None, bits: int = 16) -> None:
        super().__init__()
        self.wide = wide
        self.outs, self.width = blocks.levels.shape
        self.weight_bits, self.bits = blocks.bits, bits
        for name, array in zip(("levels", "scales"), packed(blocks), strict=True):
            self.register_buffer(name, _aligned(array), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` `[n, in]` in bfloat16 -> `[n, out]`."""
        if self.wide is not None and len(x) >= WIDE:
            return self.wide(x)
        x = x.contiguous()
        out = x.new_empty(len(x), self.outs)
        room = torch.empty(len(x) * self.width * 3, dtype=torch.uint8)
        multiply(
            x, self.levels.data_ptr(), self.scales.data_ptr(), room.data_ptr(), out, len(x), self.width, self.outs,
            self.weight_bits, self.bits,
        )  # fmt: skip
        return out

    def some_outputs(self, chosen: Tensor) -> StoredLinear:
        """The product with some outputs only, `[n, in]` -> `[n, len(chosen)]`, without a matrix in 16 bits.

        Raises as `packing.some_outputs`.
        """
        part = copy.copy(self)
        part._buffers, part.wide, part.outs = {}, None, len(chosen)
        for name, unit in (("levels", 4), ("scales", 2)):
            data = getattr(self, name).numpy()
            part.register_buffer(name, _aligned(some_outputs(data, self.outs, chosen.numpy(), unit)), persistent=False)
        return part

    def __getstate__(self) -> dict[str, Any]:
        # Each its own memory: a copy, or a file, would hold that of all matrices for each of them.
        return {**self.__dict__, "_buffers": {name: buffer.clone() for name, buffer in self.named_buffers()}}

    @property
    def nbytes(self) -> int:
        """Bytes that a pass over few tokens reads."""
        return self.levels.nbytes + self.scales.nbytes


class TiedHead(nn.Module):
    """Logits by the embedding's own matrix, so that no second copy of it is held."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, x: Tensor) -> Tensor:
        """`x` `[n, hidden]` -> `[n, vocab]`."""
        return F.linear(x, self.embedding.weight)


def lay_together(matrices: Iterable[StoredLinear]) -> None:
    """Move matrices into one piece of memory, one after the other.

    In large pages, which NumPy asks for where the system has them, addresses are found faster: a pass over one token
    takes a sixth less time.
    """
    buffers = [(m, name) for m in matrices for name in ("levels", "scales")]
    sizes = [(getattr(m, name).nbytes + 63) // 64 * 64 for m, name in buffers]
    memory = np.empty(sum(sizes) + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    for (m, name), size in zip(buffers, sizes, strict=True):
        old = getattr(m, name)
        new = torch.from_numpy(memory[start : start + old.nbytes])
        setattr(m, name, new.copy_(old))
        start += size


def _aligned(array: np.ndarray) -> Tensor:
    """The same bytes as a tensor, which PyTorch lays at a multiple of 64."""
    return torch.from_numpy(array).clone()
