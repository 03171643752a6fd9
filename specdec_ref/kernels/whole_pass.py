"""A whole forward pass as one compiled function, which all threads run together: embedding to logits.

The same numbers to the last bit as `models/llama.py` over the same products and loops; what is saved is the way through
Python between them, and the threads' start for each. The order of work is that of `Layer.forward`; between two phases
all threads wait for each other.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import carray, types

from specdec_ref.kernels.loops import loop
from specdec_ref.kernels.memory import int64_at, intrinsic
from specdec_ref.kernels.quantise import GROUP
from specdec_ref.kernels.steps import steps, with_bits
from specdec_ref.kernels.threads import join_team, share, wait

MATRICES = ("qkv", "out", "gate_up", "down")
LAYER = np.dtype(
    [(f"{name}_{part}", np.int64) for name in MATRICES for part in ("levels", "scales", "bits")]
    + [("attention_norm", np.int64), ("mlp_norm", np.int64), ("feature", np.int64)]
)
"""What a pass is told of a layer: addresses of its matrices and norms, and where to leave its input, or 0."""

FIELDS = """
layers n_layers n_heads n_kv_heads head_dim hidden intermediate vocab embed cos sin norm
head_levels head_scales head_bits
n tokens positions first_row n_rows logits feature
length keys values layer_stride head_stride slots bias
x y qkv q attended gate_up gated more levels scales offsets totals levels_b scales_b offsets_b totals_b team
"""
# By line: the model, and its head; the new tokens, and which rows' logits are asked for; the cache, with strides in
# numbers, 0 for slots in order and for a chain of tokens; room to work in, and the team's memory.
PASS = np.dtype([*((name, np.int64) for name in FIELDS.split()), ("eps", np.float32), ("unused", np.float32)])
"""What a pass is told: sizes, and addresses of what it reads and writes."""

_PASS, _LAYER = numba.from_dtype(PASS), numba.from_dtype(LAYER)


@intrinsic
def layer_at(typing: Any, address: Any) -> Any:
    """An address as a pointer to a `LAYER`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(_LAYER)(types.int64), code


def _pass(n_bits: int) -> Any:
    """The pass with activations in `n_bits` bits."""
    step = steps(n_bits)
    quantised, results, group_on, multiply, copy = step.quantised, step.results, step.group_on, step.multiply, step.copy
    norm_and_quantise, rotate_and_append = step.norm_and_quantise, step.rotate_and_append
    attend_and_quantise, feed_forward = step.attend_and_quantise, step.feed_forward

    @with_bits(n_bits)
    def run(p: Any) -> None:
        team = p.team
        me, threads = join_team(team)
        n, hidden, width = p.n, p.hidden, p.n_heads * p.head_dim
        first, last = share(n, me, threads)
        for i in range(first, last):
            copy(p.embed + 2 * int64_at(p.tokens + 8 * i) * hidden, p.x + 2 * i * hidden, hidden)
        layers = carray(layer_at(p.layers), p.n_layers)
        qkv_outs = (p.n_heads + 2 * p.n_kv_heads) * p.head_dim
        for layer in range(p.n_layers):
            w = layers[layer]
            keys, values = p.keys + 2 * layer * p.layer_stride, p.values + 2 * layer * p.layer_stride
            norm_and_quantise(p, me, threads, p.more if layer else 0, w.attention_norm, w.feature)
            wait(team)
            qkv, out, down = (w.qkv_levels, w.qkv_scales), (w.out_levels, w.out_scales), (w.down_levels, w.down_scales)
            multiply(me, threads, w.qkv_bits, qkv, quantised(p), p.qkv, n, hidden, qkv_outs)
            wait(team)
            rotate_and_append(p, me, threads, n, keys, values)
            wait(team)
            attend_and_quantise(p, me, threads, keys, values)
            wait(team)
            multiply(me, threads, w.out_bits, out, results(p), p.more, n, width, hidden)
            wait(team)
            norm_and_quantise(p, me, threads, p.more, w.mlp_norm, 0)
            wait(team)
            feed_forward(p, me, threads, w)
            wait(team)
            multiply(me, threads, w.down_bits, down, results(p), p.more, n, p.intermediate, hidden)
            wait(team)
        norm_and_quantise(p, me, threads, p.more, p.norm, 0)
        wait(team)
        if p.feature:
            copy(p.y + 2 * first * hidden, p.feature + 2 * first * hidden, (last - first) * hidden)
        rows = group_on(quantised(p), p.first_row * hidden // GROUP)
        multiply(me, threads, p.head_bits, (p.head_levels, p.head_scales), rows, p.logits, p.n_rows, hidden, p.vocab)

    return run


_run8, _run16 = _pass(8), _pass(16)


@loop(types.CPointer(_PASS))
def pass8(p: Any) -> None:
    """A pass with activations in 8 bits. p: a `PASS`."""
    _run8(carray(p, 1)[0])


@loop(types.CPointer(_PASS))
def pass16(p: Any) -> None:
    """A pass with activations in 16 bits. p: a `PASS`."""
    _run16(carray(p, 1)[0])
