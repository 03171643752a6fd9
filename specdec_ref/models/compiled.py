"""The Llama whose pass is one compiled function: matrices in 4 and 8 bits as a GGUF file stores them.

`Llama.forward_pass` remains, and gives the same numbers to the last bit over the same products; it is what to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specdec_ref.interfaces import AttentionCache, Pass
from specdec_ref.kernels import whole_pass
from specdec_ref.kernels.loops import address
from specdec_ref.kernels.quantise import GROUP
from specdec_ref.kernels.steps import make_room
from specdec_ref.kernels.stored import WIDE, StoredLinear, lay_together
from specdec_ref.kernels.threads import team
from specdec_ref.models.fused import FusedLayer, FusedRMSNorm, compile_loops
from specdec_ref.models.llama import Llama

CHUNK = 64  # tokens of a prompt that a pass takes at a time
LOOPS = {8: whole_pass.pass8, 16: whole_pass.pass16}


def compile_pass(bits: int = 16) -> None:
    """Compile the pass with activations in `bits` bits, or read it from disk; says so where it will take long.

    Raises ValueError where compiling is forbidden, see `Loop.compile`.
    """
    LOOPS[bits].compile_aloud("the forward pass")


class CompiledLlama(Llama):
    """A bfloat16 `Llama` on a CPU with matrices as stored.

    A pass is the compiled one for fewer than `wide` tokens, or any number where `wide` is None, and for a cache that
    says where its memory is; otherwise it is `Llama`'s.
    plain: the model whose embedding and norms it takes. matrices: for each matrix of the model, by its name, the stored
    one. bits: of activations, 16 (as near to float32 as bfloat16 allows) or 8 (faster, less accurate).
    Raises ValueError for sizes that a pass cannot take.
    """

    def __init__(self, plain: Llama, matrices: Mapping[str, StoredLinear], bits: int = 16) -> None:
        c = plain.config
        if c.head_dim % GROUP:
            raise ValueError(f"heads of {c.head_dim} dimensions: a compiled pass takes multiples of {GROUP}")
        with torch.device("meta"):  # without memory: every module is replaced
            super().__init__(c, torch.bfloat16)
        head: Any = matrices["head"]
        self.embed, self.norm, self.head = plain.embed, FusedRMSNorm(plain.norm), head
        self.wide = None if head.wide is None else WIDE
        self.layers = nn.ModuleList(FusedLayer(layer, self.wide) for layer in plain.layers)  # type: ignore[arg-type]
        lay_together(matrices.values())
        for name, matrix in matrices.items():
            self.set_submodule(name, matrix)
        self.cos, self.sin, self.tokenizer = plain.cos, plain.sin, plain.tokenizer
        self.bits = bits
        compile_pass(bits)  # now, and not in the first pass, which somebody may be timing
        compile_loops()
        self.requires_grad_(False).eval()
        self._plan: _Plan | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}  # it holds addresses

    def _apply(self, *arguments: Any, **options: Any) -> CompiledLlama:
        """Whatever moves or casts the model: addresses are asked for anew, and refused where that is not possible."""
        self._plan = None
        return super()._apply(*arguments, **options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        lay_together(module for module in self.modules() if isinstance(module, StoredLinear))

    def first_layers(self, n: int) -> Llama:
        """See `Llama.first_layers`: here, too, one compiled pass."""
        short: Any = super().first_layers(n)
        short._plan = None
        return short

    def forward_pass(
        self,
        tokens: Tensor,
        cache: AttentionCache,
        rows: slice = slice(None),
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        layers: Sequence[int] = (),
    ) -> Pass:
        """See `Llama.forward_pass`."""
        n, c = len(tokens), self.config
        plain = not hasattr(cache, "memory") or rows.step not in (None, 1)
        if plain or (self.wide is not None and n >= self.wide):
            return super().forward_pass(tokens, cache, rows, positions=positions, mask=mask, layers=layers)
        if positions is None:
            self.check_context(cache.length, n)
        else:
            _check("position", positions, c.max_context)
        _check("token", tokens, c.vocab_size)
        cache.reserve(n)
        if self._plan is None:
            self._plan = _Plan(self)
        first, stop, _ = rows.indices(n)
        logits = torch.empty(max(0, stop - first), c.vocab_size, dtype=torch.bfloat16)
        features = {i: torch.empty(n, c.hidden_size, dtype=torch.bfloat16) for i in layers}
        size = CHUNK if mask is None else n
        for start in range(0, n, size):
            end = min(n, start + size)
            a, b = max(first, start), min(stop, end)
            self._plan.run(
                tokens[start:end],
                cache,
                None if positions is None else positions[start:end],
                mask,
                (a - start, logits[a - first : max(a, b) - first]),
                {i: feature[start:end] for i, feature in features.items()},
            )
            cache.advance(end - start)
        return Pass(logits, tuple(features[i] for i in layers))


def _check(what: str, ids: Tensor, limit: int) -> None:
    """Raises IndexError for what compiled code would look up outside a table."""
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < limit):
        raise IndexError(f"{what}s {ids.tolist()[:20]} are not all from 0 to {limit - 1}")


class _Plan:
    """What the compiled pass is told of a model, and its room to work in."""

    def __init__(self, model: CompiledLlama) -> None:
        c = self.config = model.config
        self.bias = model._bias
        self.loop = LOOPS[model.bits]
        self.record = np.zeros(1, whole_pass.PASS)
        self.layers = np.zeros(c.n_layers + 1, whole_pass.LAYER)
        p = self.p = self.record[0]
        modules: Any = model
        for each, layer in zip(self.layers, modules.layers, strict=False):
            for name in whole_pass.MATRICES:
                matrix = getattr(layer, name)
                each[f"{name}_levels"], each[f"{name}_scales"] = matrix.levels.data_ptr(), matrix.scales.data_ptr()
                each[f"{name}_bits"] = matrix.weight_bits
            each["attention_norm"] = address(layer.attention_norm.weight)
            each["mlp_norm"] = address(layer.mlp_norm.weight)
        p["layers"], p["n_layers"] = self.layers.ctypes.data, c.n_layers
        p["n_heads"], p["n_kv_heads"], p["head_dim"], p["hidden"], p["intermediate"] = (
            c.n_heads, c.n_kv_heads, c.head_dim, c.hidden_size, c.intermediate_size
        )  # fmt: skip
        p["vocab"], p["embed"] = c.vocab_size, address(model.embed.weight)
        p["cos"], p["sin"], p["norm"] = address(model.cos), address(model.sin), address(model.norm.weight)
        p["head_levels"], p["head_scales"] = modules.head.levels.data_ptr(), modules.head.scales.data_ptr()
        p["head_bits"], p["eps"], p["team"] = modules.head.weight_bits, model.norm.eps, team().address
        self.most = 0
        self.room: list[Tensor] = []
        self.make_room(CHUNK)

    def make_room(self, n: int) -> None:
        """For passes over up to n tokens."""
        if n <= self.most:
            return
        c, p = self.config, self.p
        heads, widest = c.n_heads * c.head_dim, max(c.hidden_size, c.intermediate_size, c.n_heads * c.head_dim)
        qkv = heads + 2 * c.n_kv_heads * c.head_dim
        widths = {"x": c.hidden_size, "y": c.hidden_size, "qkv": qkv, "q": heads, "attended": heads}
        widths |= {"gate_up": 2 * c.intermediate_size, "gated": c.intermediate_size, "more": c.hidden_size}
        self.room = make_room(p, n, widest, widths)
        self.most = n

    def run(
        self,
        tokens: Tensor,
        cache: Any,
        positions: Tensor | None,
        mask: Tensor | None,
        out: tuple[int, Tensor],
        features: Mapping[int, Tensor],
    ) -> None:
        """One compiled pass over n tokens; the cache has room for them, and is not advanced.

        out: the first row whose logits are asked for, and where they go, `[n_rows, vocab]`. features: where the hidden
        states of layers go, `[n, hidden]` each.
        """
        n, length, p = len(tokens), cache.length, self.p
        tokens = tokens.to(torch.int64).contiguous()
        at = None if positions is None else positions.to(torch.int64).contiguous()
        bias = None if mask is None else self.bias(n, length, mask)
        memory = cache.memory(length + n)
        first, logits = out
        with team().lock:
            self.make_room(n)
            p["n"], p["length"], p["tokens"] = n, length, tokens.data_ptr()
            p["first_row"], p["n_rows"], p["logits"] = first, len(logits), logits.data_ptr()
            p["keys"], p["values"] = address(memory.keys), address(memory.values)
            p["layer_stride"], p["head_stride"] = memory.layer_stride, memory.head_stride
            for name, tensor in (("slots", memory.slots), ("positions", at), ("bias", bias)):
                p[name] = 0 if tensor is None else tensor.data_ptr()
            self.layers["feature"] = 0
            for i, feature in features.items():
                self.layers[i]["feature"] = feature.data_ptr()
            p["feature"] = self.layers[-1]["feature"]
            team().run(self.loop, self.record.ctypes.data, n)
