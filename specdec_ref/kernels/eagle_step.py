"""A step of an EAGLE-style head as one compiled function: from states and tokens to logits and the likeliest token.

The same numbers to the last bit as `draft.stored_head.StoredHead` over the same products and loops. A step takes in n
tokens, and goes on with the last `rows` of them: what comes before leaves only its keys and values.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import carray, types

from specdec_ref.kernels.loops import LANES, called, exp, loop, widen
from specdec_ref.kernels.memory import bits_pointer, int64_at, put_float, put_int64
from specdec_ref.kernels.quantise import GROUP
from specdec_ref.kernels.steps import norm_rows, steps, with_bits
from specdec_ref.kernels.threads import join_team, share, wait

FIELDS = """
n_states n_heads n_kv_heads head_dim hidden intermediate outputs n_tokens embed cos sin
fuse_levels fuse_scales qkv_levels qkv_scales out_levels out_scales gate_up_levels gate_up_scales gate_up_bits
down_levels down_scales head_levels head_scales head_bits ones token_norm state_norm mlp_norm norm
n length positions tokens states keys values head_stride slots bias
x y qkv q attended gate_up gated more levels scales offsets totals levels_b scales_b offsets_b totals_b team
logits best confidence
"""
# By line: the head, `outputs` being `n_tokens` rounded up to whole blocks; the new tokens, with the states of the
# target's layers, of which 0 says that x holds the head's own; the cache; room to work in; what a step gives.
STEP = np.dtype([*((name, np.int64) for name in FIELDS.split()), ("eps", np.float32), ("unused", np.float32)])
"""What a step is told: sizes, and addresses of what it reads and writes."""
BITS = 8  # of the head's own weights

_STEP = numba.from_dtype(STEP)


@called
def likeliest(logits: int, n: int, best: int, confidence: int) -> None:
    """Of n bfloat16 logits the index of the largest, the first of equals, and its probability: int64 and float32.

    The probability is NaN where a logit is not finite.
    """
    row = carray(bits_pointer(logits), n)
    whole = n - n % LANES
    tops, sums = np.full(LANES, -np.inf, np.float32), np.zeros(LANES, np.float32)
    for start in range(0, whole, LANES):
        part = row[start : start + LANES]
        for j in range(LANES):
            tops[j] = max(tops[j], widen(part[j]))
    top = np.float32(-np.inf)
    for j in range(LANES):
        top = max(top, tops[j])
    for i in range(whole, n):
        top = max(top, widen(row[i]))
    index = 0
    while index < n - 1 and widen(row[index]) != top:
        index += 1
    for start in range(0, whole, LANES):
        part = row[start : start + LANES]
        for j in range(LANES):
            x = widen(part[j])
            sums[j] += exp(x - top) + (x - x)  # x - x is NaN for what is not finite, and `exp` hides it
    total = np.float32(0)
    for j in range(LANES):
        total += sums[j]
    for i in range(whole, n):
        x = widen(row[i])
        total += exp(x - top) + (x - x)
    put_int64(best, index)
    put_float(confidence, np.float32(1) / total)


def _step(n_bits: int) -> Any:
    """The step with activations in `n_bits` bits."""
    step = steps(n_bits)
    quantise, quantised, results, group_on = step.quantise, step.quantised, step.results, step.group_on
    multiply, norm_and_quantise, copy = step.multiply, step.norm_and_quantise, step.copy
    rotate_and_append, attend_and_quantise = step.rotate_and_append, step.attend_and_quantise
    feed_forward = step.feed_forward

    @with_bits(n_bits)
    def norm_part(p: Any, x: int, weight: int, i: int) -> None:
        """Part i of a row of several parts of `hidden` numbers each: norm(x) in integers."""
        y, groups = p.y + 2 * i * p.hidden, p.hidden // GROUP
        source, to = bits_pointer(x), bits_pointer(y)
        norm_rows(source, source, bits_pointer(weight), to, to, 1, p.hidden, p.eps, False)
        quantise(y, group_on(quantised(p), i * groups), 0, groups)

    @with_bits(n_bits)
    def norm_states(p: Any, me: int, threads: int) -> None:
        """This thread's parts of `[n, n_states * hidden]`: each state of the target divided by its root mean square."""
        first, last = share(p.n * p.n_states, me, threads)
        for i in range(first, last):
            row, state = i // p.n_states, int64_at(p.states + 8 * (i % p.n_states))
            norm_part(p, state + 2 * row * p.hidden, p.ones, i)

    @with_bits(n_bits)
    def norm_input(p: Any, last: Any, me: int, threads: int) -> None:
        """This thread's parts of `[n, 2 * hidden]`, embedded token and state, and the states that the step goes on
        with."""
        first, stop = share(2 * p.n, me, threads)
        for i in range(first, stop):
            row = i // 2
            state = p.x + 2 * row * p.hidden
            if i % 2 == 0:
                norm_part(p, p.embed + 2 * int64_at(p.tokens + 8 * row) * p.hidden, p.token_norm, i)
            else:
                norm_part(p, state, p.state_norm, i)
                if row >= p.n - last.n:
                    copy(state, last.x + 2 * (row - p.n + last.n) * p.hidden, p.hidden)

    @with_bits(n_bits)
    def go_on(p: Any, me: int, threads: int) -> None:
        """From queries to the step's results, of the last rows."""
        team, n, hidden, width = p.team, p.n, p.hidden, p.n_heads * p.head_dim
        out, down, head = (p.out_levels, p.out_scales), (p.down_levels, p.down_scales), (p.head_levels, p.head_scales)
        attend_and_quantise(p, me, threads, p.keys, p.values)
        wait(team)
        multiply(me, threads, BITS, out, results(p), p.more, n, width, hidden)
        wait(team)
        norm_and_quantise(p, me, threads, p.more, p.mlp_norm, 0)
        wait(team)
        feed_forward(p, me, threads, p)
        wait(team)
        multiply(me, threads, BITS, down, results(p), p.more, n, p.intermediate, hidden)
        wait(team)
        norm_and_quantise(p, me, threads, p.more, p.norm, 0)
        wait(team)
        multiply(me, threads, p.head_bits, head, quantised(p), p.logits, n, hidden, p.outputs)
        wait(team)
        first, last = share(n, me, threads)
        for i in range(first, last):
            likeliest(p.logits + 2 * i * p.outputs, p.n_tokens, p.best + 8 * i, p.confidence + 4 * i)

    @with_bits(n_bits)
    def run_step(p: Any, last: Any) -> None:
        team = p.team
        me, threads = join_team(team)
        n, hidden, qkv_outs = p.n, p.hidden, (p.n_heads + 2 * p.n_kv_heads) * p.head_dim
        fuse, qkv = (p.fuse_levels, p.fuse_scales), (p.qkv_levels, p.qkv_scales)
        if p.states:
            norm_states(p, me, threads)
            wait(team)
            multiply(me, threads, BITS, fuse, quantised(p), p.x, n, p.n_states * hidden, hidden)
            wait(team)
        norm_input(p, last, me, threads)
        wait(team)
        multiply(me, threads, BITS, qkv, quantised(p), p.qkv, n, 2 * hidden, qkv_outs)
        wait(team)
        rotate_and_append(p, me, threads, n - last.n, p.keys, p.values)
        rotate_and_append(last, me, threads, last.n, p.keys, p.values)
        wait(team)
        if last.n:
            go_on(last, me, threads)

    return run_step


_run8, _run16 = _step(8), _step(16)


@loop(types.CPointer(_STEP))
def step8(p: Any) -> None:
    """A step with activations in 8 bits. p: two `STEP`, of all rows and of the last ones."""
    both = carray(p, 2)
    _run8(both[0], both[1])


@loop(types.CPointer(_STEP))
def step16(p: Any) -> None:
    """A step with activations in 16 bits. p: two `STEP`, of all rows and of the last ones."""
    both = carray(p, 2)
    _run16(both[0], both[1])
