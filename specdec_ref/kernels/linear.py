"""Matrix products of a decode step on a CPU with 16-bit weights, in the CPU's own layout."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn


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


@cache
def can_pack() -> bool:
    """Whether this PyTorch and this CPU have oneDNN's bfloat16 products, and these give the right numbers."""
    weight = torch.linspace(-1, 1, 32 * 64).view(32, 64).to(torch.bfloat16)
    x = torch.linspace(1, -0.5, 3 * 64).view(3, 64).to(torch.bfloat16)
    try:
        with torch.inference_mode():
            got: Any = PackedLinear(weight)(x).float()
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    want = x.float() @ weight.float().T
    return bool((got - want).abs().max() < 0.02 * want.abs().max())
