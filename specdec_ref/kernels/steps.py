"""What the phases of a compiled pass are made of: norms, products, rotation, attention and gate, by all threads.

Each step is called by every thread of a team, with its number and how many there are, and does that thread's part. `p`
is the record of a pass: any that has the fields which the step reads. Between two steps that read each other's results
the threads have to `wait`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from numba import carray
from torch import Tensor

from specdec_ref.kernels import loops
from specdec_ref.kernels.attend import attend_rows
from specdec_ref.kernels.loops import called, rotate_head
from specdec_ref.kernels.memory import bits_pointer, int64_at
from specdec_ref.kernels.packing import OUTPUTS
from specdec_ref.kernels.product import eight_by_8, eight_by_16, four_by_8, four_by_16
from specdec_ref.kernels.quantise import GROUP, quantise8, quantise16
from specdec_ref.kernels.threads import share

norm_rows = called(loops.norm.function)


def make_room(record: Any, n: int, widest: int, widths: Mapping[str, int]) -> list[Tensor]:
    """Room for what a pass over n tokens works with: its addresses go into the record, it lasts as long as the result.

    widths: numbers for each token, by field. widest: the most that become integers.
    """
    widths = dict(widths)
    for end in ("", "_b"):
        widths |= {f"levels{end}": widest, **{f"{x}{end}": widest // 8 for x in ("scales", "offsets", "totals")}}
    room = []
    for name, width in widths.items():
        room.append(torch.zeros(n * width + 64, dtype=torch.bfloat16))
        record[name] = room[-1].data_ptr()
    return room


class Steps(NamedTuple):
    """The steps with activations in 8 or 16 bits; each says below what it does."""

    quantise: Any
    quantised: Any
    results: Any
    group_on: Any
    multiply: Any
    norm_and_quantise: Any
    copy: Any
    rotate_and_append: Any
    attend_and_quantise: Any
    feed_forward: Any


def with_bits(n_bits: int) -> Callable[[Callable[..., Any]], Any]:
    """`called`, with a name for each number of bits: code that is read from disk finds what it calls by name."""

    def decorate(function: Callable[..., Any]) -> Any:
        function.__qualname__ = f"{function.__name__}_{n_bits}"
        return called(function)

    return decorate


@cache
def steps(n_bits: int) -> Steps:
    """The steps with activations in `n_bits` bits."""
    quantise = quantise8 if n_bits == 8 else quantise16
    four = four_by_8 if n_bits == 8 else four_by_16
    eight = eight_by_8 if n_bits == 8 else eight_by_16
    level_bytes = n_bits // 8

    own = with_bits(n_bits)

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
    def multiply(
        me: int, threads: int, bits: int, matrix: Any, x: Any, out: int, n: int, width: int, outs: int
    ) -> None:
        """This thread's outputs of x W^T, `[n, outs]`. x: integers, `[n, width]`."""
        first, last = share(outs // OUTPUTS, me, threads)
        times(bits, matrix, first, last, x, out, n, width, outs)

    @own
    def group_on(integers: Any, g: int) -> Any:
        """The integers from group `g` on."""
        levels, scales, offsets, totals = integers
        return levels + level_bytes * GROUP * g, scales + 4 * g, offsets + 4 * g, totals + 4 * g

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
    def rotate_and_append(p: Any, me: int, threads: int, n: int, keys: int, values: int) -> None:
        """Its heads of n rows, rotated: queries into q `[n_heads, n, dim]`, keys and values into the cache."""
        heads, d = p.n_heads + 2 * p.n_kv_heads, p.head_dim
        first, last = share(heads, me, threads)
        for i in range(n):
            position = int64_at(p.positions + 8 * i) if p.positions else p.length + i
            slot = int64_at(p.slots + 8 * (p.length + i)) if p.slots else p.length + i
            cos, sin = (
                carray(bits_pointer(p.cos + 2 * position * d), d),
                carray(bits_pointer(p.sin + 2 * position * d), d),
            )
            for h in range(first, last):
                x = p.qkv + 2 * (i * heads + h) * d
                if h < p.n_heads:
                    to = carray(bits_pointer(p.q + 2 * (h * n + i) * d), d)
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
        for pair in range(start, stop):
            h, i = pair // p.n, pair % p.n
            quantise(p.attended + 2 * pair * d, group_on(into, i * row_groups + h * head_groups), 0, head_groups)

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

    return Steps(
        quantise,
        quantised,
        results,
        group_on,
        multiply,
        norm_and_quantise,
        copy,
        rotate_and_append,
        attend_and_quantise,
        feed_forward,
    )
