"""Matrix products of a decode step on a CPU: 16-bit weights in the CPU's layout, and 4-bit weights as stored.

Both replace an `nn.Linear` without bias. A pass over few tokens takes about as long as its weights take to arrive from
memory, so fewer bits are faster there; over many tokens the arithmetic decides, and 16 bits win.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GROUP = 32  # weights that share a scale in GGUF's Q4_0, Q4_1 and Q8_0
# From this many tokens on, the 16-bit product is taken. Fixed, not measured at each start: the two products round
# differently, and a seed has to give the same text tomorrow.
WIDE = 32


class PackedLinear(nn.Module):
    """x W^T with a bfloat16 W `[out, in]` in the blocked layout that oneDNN multiplies fastest.

    `nn.Linear` hands oneDNN the plain layout at each call, and a product with few rows then takes longer. The numbers
    are the same, up to the order of sums. Copies and pickles carry the plain layout, since the blocked one cannot be
    read from outside.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 8)
        self.nbytes = weight.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """`x` `[n, in]` in bfloat16 -> `[n, out]`."""
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, None, "none", [], "")

    def __reduce__(self) -> tuple[type[PackedLinear], tuple[Tensor]]:
        return PackedLinear, (self.packed.to_dense(),)


@dataclass(frozen=True)
class Blocks:
    """A matrix as a GGUF file stores it: w = (level - 8) scale + zero, level 0 to 15.

    levels: uint8 `[out, in * repeat]`; scale, zero: float32 `[out, in * repeat / 32]`.
    repeat: 2 where each weight is the sum of two levels, which Q8_0 is: 16 high + low.
    """

    levels: Tensor
    scale: Tensor
    zero: Tensor
    repeat: int = 1

    def dequantised(self) -> Tensor:
        """The weights that these stand for, float32 `[out, in]`."""
        out, width = self.levels.shape
        groups = self.levels.view(out, width // GROUP, GROUP).float() - 8
        w = (groups * self.scale[..., None] + self.zero[..., None]).view(out, self.repeat, width // self.repeat)
        return w.sum(1)


class FourBitLinear(nn.Module):
    """x W^T with W in 4 bits, by PyTorch's own kernel; from `WIDE` rows on with the 16-bit `wide`.

    The kernel keeps scale and zero in bfloat16, each off by up to 1/512 of itself. Eight levels from the middle that is
    1/64 of a level, about what rounding the weights themselves to bfloat16 would cost. Sums are float32.
    wide: the same matrix for many rows, `[n, in]` -> `[n, out]`.
    Raises ValueError for a shape that the kernel does not take.
    """

    ROWS = 16  # the kernel takes matrices whose rows divide by this

    def __init__(self, blocks: Blocks, wide: nn.Module) -> None:
        super().__init__()
        out, width = blocks.levels.shape
        if out % self.ROWS or width % GROUP:
            raise ValueError(f"a 4-bit matrix of {out} x {width}: rows must divide by {self.ROWS}, columns by {GROUP}")
        self.packed = torch._convert_weight_to_int4pack_for_cpu(blocks.levels.int(), 1)
        pairs = torch.stack([blocks.scale, blocks.zero], -1).transpose(0, 1)
        self.scale_and_zero = pairs.to(torch.bfloat16).contiguous()  # [in / 32, out, 2]
        self.repeat = blocks.repeat
        self.wide = wide

    def forward(self, x: Tensor) -> Tensor:
        """`x` `[n, in]` in bfloat16 -> `[n, out]`."""
        if len(x) >= WIDE:
            return self.wide(x)
        if self.repeat > 1:
            x = torch.cat([x] * self.repeat, -1)
        return torch._weight_int4pack_mm_for_cpu(x, self.packed, GROUP, self.scale_and_zero)

    @property
    def nbytes(self) -> int:
        """Bytes that a pass over few tokens reads."""
        return self.packed.nbytes + self.scale_and_zero.nbytes


class TiedHead(nn.Module):
    """Logits by the embedding's own matrix, so that no second copy of it is held."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, x: Tensor) -> Tensor:
        """`x` `[n, hidden]` -> `[n, vocab]`."""
        return F.linear(x, self.embedding.weight)


@cache
def can_pack() -> bool:
    """Whether this PyTorch and this CPU have oneDNN's bfloat16 products, and these give the right numbers."""
    return _works(PackedLinear)


@cache
def can_use_four_bits() -> bool:
    """Whether this PyTorch has the 4-bit kernel, and this CPU the vector instructions without which it is slow."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False

    def make(weight: Tensor) -> nn.Module:
        level = torch.arange(weight.numel(), dtype=torch.uint8).remainder(16).view(weight.shape)
        scale = torch.full((len(weight), weight.shape[1] // GROUP), 0.5)
        blocks = Blocks(level, scale, torch.zeros_like(scale))
        weight.copy_(blocks.dequantised())
        return FourBitLinear(blocks, nn.Identity())

    return _works(make)


def _works(make: Callable[[Tensor], nn.Module]) -> bool:
    """Whether a product of this kind runs here, and gives the right numbers."""
    weight = torch.linspace(-1, 1, 32 * 64).view(32, 64).to(torch.bfloat16)
    x = torch.linspace(1, -0.5, 3 * 64).view(3, 64).to(torch.bfloat16)
    try:
        with torch.inference_mode():
            got: Any = make(weight)(x).float()
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    want = x.float() @ weight.float().T
    return bool((got - want).abs().max() < 0.02 * want.abs().max())
