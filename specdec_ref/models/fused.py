"""The Llama's layer for few tokens on a CPU: between its matrix products, compiled loops in place of small operations.

Same signature and same numbers as `Layer`, up to rounding: each loop computes in float32 and rounds once, to bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specdec_ref.interfaces import AttentionCache
from specdec_ref.kernels import loops
from specdec_ref.kernels.attend import attend
from specdec_ref.kernels.stored import WIDE
from specdec_ref.models.llama import Layer


def compile_loops() -> None:
    """Compile every loop that a layer calls, or read it from disk, so that no pass has to. Raises as `Loop.compile`."""
    for each in (attend, loops.norm, loops.rotate, loops.gate):
        each.compile()


class FusedRMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, arXiv 1910.07467, equation 4), in one loop."""

    def __init__(self, norm: nn.RMSNorm) -> None:
        super().__init__(norm.normalized_shape, torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps)
        self.weight = norm.weight

    def forward(self, x: Tensor) -> Tensor:
        """`x` `[n, width]` -> the same shape."""
        x = x.contiguous()
        out = torch.empty_like(x)
        loops.norm(x, None, self.weight, None, out, len(x), x.shape[1], self.eps, False)
        return out

    def of_sum(self, x: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
        """`x + more` and its norm, both `[n, width]`."""
        x, more = x.contiguous(), more.contiguous()
        total, out = torch.empty_like(x), torch.empty_like(x)
        loops.norm(x, more, self.weight, total, out, len(x), x.shape[1], self.eps, True)
        return total, out


class FusedLayer(Layer):
    """A `Layer` in bfloat16 on a CPU, with the matrices of `plain`.

    wide: tokens from which it takes the plain layer's operations, since PyTorch's use all cores; None for never.
    """

    mlp_norm: FusedRMSNorm

    def __init__(self, plain: Layer, wide: int | None = WIDE) -> None:
        with torch.device("meta"):  # without memory: every module is replaced by that of `plain`
            super().__init__(plain.config)
        for name, module in plain.named_children():
            self.set_submodule(name, FusedRMSNorm(module) if isinstance(module, nn.RMSNorm) else module)
        self.wide = wide

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: AttentionCache, layer: int
    ) -> Tensor:
        """See `Layer.forward`."""
        n, d, h, kv = len(x), self.config.head_dim, self.config.n_heads, self.config.n_kv_heads
        if self.wide is not None and n >= self.wide:
            return super().forward(x, cos, sin, mask, cache, layer)
        qkv = self.qkv(self.attention_norm(x))
        q, k, v = x.new_empty(kv, h // kv * n, d), x.new_empty(kv, n, d), x.new_empty(kv, n, d)
        loops.rotate(qkv, cos, sin, q, k, v, n, h, kv, d)
        a = cache.attend(layer, q, k, v, mask).view(h, n, d).transpose(0, 1).reshape(n, h * d)
        x, y = self.mlp_norm.of_sum(x, self.out(a))
        gate_up = self.gate_up(y)
        gated = x.new_empty(n, gate_up.shape[1] // 2)
        loops.gate(gate_up, gated, n, gated.shape[1])
        return x + self.down(gated)
