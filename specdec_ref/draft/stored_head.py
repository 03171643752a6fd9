"""An EAGLE-style head with its matrices in 8 bits, as its file stores them, beside a target whose pass is compiled.

A token drafted by the plain head takes a hundred calls from Python, longer than the target needs for one of its own.
So a step is one compiled function. `StoredHead.forward` gives the same numbers to the last bit; it is what to read.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specdec_ref.cache.dense import DenseCache
from specdec_ref.draft.eagle_head import EagleConfig, EagleHead, EagleSteps, Guess
from specdec_ref.interfaces import Features
from specdec_ref.kernels import eagle_step, loops
from specdec_ref.kernels.loops import address
from specdec_ref.kernels.packing import OUTPUTS
from specdec_ref.kernels.quantise import GROUP
from specdec_ref.kernels.steps import make_room
from specdec_ref.kernels.stored import StoredLinear, lay_together
from specdec_ref.kernels.threads import team
from specdec_ref.models.compiled import CompiledLlama
from specdec_ref.models.fused import FusedRMSNorm, compile_loops
from specdec_ref.models.store.blocks import in_8_bits

CHUNK = 64  # tokens that a step takes in at a time
LOOPS = {8: eagle_step.step8, 16: eagle_step.step16}
MATRICES = ("fuse", "qkv", "out", "gate_up", "down")
NORMS = ("token_norm", "state_norm", "mlp_norm", "norm")


class StoredHead(EagleHead):
    """`plain` with matrices in 8 bits, activations in `bits` bits, and compiled loops between them."""

    def __init__(self, plain: EagleHead, bits: int) -> None:
        with torch.device("meta"):  # without memory: every module is replaced
            super().__init__(plain.config)
        own: Any = copy.deepcopy(plain).to(torch.bfloat16)  # for its norms
        for name in MATRICES:
            weight = getattr(plain, name).weight.detach().float().numpy()
            self.set_submodule(name, StoredLinear(in_8_bits(weight), bits=bits))
        for name in NORMS:
            self.set_submodule(name, FusedRMSNorm(getattr(own, name)))
        ones = nn.RMSNorm(plain.config.hidden_size, plain.config.rms_norm_eps, dtype=torch.bfloat16)
        self.division = FusedRMSNorm(ones)
        self.tokens = plain.tokens
        self.requires_grad_(False).eval()

    def fused(self, states: Sequence[Tensor]) -> Tensor:
        """See `EagleHead.fused`."""
        fused: Tensor = self.fuse(torch.cat([self.division(s) for s in states], -1))
        return fused

    def forward(
        self, state: Tensor, embedded: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: DenseCache
    ) -> Tensor:
        """See `EagleHead.forward`."""
        n, d, h, kv = len(state), self.config.head_dim, self.config.n_heads, self.config.n_kv_heads
        qkv = self.qkv(torch.cat([self.token_norm(embedded), self.state_norm(state)], -1))
        q, k, v = state.new_empty(kv, h // kv * n, d), state.new_empty(kv, n, d), state.new_empty(kv, n, d)
        loops.rotate(qkv, cos, sin, q, k, v, n, h, kv, d)
        cache.reserve(n)
        a = cache.attend(0, q, k, v, mask).view(h, n, d).transpose(0, 1).reshape(n, h * d)
        cache.advance(n)
        mlp_norm: Any = self.mlp_norm
        x, y = mlp_norm.of_sum(state, self.out(a))
        gate_up = self.gate_up(y)
        gated = x.new_empty(n, self.config.intermediate_size)
        loops.gate(gate_up, gated, n, self.config.intermediate_size)
        output: Tensor = x + self.down(gated)
        return output


class CompiledSteps(EagleSteps):
    """`EagleSteps` of a `StoredHead`, each step one compiled function; `EagleSteps.step` gives the same bits."""

    def __init__(self, head: EagleHead, model: CompiledLlama) -> None:
        stored: Any = StoredHead(head, model.bits)
        self.head, self.model = stored, model
        target_head: Any = model.head
        spare = stored.tokens[-1:].expand(-len(stored.tokens) % OUTPUTS)  # up to a whole block
        self.rows: StoredLinear = target_head.some_outputs(torch.cat([stored.tokens, spare]))
        lay_together([*(getattr(stored, name) for name in MATRICES), self.rows])
        LOOPS[model.bits].compile_aloud("the draft's step")  # now, and not in the first round
        compile_loops()
        self._plan: _Plan | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}  # it holds addresses

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        lay_together([*(getattr(self.head, name) for name in MATRICES), self.rows])

    def logits(self, output: Tensor) -> Tensor:
        """See `EagleSteps.logits`."""
        return self.rows(self.head.norm(output))[:, : self.head.config.n_tokens]

    def step(self, states: Features | Tensor, ids: Sequence[int], cache: DenseCache) -> Guess:
        """See `EagleSteps.step`."""
        self.check(ids, cache)
        n = len(ids)
        if self._plan is None:
            self._plan = _Plan(self)
        guess = None
        for start in range(0, n, CHUNK):
            end = min(n, start + CHUNK)
            part = tuple(s[start:end] for s in states) if isinstance(states, tuple) else states[start:end]
            guess = self._plan.run(part, ids[start:end], cache, end == n)
            cache.advance(end - start)
        assert guess is not None
        return guess


def can_store(config: EagleConfig) -> bool:
    """Whether a compiled step takes a head of these sizes."""
    c = config
    return not any(size % GROUP for size in (c.hidden_size, c.intermediate_size, c.head_dim))


class _Plan:
    """What the compiled step is told of a head, and its room to work in."""

    def __init__(self, steps: CompiledSteps) -> None:
        head, model, rows = steps.head, steps.model, steps.rows
        c = self.config = head.config
        self.loop = LOOPS[model.bits]  # type: ignore[index]
        self.held = (model.embed.weight, model.cos, model.sin)  # their addresses are used
        self.record = np.zeros(2, eagle_step.STEP)
        p = self.record[0]
        p["n_states"], p["n_heads"], p["n_kv_heads"], p["head_dim"] = len(c.layers), c.n_heads, c.n_kv_heads, c.head_dim
        p["hidden"], p["intermediate"], p["n_tokens"] = c.hidden_size, c.intermediate_size, c.n_tokens
        p["embed"], p["cos"], p["sin"] = map(address, self.held)
        for name in MATRICES:
            matrix: Any = head.get_submodule(name)
            p[f"{name}_levels"], p[f"{name}_scales"] = matrix.levels.data_ptr(), matrix.scales.data_ptr()
        p["head_levels"], p["head_scales"] = rows.levels.data_ptr(), rows.scales.data_ptr()
        p["gate_up_bits"], p["head_bits"], p["outputs"] = eagle_step.BITS, rows.weight_bits, rows.outs
        for name in NORMS:
            p[name] = address(getattr(head, name).weight)
        p["ones"], p["eps"], p["team"] = address(head.division.weight), head.norm.eps, team().address  # type: ignore
        heads, parts = c.n_heads * c.head_dim, max(2, len(c.layers)) * c.hidden_size
        widths = {"x": c.hidden_size, "y": parts, "q": heads, "attended": heads, "more": c.hidden_size}
        widths |= {"qkv": heads + 2 * c.n_kv_heads * c.head_dim}
        widths |= {"gate_up": 2 * c.intermediate_size, "gated": c.intermediate_size}
        self.room = make_room(p, CHUNK, max(parts, c.intermediate_size, heads), widths)
        self.fused = int(p["x"])
        self.addresses = np.zeros(len(c.layers), np.int64)  # of the target's states
        self.best, self.confidence = np.zeros(1, np.int64), np.zeros(1, np.float32)
        self.addresses_at, self.record_at = self.addresses.ctypes.data, self.record.ctypes.data
        p["best"], p["confidence"] = self.best.ctypes.data, self.confidence.ctypes.data
        self.record[1] = p

    def run(self, states: Features | Tensor, ids: Sequence[int], cache: DenseCache, ends: bool) -> Guess | None:
        """One compiled step over n tokens; the cache has room for them, and is not advanced.

        ends: whether the last token is one to guess after; otherwise there is no guess.
        """
        n, c, rows, memory = len(ids), self.config, int(ends), cache.memory(cache.length + len(ids))
        whole, last = self.record
        tokens = torch.tensor(ids)
        given = [s.contiguous() for s in (states if isinstance(states, tuple) else (states,))]
        output = torch.empty(rows, c.hidden_size, dtype=torch.bfloat16)
        logits = torch.empty(rows, int(whole["outputs"]), dtype=torch.bfloat16)
        with team().lock:
            for p, length, n_rows in ((whole, cache.length, n), (last, cache.length + n - rows, rows)):
                p["n"], p["length"], p["head_stride"] = n_rows, length, memory.head_stride
                p["keys"], p["values"] = address(memory.keys), address(memory.values)
            whole["tokens"], whole["states"], whole["x"] = tokens.data_ptr(), 0, self.fused
            if isinstance(states, tuple):
                self.addresses[:] = [address(s) for s in given]
                whole["states"] = self.addresses_at
            else:
                whole["x"] = address(given[0])
            heads, kv_heads = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
            last["qkv"] = whole["qkv"] + 2 * (n - rows) * (heads + 2 * kv_heads)
            last["q"] = whole["q"] + 2 * (n - rows) * heads
            last["x"], last["logits"] = output.data_ptr(), logits.data_ptr()
            team().run(self.loop, self.record_at, n)
            best, confidence = int(self.best[0]), float(self.confidence[0])
        return Guess(output, logits[:, : c.n_tokens], best, confidence) if ends else None
