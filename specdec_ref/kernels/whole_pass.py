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

from specdec_ref.kernels import loops
from specdec_ref.kernels.attend import attend_rows
from specdec_ref.kernels.loops import called, loop, rotate_head
from specdec_ref.kernels.memory import bits_pointer, int64_at, intrinsic
from specdec_ref.kernels.packing import OUTPUTS
from specdec_ref.kernels.product import eight_by_8, eight_by_16, four_by_8, four_by_16
from specdec_ref.kernels.quantise import GROUP, quantise8, quantise16
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
norm_rows = called(loops.norm.function)


@intrinsic
def layer_at(typing: Any, address: Any) -> Any:
    """An address as a pointer to a `LAYER`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(_LAYER)(types.int64), code


def _pass(n_bits: int) -> Any:
    """The pass with activations in `n_bits` bits."""
    quantise = quantise8 if n_bits == 8 else quantise16
    four = four_by_8 if n_bits == 8 else four_by_16
    eight = eight_by_8 if n_bits == 8 else eight_by_16
    level_bytes = n_bits // 8

    def own(function: Any) -> Any:
        # With a name for each number of bits: code that is read from disk finds what it calls by name.
        function.__qualname__ = f"{function.__name__}_{n_bits}"
        return called(function)

    @own
    def quantised(p: Any) -> Any:
        """Where normed activations lie as integers: addresses of levels, scales, offsets and totals."""
        return p.levels, p.scales, p.offsets, p.totals

    @own
    def results(p: Any) -> Any:
        """The same for what attention and gate leave, which is written while others still read normed activations."""
        return p.levels_b, p.scales_b, p.offsets_b, p.totals_b

    @own
    def times(bits: int, matrix: Any, first: int, last: int, x: Any, out: int, n: int, width: int, outs: int) -> None:
        """Blocks `first` to `last` of x W^T, see `product`."""
        if bits == 4:
            four(first, last, matrix, x, out, n, width // GROUP, outs)
        else:
            eight(first, last, matrix, x, out, n, width // GROUP, outs)

    @own
    def norm_and_quantise(p: Any, me: int, threads: int, more: int, weight: int, feature: int) -> None:
        """This thread's rows: x += more, unless that is 0, and norm(x) in integers."""
        first, last = share(p.n, me, threads)
        row, groups = 2 * first * p.hidden, p.hidden // GROUP
        x, y = bits_pointer(p.x + row), bits_pointer(p.y + row)
        norm_rows(x, bits_pointer(more + row), bits_pointer(weight), x, y, last - first, p.hidden, p.eps, more != 0)
        if feature:
            copy(p.x + row, feature + row, (last - first) * p.hidden)
        quantise(p.y, quantised(p), first * groups, last * groups)

    @own
    def copy(source: int, to: int, n: int) -> None:
        """n bfloat16 numbers."""
        a, b = carray(bits_pointer(source), n), carray(bits_pointer(to), n)
        for i in range(n):
            b[i] = a[i]

    @own
    def rotate_and_append(p: Any, me: int, threads: int, keys: int, values: int) -> None:
        """This thread's heads: queries, rotated, into q `[n_heads, n, dim]`, keys and values into the cache."""
        heads, d = p.n_heads + 2 * p.n_kv_heads, p.head_dim
        first, last = share(heads, me, threads)
        for i in range(p.n):
            position = int64_at(p.positions + 8 * i) if p.positions else p.length + i
            slot = int64_at(p.slots + 8 * (p.length + i)) if p.slots else p.length + i
            cos, sin = (
                carray(bits_pointer(p.cos + 2 * position * d), d),
                carray(bits_pointer(p.sin + 2 * position * d), d),
            )
            for h in range(first, last):
                x = p.qkv + 2 * (i * heads + h) * d
                if h < p.n_heads:
                    to = carray(bits_pointer(p.q + 2 * (h * p.n + i) * d), d)
                    rotate_head(carray(bits_pointer(x), d), cos, sin, to)
                elif h < p.n_heads + p.n_kv_heads:
                    at = keys + 2 * ((h - p.n_heads) * p.head_stride + slot * d)
                    rotate_head(carray(bits_pointer(x), d), cos, sin, carray(bits_pointer(at), d))
                else:
                    copy(x, values + 2 * ((h - p.n_heads - p.n_kv_heads) * p.head_stride + slot * d), d)

    @own
    def attend_and_quantise(p: Any, me: int, threads: int, keys: int, values: int) -> None:
        """This thread's pairs of head and row: attention, and its result in integers."""
        d, length, per = p.head_dim, p.length + p.n, p.n_heads // p.n_kv_heads * p.n  # rows of a key head
        start, stop = share(p.n_heads * p.n, me, threads)
        into, row_groups, head_groups = results(p), p.n_heads * d // GROUP, d // GROUP
        for h in range(p.n_kv_heads):
            first, last = max(start, h * per), min(stop, (h + 1) * per)
            if first < last:
                row = first - h * per
                bias = p.bias + 2 * row * length if p.bias else 0
                at = 2 * h * p.head_stride
                attend_rows(
                    p.q + 2 * first * d, keys + at, values + at, p.slots, bias, p.attended + 2 * first * d,
                    last - first, row, p.n, d, length,
                )  # fmt: skip
        levels, scales, offsets, totals = into
        for pair in range(start, stop):
            h, i = pair // p.n, pair % p.n
            g = i * row_groups + h * head_groups
            to = (levels + level_bytes * GROUP * g, scales + 4 * g, offsets + 4 * g, totals + 4 * g)
            quantise(p.attended + 2 * pair * d, to, 0, head_groups)

    @own
    def feed_forward(p: Any, me: int, threads: int, w: Any) -> None:
        """This thread's part of gate and up, in whole groups, and of silu(gate) * up in integers."""
        width, outs, groups = p.hidden, 2 * p.intermediate, p.intermediate // GROUP
        first, last = share(groups, me, threads)
        a, b, half = 2 * first, 2 * last, p.intermediate // OUTPUTS  # blocks of 16: a group is two
        matrix = w.gate_up_levels, w.gate_up_scales
        times(w.gate_up_bits, matrix, a, b, quantised(p), p.gate_up, p.n, width, outs)
        times(w.gate_up_bits, matrix, half + a, half + b, quantised(p), p.gate_up, p.n, width, outs)
        for i in range(p.n):
            gate, to = p.gate_up + 2 * (i * outs + GROUP * first), p.gated + 2 * (i * p.intermediate + GROUP * first)
            gate_part(gate, gate + 2 * p.intermediate, to, GROUP * (last - first))
            quantise(p.gated, results(p), i * groups + first, i * groups + last)

    @own
    def gate_part(gate: int, up: int, out: int, n: int) -> None:
        """silu(gate) * up of n numbers, by the loop that takes both side by side."""
        g, u, o = carray(bits_pointer(gate), n), carray(bits_pointer(up), n), carray(bits_pointer(out), n)
        for j in range(n):
            o[j] = loops.gated(g[j], u[j])

    @own
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
            a, b = share(qkv_outs // OUTPUTS, me, threads)
            times(w.qkv_bits, (w.qkv_levels, w.qkv_scales), a, b, quantised(p), p.qkv, n, hidden, qkv_outs)
            wait(team)
            rotate_and_append(p, me, threads, keys, values)
            wait(team)
            attend_and_quantise(p, me, threads, keys, values)
            wait(team)
            a, b = share(hidden // OUTPUTS, me, threads)
            times(w.out_bits, (w.out_levels, w.out_scales), a, b, results(p), p.more, n, width, hidden)
            wait(team)
            norm_and_quantise(p, me, threads, p.more, w.mlp_norm, 0)
            wait(team)
            feed_forward(p, me, threads, w)
            wait(team)
            a, b = share(hidden // OUTPUTS, me, threads)
            times(w.down_bits, (w.down_levels, w.down_scales), a, b, results(p), p.more, n, p.intermediate, hidden)
            wait(team)
        norm_and_quantise(p, me, threads, p.more, p.norm, 0)
        wait(team)
        if p.feature:
            copy(p.y + 2 * first * hidden, p.feature + 2 * first * hidden, (last - first) * hidden)
        levels, scales, offsets, totals = quantised(p)
        g = p.first_row * hidden // GROUP
        rows = (levels + level_bytes * GROUP * g, scales + 4 * g, offsets + 4 * g, totals + 4 * g)
        a, b = share(p.vocab // OUTPUTS, me, threads)
        times(p.head_bits, (p.head_levels, p.head_scales), a, b, rows, p.logits, p.n_rows, hidden, p.vocab)

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
