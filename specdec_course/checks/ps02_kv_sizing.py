"""Checks of problem set 02: bytes of a token in the cache, windows, tensor parallelism, how many sequences fit.

The right values are counted one vector, one layer, one sequence at a time, not with the formulas that learners write.
"""

from __future__ import annotations

import math
import random
import re
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from specdec_course.checks import Check, wrong
from specdec_course.checks.mistakes import NUMBER, Case, Judge, judged, mistakes
from specdec_course.checks.numbers import as_numbers, is_whole, near, typed
from specdec_ref.arithmetic import model_catalogue

Config = dict[str, Any]

BYTES = replace(NUMBER, same=partial(near, tolerance=1e-12))
"""Bytes are counted, so a count that is off by one is wrong; 1e-12 leaves room for floats."""

ENTRIES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
SHARED, EXPLICIT = ("smollm2-135m", "llama-3-70b", "llama-3.2-1b"), ("qwen3-4b", "qwen3-32b", "gemma-3-27b")
LATENT_ENTRIES = (*ENTRIES[:4], "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _real_config(name: str, entries: tuple[str, ...] = ENTRIES) -> Config:
    config = model_catalogue()[name]["config"]
    return {key: config[key] for key in entries if key in config}


# L layers, K key/value heads of d numbers, H query heads, w the hidden size, P bytes of a number.
Heads = namedtuple("Heads", "L K d H w P")


def _heads(config: Config, bytes_per_number: int = 2) -> Heads:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config["head_dim"] if config.get("head_dim") else width // heads
    kv_heads = config.get("num_key_value_heads", heads)
    return Heads(config["num_hidden_layers"], kv_heads, head_dim, heads, width, bytes_per_number)


def _token_bytes(config: Config, bytes_per_number: int = 2) -> int:
    """Every layer, every key/value head, a key and a value, number by number."""
    heads, total = _heads(config), 0
    for _layer in range(heads.L):
        for _head in range(heads.K):
            for _vector in ("key", "value"):
                total += len(range(heads.d)) * bytes_per_number
    return total


TOKEN = mistakes(
    lambda f: lambda *config: f(_heads(*config)),
    {
        "half of it: a key *and* a value; and bytes_per_number bytes for each number.": lambda t: t.L * t.K * t.d * t.P,
        "a key and a value for each *key/value* head, not for each query head.": lambda t: 2 * t.L * t.H * t.d * t.P,
        "the config gives head_dim: it need not be hidden size / heads.": lambda t: 2 * t.L * t.K * (t.w // t.H) * t.P,
        "hidden size is as wide as all query heads: use key/value heads, and head_dim.": lambda t: 2 * t.L * t.w * t.P,
        "every layer keeps its own keys and values.": lambda t: 2 * t.K * t.d * t.P,
        "these are numbers; each takes bytes_per_number bytes.": lambda t: 2 * t.L * t.K * t.d,
        "a number does not always take 2 bytes: use bytes_per_number.": lambda t: 4 * t.L * t.K * t.d,
        "every key/value head keeps its own.": lambda t: 2 * t.L * t.d * t.P,
        "a head's key is a vector of head_dim numbers.": lambda t: 2 * t.L * t.K * t.P,
        "queries are not kept: keys and values only.": lambda t: 3 * t.L * t.K * t.d * t.P,
        "hidden size is divided by the number of *query* heads.": lambda t: 2 * t.L * t.K * (t.w // t.K) * t.P,
    },
)


def _drawn_config(rng: random.Random, kv_heads: int | None = None, explicit: bool = False) -> Config:
    """A config of up to 128 query heads. kv_heads: 0 for one each, None to leave the entry out. explicit: head_dim."""
    heads, head_dim = rng.choice([8, 12, 16, 24, 32, 40, 64, 96, 128]), rng.choice([64, 80, 96, 128, 192])
    layers = rng.randrange(8, 127)
    config: Config = {"num_hidden_layers": layers, "hidden_size": heads * head_dim, "num_attention_heads": heads}
    if kv_heads is not None:
        config["num_key_value_heads"] = kv_heads or heads
    if explicit:
        # Not by a factor that another mistake leads to as well.
        config["head_dim"] = rng.choice([d for d in (64, 96, 128, 256) if d / head_dim not in (1, 2, 4, 0.5, 0.25)])
    elif rng.random() < 0.5:
        config["head_dim"] = None
    return config


kv_bytes_per_token = judged(
    "kv_bytes_per_token",
    Judge("The bytes of a token", _token_bytes, TOKEN, BYTES),
    every_head_its_own=lambda rng: [(_drawn_config(rng),), (_drawn_config(rng, kv_heads=0),)],
    heads_shared=lambda rng: [(_drawn_config(rng, 2),), (_drawn_config(rng, 1),), (_real_config(rng.choice(SHARED)),)],
    head_dim_given=lambda rng: [
        (_drawn_config(rng, rng.choice([0, 1, 2, 4]), explicit=True),),
        (_real_config(rng.choice(EXPLICIT)),),
    ],
    other_formats=lambda rng: [(_drawn_config(rng, rng.choice([2, 4])), nbytes) for nbytes in (1, 4)],
)


# L layers, w the hidden size, H heads; numbers of a latent c, of a key without position n and with r, of a value v.
Latent = namedtuple("Latent", "L w H K c n r v")


def _latent_bytes(config: Config) -> int:
    one_layer = len(range(config["kv_lora_rank"])) + len(range(config["qk_rope_head_dim"]))
    return sum(one_layer for _layer in range(config["num_hidden_layers"])) * 2


LATENT = mistakes(
    lambda f: lambda config: f(Latent(*(config[entry] for entry in LATENT_ENTRIES))),
    {
        "one latent vector serves for keys and values alike: no factor 2 for them.": lambda t: 4 * t.L * (t.c + t.r),
        "each number takes 2 bytes.": lambda t: t.L * (t.c + t.r),
        "the part with the position, qk_rope_head_dim numbers, is kept as well.": lambda t: 2 * t.L * t.c,
        "no factor 2 for keys and values; and the part with the position is kept as well.": lambda t: 4 * t.L * t.c,
        "all heads share the latent: it is kept once a layer.": lambda t: 2 * t.L * t.H * (t.c + t.r),
        "that is the cache with expanded keys and values, as MHA has it.": lambda t: 2 * t.L * t.H * (t.n + t.r + t.v),
        "that is the formula of MHA: here a latent is kept in place of keys and values.": lambda t: 4 * t.L * t.w,
        "the part with the position is shared by all heads, too.": lambda t: 2 * t.L * (t.c + t.r * t.H),
        "one latent vector serves for keys and values alike.": lambda t: 2 * t.L * (2 * t.c + t.r),
        "every layer keeps its own latent.": lambda t: 2 * (t.c + t.r),
    },
)


def _drawn_latent(rng: random.Random) -> Config:
    heads = rng.choice([16, 32, 64, 128])
    widths = [rng.choice(some) for some in ([256, 384, 512, 768], [96, 128], [32, 48, 64], [96, 128, 160])]
    sizes = rng.randrange(10, 90), heads * rng.choice([56, 112, 128]), heads, heads
    return dict(zip(LATENT_ENTRIES, (*sizes, *widths)))


latent_bytes_per_token = judged(
    "latent_bytes_per_token",
    Judge("The bytes of a token", _latent_bytes, LATENT, BYTES),
    drawn=lambda rng: [(_drawn_latent(rng),) for _ in range(2)],
    real=lambda rng: [(_real_config(name, LATENT_ENTRIES),) for name in ("deepseek-v3", "deepseek-v2-lite")],
)


def _quantised_bytes(layers: int, kv_heads: int, head_dim: int, bits: int, group: int, scale_bytes: int) -> Fraction:
    numbers = list(range(head_dim))
    groups = [numbers[start : start + group] for start in range(0, head_dim, group)]
    vector = sum((Fraction(len(g) * bits, 8) + scale_bytes for g in groups), Fraction(0))
    return sum((vector for _ in range(2 * layers * kv_heads)), Fraction(0))


# P bytes of packed numbers, V vectors of d numbers, K key/value heads, groups of g, z bytes of a scale.
QUANTISED = mistakes(
    lambda f: lambda L, K, d, bits, g, z: f(Fraction(2 * L * K * d * bits, 8), 2 * L * K, K, d, g, z),
    {
        "the scales take memory, too: scale_bytes for each group.": lambda P, V, K, d, g, z: P,
        "these are bits: 8 of them are a byte.": lambda P, V, K, d, g, z: 8 * P,
        "numbers left over at the end are a group of their own.": lambda P, V, K, d, g, z: P + V * (d // g) * z,
        "a short group has a whole scale, its own.": lambda P, V, K, d, g, z: P + V * Fraction(d, g) * z,
        "groups do not reach over to the next head.": lambda P, V, K, d, g, z: P + V // K * -(-K * d // g) * z,
        "groups do not reach over to the next vector.": lambda P, V, K, d, g, z: P + -(-V * d // g) * z,
        "a short group is not filled up.": lambda P, V, K, d, g, z: -(-d // g) * (P * Fraction(g, d) + V * z),
        "a vector may have several groups, and each has its scale.": lambda P, V, K, d, g, z: P + V * z,
        "a scale belongs to a group, not to each number.": lambda P, V, K, d, g, z: P + V * d * z,
        "the number of groups is head_dim / group, rounded up.": lambda P, V, K, d, g, z: P + V * g * z,
        "half of it: a key *and* a value.": lambda P, V, K, d, g, z: (P + V * -(-d // g) * z) / 2,
        "every layer keeps its own.": lambda P, V, K, d, g, z: 2 * K * (P / V + -(-d // g) * z),
    },
)


def _sizes(rng: random.Random, head_dim: int, group: int) -> Case:
    bits, scale_bytes = rng.choice([2, 4, 8]), rng.choice([2, 4])
    return rng.randrange(8, 90), rng.randrange(3, 17), head_dim, bits, group, scale_bytes


SHORT_LAST = [(80, 32), (192, 128), (72, 32), (160, 64)]

quantised_bytes_per_token = judged(
    "quantised_bytes_per_token",
    Judge("The bytes of a token", _quantised_bytes, QUANTISED, BYTES),
    whole_groups=lambda rng: [_sizes(rng, rng.choice([2, 3, 4]) * group, group) for group in (32, 64)],
    short_last_group=lambda rng: [_sizes(rng, *vector) for vector in ((96, 64), rng.choice(SHORT_LAST))],
    group_longer_than_vector=lambda rng: [_sizes(rng, rng.choice([48, 64, 80]), 128)],
)

Windows = list[int | None]


def _cache_bytes(windows: Windows, layer_bytes: int, context: int, batch: int) -> int:
    positions, total = range(context), 0
    for _sequence in range(batch):
        for window in windows:
            kept = positions if window is None else positions[max(0, context - window) :]
            total += len(kept) * layer_bytes
    return total


# Other numbers of tokens that all layers keep, of windows W, a context of s tokens and a batch of b sequences.
KEPT = mistakes(
    lambda f: lambda windows, layer_bytes, s, b: layer_bytes * f(windows, s, b),
    {
        "every sequence of the batch has its own cache.": lambda W, s, b: sum(min(s, w or s) for w in W),
        "a layer with a window keeps the last `window` tokens, not all.": lambda W, s, b: b * len(W) * s,
        "a layer keeps no more than its window; and every sequence has its own cache.": lambda W, s, b: len(W) * s,
        "layers with None have no window: they keep all.": lambda W, s, b: b * len(W) * min(s, *filter(None, W)),
        "a window longer than the context is not full: take the smaller of the two.": lambda W, s, b: (
            b * sum(w or s for w in W)
        ),
        "layers without a window (None) keep keys and values, too.": lambda W, s, b: b * sum(min(s, w or 0) for w in W),
        "all of the last `window` tokens count.": lambda W, s, b: b * sum(min(s, w - 1) if w else s for w in W),
        "the layers differ: look at each one's window.": lambda W, s, b: b * len(W) * min(s, W[0] or s),
        "every layer keeps its own.": lambda W, s, b: b * min(s, W[0] or s),
    },
)


def _mixed_layers(rng: random.Random) -> list[Case]:
    window, every = rng.choice([128, 512, 1024]), rng.randrange(2, 7)
    one = [None if (i + 1) % every == 0 else window for i in range(every * rng.randrange(3, 10))]
    two = [*(rng.choice([None, window, 3 * window]) for _ in range(9)), window, None, 3 * window]
    context = window * rng.randrange(2, 9) + rng.randrange(1, 100)
    sizes = 1024 * rng.randrange(1, 9), context, rng.randrange(2, 40)
    return [(one, *sizes), (two, 2048, 4 * window + 7, rng.randrange(2, 9))]


def _window_not_yet_full(rng: random.Random) -> list[Case]:
    window = rng.choice([1024, 4096])
    windows = [window if rng.random() < 0.6 else None for _ in range(10)] + [window, None]
    return [(windows, 4096, context, rng.randrange(2, 40)) for context in (rng.randrange(50, window - 1), window)]


cache_bytes = judged(
    "cache_bytes",
    Judge("The bytes of the caches", _cache_bytes, KEPT, BYTES),
    all_layers_full=lambda rng: [([None] * rng.randrange(8, 90), 3072, rng.randrange(200, 9000), 7)],
    mixed_layers=_mixed_layers,
    window_not_yet_full=_window_not_yet_full,
)


def _rank_bytes(layers: int, kv_heads: int, head_dim: int, ranks: int) -> int:
    """Heads are dealt out whole, and each rank gets one at least."""
    if kv_heads % ranks and ranks % kv_heads:
        raise ValueError(f"{kv_heads} heads go to {ranks} chips evenly neither as shares nor as copies")
    held = [0] * ranks
    for copy in range(max(kv_heads, ranks)):
        held[copy % ranks] += 1
    return sum(2 * head_dim * 2 for _layer in range(layers) for _head in range(max(held)))


# Other numbers of heads on a chip, of K key/value heads and R ranks.
HELD = mistakes(
    lambda f: lambda layers, K, head_dim, R: 4 * layers * head_dim * f(K, R),
    {
        "no chip is left without a head: it holds a copy of one.": lambda K, R: K // R,
        "a head is not cut: a chip holds one whole head at least.": lambda K, R: Fraction(K, R),
        "that is the cache of all heads; the chips share them.": lambda K, R: K,
        "each chip has kv_heads / ranks heads here, not one.": lambda K, R: 1,
        "a chip holds one copy of a head; its other copies are on other chips.": lambda K, R: max(K // R, R // K),
        "that is the sum over all chips; what does *one* hold?": lambda K, R: max(K, R),
    },
)


def _a_real_counterexample(counterexample: Callable, rng: random.Random) -> None:
    names = ["layers", "kv_heads", "head_dim", "ranks"]
    numbers = as_numbers(counterexample(), names)
    if not all(is_whole(x) and 1 <= x <= 100_000 for x in numbers):
        raise wrong("All four are whole numbers from 1 to 100,000.", got=numbers)
    sizes = dict(zip(names, map(int, numbers)))
    try:
        right = _rank_bytes(**sizes)
    except ValueError as error:
        mistake = f"one of kv_heads and ranks has to divide the other: {error}."
        raise wrong("No engine runs that.", given=typed(**sizes), mistake=mistake) from None
    layers, kv_heads, head_dim, ranks = sizes.values()
    if right == 4 * layers * kv_heads * head_dim // ranks:
        raise wrong(
            "The function is right there.",
            given=typed(**sizes),
            got=f"colleagues_rank_bytes gives {right:,}",
            expected="an input on which it does not give what a chip really holds",
            mistake=f"here a chip holds {max(1, kv_heads // ranks)} of {kv_heads} heads. When are there too few heads?",
        )


def _layouts(rng: random.Random, *pairs: tuple[int, int]) -> list[Case]:
    return [(rng.randrange(8, 127), heads, rng.choice([64, 80, 128]), ranks) for heads, ranks in pairs]


counterexample = Check("counterexample", [_a_real_counterexample])
rank_bytes = judged(
    "rank_bytes",
    Judge("The bytes of a token on each chip", _rank_bytes, HELD, BYTES, refuses=(ValueError,)),
    heads_dealt_out=lambda rng: _layouts(rng, (8, 1), (rng.choice([8, 16, 32]), rng.choice([2, 4])), (6, 3), (8, 8)),
    heads_copied=lambda rng: _layouts(rng, (8, 16), (1, rng.choice([2, 4, 8])), (rng.choice([2, 3, 4]), 24)),
    heads_that_do_not_fit=lambda rng: _layouts(rng, (6, 4), (8, 12), rng.choice([(8, 3), (10, 4), (3, 8)])),
)


def _room(memory: str, usable: float = 0.9, gb: int = 10**9, gib: int = 1024**3) -> Fraction:
    amount, unit = memory.split()
    return Fraction(str(usable)) * Fraction(amount) * {"GB": gb, "GiB": gib}[unit]


def _sequences(memory: str, weight_bytes: int, sequence_bytes: int, usable: float = 0.9) -> int:
    """Sequences put in one by one, as long as they fit."""
    n, room = 0, _room(memory, usable)
    while weight_bytes + (n + 1) * sequence_bytes <= room:
        n += 1
    return n


def _whole(memory: str) -> str:
    return re.sub(r"\.\d+", "", memory)


# Other numbers of sequences, of the memory m, weights W and a sequence S in bytes, and the usable share u.
FIT = mistakes(
    lambda f: lambda m, W, S, u=0.9: max(0, math.floor(f(m, W, S, u))),
    {
        "only the share `usable` of the memory may be used.": lambda m, W, S, u: (_room(m, 1) - W) / S,
        "the weights take memory, too.": lambda m, W, S, u: _room(m, u) / S,
        "the weights take memory, and only a share of it is usable.": lambda m, W, S, u: _room(m, 1) / S,
        "a GB is 10^9 bytes, a GiB 2^30; both are asked for.": lambda m, W, S, u: (_room(m, u, gib=10**9) - W) / S,
        "a GB is 10^9 bytes, a GiB 2^30, and both are asked for.": lambda m, W, S, u: (_room(m, u, gb=1024**3) - W) / S,
        "the share is of the whole memory, not of what weights leave.": lambda m, W, S, u: (_room(m, u) - u * W) / S,
        "the share is `usable`, not always 0.9.": lambda m, W, S, u: (_room(m) - W) / S,
        "what fits exactly, fits: one too few.": lambda m, W, S, u: (_room(m, u) - W - 1) / S,
        "79.6 GB are not 79: the number need not be whole.": lambda m, W, S, u: (_room(_whole(m), u) - W) / S,
    },
)
ROUND = "round down: a part of a sequence is none."
ROUNDED = mistakes(
    lambda f: lambda m, W, S, u=0.9: f((_room(m, u) - W) / S),
    {
        "less than nothing cannot fit: where the weights do not, the answer is 0.": math.floor,
        ROUND: lambda exact: max(0, math.ceil(exact)),
        f"{ROUND[:-1]}, not even the larger part.": lambda exact: max(0, round(exact)),
    },
)


def _some_fit(rng: random.Random, unit: str, whole: str, decimal: str, usable: float) -> list[Case]:
    """Memory, weights and sequences of which some fit, with the larger part of one more, and with the smaller."""
    cases: list[Case] = []
    for amounts, share, rest in ((whole, (), rng.uniform(0.6, 0.95)), (decimal, (usable,), rng.uniform(0.1, 0.4))):
        memory, each = f"{rng.choice(amounts.split())} {unit}", rng.randrange(2 * 10**7, 2 * 10**8)
        weights = int(_room(memory, *share) - (rng.randrange(10, 40) + Fraction(rest)) * each)
        cases.append((memory, weights, each, *share))
    return cases


def _none_fit(rng: random.Random) -> list[Case]:
    weights = ("80 GB", 141_107_412_992), ("24 GB", rng.randrange(30, 200) * 10**9), ("16 GB", 14_000_000_000)
    return [(*case, rng.randrange(5, 8) * 10**8) for case in weights]


def _to_the_byte(rng: random.Random) -> list[Case]:
    each, n = rng.randrange(2 * 10**7, 2 * 10**8), rng.randrange(20, 200)
    return [("80 GB", 80 * 10**9 - n * each - spare, each, 1) for spare in (0, -1)]


sequences_that_fit = judged(
    "sequences_that_fit",
    Judge(
        "The number of sequences",
        _sequences,
        [*ROUNDED, *FIT],
        replace(NUMBER, same=lambda got, right: got == right, hint=lambda got, right: ROUND * (not is_whole(got))),
    ),
    in_gb=lambda rng: _some_fit(rng, "GB", "16 24 40 48 80", "79.6 141.5 191.7", 0.8),
    in_gib=lambda rng: _some_fit(rng, "GiB", "141 192", "15.7 39.5 47.8", 0.95),
    none_fit=_none_fit,
    to_the_byte=_to_the_byte,
)
