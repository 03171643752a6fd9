"""Checks of problem set 02: bytes of a token in the cache, windows, tensor parallelism, how many sequences fit.

The right values are counted one vector, one layer, one sequence at a time, not with the formulas that learners write.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from fractions import Fraction
from typing import Any

from specdec_course.checks import Check, guard, wrong
from specdec_course.checks.numbers import Number, as_number, as_numbers, compare, near, number_text
from specdec_course.checks.ps02_kv_sizing import kv_bytes_per_token as kv_bytes_per_token
from specdec_ref.arithmetic import model_catalogue

Config = dict[str, Any]

ENTRIES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
LATENT_ENTRIES = (*ENTRIES[:4], "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _given(**values: Any) -> str:
    """Inputs as one would type them."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _asked(function: Callable, given: str, *arguments: Any, **options: Any) -> Any:
    """What the learner's function returns. An error is told with what was given; the arguments stay as they were."""
    before = deepcopy(arguments)
    with guard(given):
        got = function(*arguments, **options)
    for was, now in zip(before, arguments):
        if was != now:
            raise wrong(
                "Your function changed what it was given.",
                given=given,
                got=now,
                expected=f"{was!r}, as before",
                mistake="whoever called it still needs that: count without changing it, or work on a copy",
            )
    return got


def _real_config(name: str, entries: tuple[str, ...] = ENTRIES) -> Config:
    config = model_catalogue()[name]["config"]
    return {key: config[key] for key in entries if key in config}


# One token, latent.


def _look_at_latent(latent_bytes_per_token: Callable, config: Config) -> None:
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, v = config["qk_nope_head_dim"], config["v_head_dim"]
    right = sum(len(range(rank)) + len(range(rope)) for _layer in range(layers)) * 2
    given = _given(config=config)
    compare(
        "The bytes of a token",
        _asked(latent_bytes_per_token, given, dict(config)),
        right,
        given,
        [
            (2 * right, "one latent vector serves for keys and values alike: there is no factor 2 for them."),
            (right // 2, "each number takes 2 bytes."),
            (2 * layers * rank, "the part with the position, qk_rope_head_dim numbers, is kept as well."),
            (4 * layers * rank, "no factor 2 for keys and values; and the part with the position is kept as well."),
            (right * heads, "all heads share the latent: it is kept once a layer."),
            (2 * layers * heads * (nope + rope + v), "that is the cache with expanded keys and values, as MHA has it."),
            (
                4 * layers * config["hidden_size"],
                "that is the formula of MHA: here a latent is kept in place of keys and values.",
            ),
            (2 * layers * (rank + rope * heads), "the part with the position is shared by all heads, too."),
            (2 * layers * (2 * rank + rope), "one latent vector serves for keys and values alike."),
            (right // layers, "every layer keeps its own latent."),
        ],
    )


def _latent_drawn(latent_bytes_per_token: Callable, rng: random.Random) -> None:
    for _ in range(2):
        heads = rng.choice([16, 32, 64, 128])
        _look_at_latent(
            latent_bytes_per_token,
            {
                "num_hidden_layers": rng.randrange(10, 90),
                "hidden_size": heads * rng.choice([56, 112, 128]),
                "num_attention_heads": heads,
                "num_key_value_heads": heads,
                "kv_lora_rank": rng.choice([256, 384, 512, 768]),
                "qk_nope_head_dim": rng.choice([96, 128]),
                "qk_rope_head_dim": rng.choice([32, 48, 64]),
                "v_head_dim": rng.choice([96, 128, 160]),
            },
        )


def _latent_real(latent_bytes_per_token: Callable, rng: random.Random) -> None:
    _look_at_latent(
        latent_bytes_per_token, _real_config(rng.choice(["deepseek-v3", "deepseek-v2-lite"]), LATENT_ENTRIES)
    )


latent_bytes_per_token = Check("latent_bytes_per_token", [_latent_drawn, _latent_real])


# Fewer bits.


def _vector_bytes(head_dim: int, bits: int, group: int, scale_bytes: int) -> Fraction:
    """Bytes of one key or value, cut into groups from the front; the last may be short."""
    numbers = list(range(head_dim))
    groups = [numbers[start : start + group] for start in range(0, head_dim, group)]
    return sum((Fraction(len(g) * bits, 8) + scale_bytes for g in groups), Fraction(0))


def _look_at_quantised(
    quantised: Callable, layers: int, kv_heads: int, head_dim: int, bits: int, group: int, scale_bytes: int
) -> None:
    vectors = 2 * layers * kv_heads
    right = sum((_vector_bytes(head_dim, bits, group, scale_bytes) for _ in range(vectors)), Fraction(0))
    packed = Fraction(vectors * head_dim * bits, 8)

    def with_groups(groups: Number) -> Number:
        return packed + groups * scale_bytes

    given = _given(layers=layers, kv_heads=kv_heads, head_dim=head_dim, bits=bits, group=group, scale_bytes=scale_bytes)
    compare(
        "The bytes of a token",
        _asked(quantised, given, layers, kv_heads, head_dim, bits, group, scale_bytes),
        right,
        given,
        [
            (packed, "the scales take memory, too: scale_bytes for each group."),
            (8 * packed, "these are bits: 8 of them are a byte."),
            (with_groups(vectors * (head_dim // group)), "numbers left over at the end are a group of their own."),
            (
                with_groups(vectors * Fraction(head_dim, group)),
                "a short group at the end has a whole scale, and takes in nothing of the next vector.",
            ),
            (
                with_groups(2 * layers * math.ceil(Fraction(kv_heads * head_dim, group))),
                "groups do not reach over from one head's vector to the next.",
            ),
            (
                with_groups(math.ceil(Fraction(vectors * head_dim, group))),
                "groups do not reach over from one head's vector to the next.",
            ),
            (
                Fraction(vectors * math.ceil(Fraction(head_dim, group)) * group * bits, 8)
                + vectors * math.ceil(Fraction(head_dim, group)) * scale_bytes,
                "a short group is not filled up: it holds only the numbers that are left.",
            ),
            (with_groups(vectors), "each group has its scale, and a vector may have several groups."),
            (with_groups(vectors * head_dim), "a scale belongs to a group, not to each number."),
            (with_groups(vectors * group), "the number of groups is head_dim / group, rounded up."),
            (right / 2, "half of it: a key *and* a value."),
            (right / layers, "every layer keeps its own."),
            (right / kv_heads, "every key/value head keeps its own."),
        ],
    )


def _whole_groups(quantised: Callable, rng: random.Random) -> None:
    for _ in range(2):
        group = rng.choice([32, 64])
        head_dim = group * rng.choice([2, 3, 4])
        bits, scale = rng.choice([2, 4, 8]), rng.choice([2, 4])
        _look_at_quantised(quantised, rng.randrange(8, 90), rng.randrange(2, 17), head_dim, bits, group, scale)


def _short_last_group(quantised: Callable, rng: random.Random) -> None:
    for head_dim, group in ((96, 64), rng.choice([(80, 32), (192, 128), (72, 32), (160, 64)])):
        bits, scale = rng.choice([2, 4, 8]), rng.choice([2, 4])
        _look_at_quantised(quantised, rng.randrange(8, 90), rng.randrange(3, 17), head_dim, bits, group, scale)


def _group_longer_than_vector(quantised: Callable, rng: random.Random) -> None:
    bits, scale = rng.choice([2, 4, 8]), rng.choice([2, 4])
    _look_at_quantised(
        quantised, rng.randrange(8, 90), rng.randrange(3, 17), rng.choice([48, 64, 80]), bits, 128, scale
    )


quantised_bytes_per_token = Check(
    "quantised_bytes_per_token", [_whole_groups, _short_last_group, _group_longer_than_vector]
)


# Windows.


def _look_at_cache(
    cache_bytes: Callable, windows: list[int | None], layer_bytes: int, context: int, batch: int
) -> None:
    kinds = " + ".join(f"{windows.count(w)} * [{w}]" for w in dict.fromkeys(windows))
    shown = windows if len(windows) <= 16 else f"{kinds} in some order" if len(set(windows)) > 1 else kinds
    given = f"windows={shown}, layer_bytes={layer_bytes}, context={context}, batch={batch}"
    positions = range(context)
    right = 0
    for _sequence in range(batch):
        for window in windows:
            kept = positions if window is None else positions[max(0, context - window) :]
            right += len(kept) * layer_bytes
    full = len(windows) * context * layer_bytes
    one = right // batch
    limits = [w for w in windows if w is not None]
    everywhere = sum(min(context, min(limits, default=context)) for _ in windows) * layer_bytes
    compare(
        "The bytes of the caches",
        _asked(cache_bytes, given, list(windows), layer_bytes, context, batch),
        right,
        given,
        [
            (one, "every sequence of the batch has its own cache."),
            (batch * full, "a layer with a window keeps the last `window` tokens, not all."),
            (full, "a layer with a window keeps no more than its window; and every sequence has its own cache."),
            (batch * everywhere, "layers with None have no window: they keep the whole context."),
            (
                batch * sum(context if w is None else w for w in windows) * layer_bytes,
                "a window longer than the context is not full: the smaller of the two is kept.",
            ),
            (
                batch * sum(0 if w is None else min(context, w) for w in windows) * layer_bytes,
                "layers without a window (None) keep keys and values, too: of the whole context.",
            ),
            (
                batch * sum(context if w is None else min(context, w - 1) for w in windows) * layer_bytes,
                "count the last `window` tokens here: all of them.",
            ),
            (
                len(windows)
                * sum(context if w is None else min(context, w) for w in windows[:1])
                * layer_bytes
                * batch,
                "the layers differ: look at each one's window.",
            ),
            (right // len(windows) if len(set(windows)) == 1 else -1, "every layer keeps its own."),
        ],
    )


def _all_layers_full(cache_bytes: Callable, rng: random.Random) -> None:
    windows: list[int | None] = [None] * rng.randrange(8, 90)
    _look_at_cache(cache_bytes, windows, 1024 * rng.randrange(1, 9), rng.randrange(200, 9000), rng.randrange(2, 40))


def _mixed_layers(cache_bytes: Callable, rng: random.Random) -> None:
    window = rng.choice([128, 512, 1024])
    every = rng.randrange(2, 7)
    windows = [None if (i + 1) % every == 0 else window for i in range(every * rng.randrange(3, 10))]
    context = window * rng.randrange(2, 9) + rng.randrange(1, 100)
    _look_at_cache(cache_bytes, windows, 1024 * rng.randrange(1, 9), context, rng.randrange(2, 40))
    two: list[int | None] = [rng.choice([None, window, 3 * window]) for _ in range(9)] + [window, None, 3 * window]
    _look_at_cache(cache_bytes, two, 2048, 4 * window + 7, rng.randrange(2, 9))


def _window_not_yet_full(cache_bytes: Callable, rng: random.Random) -> None:
    window = rng.choice([1024, 4096])
    windows = [window if rng.random() < 0.6 else None for _ in range(10)] + [window, None]
    _look_at_cache(cache_bytes, windows, 4096, rng.randrange(50, window - 1), rng.randrange(2, 40))
    _look_at_cache(cache_bytes, windows, 4096, window, rng.randrange(2, 40))


cache_bytes = Check("cache_bytes", [_all_layers_full, _mixed_layers, _window_not_yet_full])


# Tensor parallelism, with the bug in given code.


def _colleague(layers: int, kv_heads: int, head_dim: int, ranks: int) -> int:
    """What the notebook's given function computes."""
    total = 2 * layers * kv_heads * head_dim * 2
    return total // ranks


def _heads_fit(kv_heads: int, ranks: int) -> bool:
    return kv_heads % ranks == 0 or ranks % kv_heads == 0


def _rank_bytes(layers: int, kv_heads: int, head_dim: int, ranks: int) -> int:
    """Bytes that a token leaves on the fullest rank: heads are dealt out whole, and each rank gets one at least."""
    held = [0] * ranks
    for copy in range(max(kv_heads, ranks)):
        held[copy % ranks] += 1
    return sum(2 * head_dim * 2 for _layer in range(layers) for _head in range(max(held)))


def _a_real_counterexample(counterexample: Callable, rng: random.Random) -> None:
    names = ["layers", "kv_heads", "head_dim", "ranks"]
    value = counterexample()
    numbers = as_numbers(value, names)
    if any(not math.isfinite(x) or x != int(x) or not 1 <= x <= 100_000 for x in numbers):
        raise wrong("All four are whole numbers from 1 to 100,000.", got=value)
    layers, kv_heads, head_dim, ranks = map(int, numbers)
    given = _given(layers=layers, kv_heads=kv_heads, head_dim=head_dim, ranks=ranks)
    if not _heads_fit(kv_heads, ranks):
        raise wrong(
            "No engine runs that.",
            given=given,
            mistake="one of kv_heads and ranks has to divide the other: a head is not cut.",
        )
    per_rank = max(1, kv_heads // ranks)
    right, theirs = 2 * layers * per_rank * head_dim * 2, _colleague(layers, kv_heads, head_dim, ranks)
    if right == theirs:
        raise wrong(
            "The function is right there.",
            given=given,
            got=f"colleagues_rank_bytes gives {theirs:,}",
            expected="an input on which it does not give what a chip really holds",
            mistake=f"here each chip holds {per_rank} of {kv_heads} heads. When are there too few heads?",
        )


counterexample = Check("counterexample", [_a_real_counterexample])


def _look_at_rank(rank_bytes: Callable, layers: int, kv_heads: int, head_dim: int, ranks: int) -> None:
    right = _rank_bytes(layers, kv_heads, head_dim, ranks)
    head = right // max(1, kv_heads // ranks)
    given = _given(layers=layers, kv_heads=kv_heads, head_dim=head_dim, ranks=ranks)
    compare(
        "The bytes of a token on each chip",
        _asked(rank_bytes, given, layers, kv_heads, head_dim, ranks),
        right,
        given,
        [
            (0, "no chip is left without a head: it holds a copy of one."),
            (head * Fraction(kv_heads, ranks), "a head is not cut: a chip holds one whole head at least."),
            (head * kv_heads, "that is the cache of all heads; the chips share them."),
            (head, "each chip has kv_heads / ranks heads here, not one."),
            (head * max(1, ranks // kv_heads), "a chip holds one copy of a head; its other copies are on other chips."),
            (right * ranks, "that is the sum over all chips; what does *one* hold?"),
        ],
    )


def _heads_dealt_out(rank_bytes: Callable, rng: random.Random) -> None:
    for kv_heads, ranks in ((8, 1), (rng.choice([8, 16, 32]), rng.choice([2, 4, 8])), (6, 3), (8, 8)):
        _look_at_rank(rank_bytes, rng.randrange(8, 127), kv_heads, rng.choice([64, 80, 128]), ranks)


def _heads_copied(rank_bytes: Callable, rng: random.Random) -> None:
    for kv_heads, ranks in ((8, 16), (1, rng.choice([2, 4, 8])), (rng.choice([2, 3, 4]), 24)):
        _look_at_rank(rank_bytes, rng.randrange(8, 127), kv_heads, rng.choice([64, 80, 128]), ranks)


def _heads_that_do_not_fit(rank_bytes: Callable, rng: random.Random) -> None:
    for kv_heads, ranks in ((6, 4), (8, 12), rng.choice([(8, 3), (10, 4), (3, 8)])):
        given = _given(layers=32, kv_heads=kv_heads, head_dim=128, ranks=ranks)
        with guard(given):
            try:
                got = rank_bytes(32, kv_heads, 128, ranks)
            except ValueError:
                continue
        raise wrong(
            "This should be refused.",
            given=given,
            got=repr(got),
            expected="ValueError",
            mistake=f"{kv_heads} heads cannot be dealt out to {ranks} chips evenly, neither as shares nor as copies.",
        )


rank_bytes = Check("rank_bytes", [_heads_dealt_out, _heads_copied, _heads_that_do_not_fit])


# How many fit.

UNITS = {"GB": 10**9, "GiB": 1024**3}


def _memory(amount: float, unit: str) -> Fraction:
    return Fraction(str(amount)) * UNITS[unit]


def _sequences(room: Fraction, weights: int, each: int) -> int:
    """Sequences put in one by one, as long as they fit."""
    n = 0
    while weights + (n + 1) * each <= room:
        n += 1
    return n


def _fit_slips(amount: float, unit: str, weights: int, each: int, share: Fraction) -> list[tuple[Number, str]]:
    """What known mistakes lead to, in whole sequences."""
    whole, other = _memory(amount, unit), _memory(amount, "GiB" if unit == "GB" else "GB")
    exact = (share * whole - weights) / each
    return [
        (math.floor(exact), "less than nothing cannot fit: where the weights do not, the answer is 0."),
        (math.ceil(exact), "round down: a part of a sequence is none."),
        (_sequences(whole, weights, each), "only the share `usable` of the memory may be used."),
        (_sequences(share * whole, 0, each), "the weights take memory, too."),
        (_sequences(whole, 0, each), "the weights take memory, and only a share of it is usable."),
        (_sequences(share * other, weights, each), f"a GB is 10^9 bytes, a GiB 2^30. The sheet says {unit}."),
        (
            _sequences(share * (whole - weights), 0, each),
            "the share is of the whole memory, not of what weights leave.",
        ),
        (_sequences(Fraction(9, 10) * whole, weights, each), "the share is `usable`, not always 0.9."),
        (_sequences(share * whole, weights, each) - 1, "one too few: what fits exactly, fits."),
    ]


def _look_at_fit(
    sequences_that_fit: Callable, amount: float, unit: str, weights: int, each: int, usable: float | None
) -> None:
    memory = f"{amount:g} {unit}"
    share = Fraction(9, 10) if usable is None else Fraction(str(usable))
    given = _given(memory=memory, weight_bytes=weights, sequence_bytes=each, usable=float(share))
    options = {} if usable is None else {"usable": usable}
    got = _asked(sequences_that_fit, given, memory, weights, each, **options)
    right = _sequences(share * _memory(amount, unit), weights, each)
    number = as_number(got, "The number of sequences", given)
    if number == right:
        return
    exact = (share * _memory(amount, unit) - weights) / each
    slips = _fit_slips(amount, unit, weights, each, share)
    fits = any(near(number, value, 1e-12) for value in (exact, float(exact)))
    mistake = next((why for value, why in slips if number == value and value != right), "")
    if fits or number != int(number):
        mistake = "round down: a part of a sequence is none." if exact > 0 else slips[0][1]
    raise wrong(
        "The number of sequences came out wrong.",
        given=given,
        got=number_text(number),
        expected=f"{right:,}",
        mistake=mistake,
    )


def _draw_fit(
    rng: random.Random, unit: str, usable: float | None, amounts: Sequence[int]
) -> tuple[float, str, int, int, float | None]:
    """Memory, weights and sequences of which some fit, and not by a hair; each mistake leads to a number of its own."""
    share = Fraction(9, 10) if usable is None else Fraction(str(usable))
    while True:
        amount = rng.choice(amounts)
        room = share * _memory(amount, unit)
        weights = rng.randrange(10**9, int(room * Fraction(3, 4)))
        each = rng.randrange(2 * 10**7, 4 * 10**8)
        exact = (room - weights) / each
        led_to = [value for value, _ in _fit_slips(amount, unit, weights, each, share) if value != math.floor(exact)]
        if abs(exact - round(exact)) > Fraction(1, 1000) and len(set(led_to)) == len(led_to):
            return amount, unit, weights, each, usable


TWO_DIGITS, THREE_DIGITS = (16, 24, 40, 48, 80), (141, 192)


def _in_gb(sequences_that_fit: Callable, rng: random.Random) -> None:
    for usable, amounts in ((None, TWO_DIGITS), (0.8, THREE_DIGITS)):
        _look_at_fit(sequences_that_fit, *_draw_fit(rng, "GB", usable, amounts))


def _in_gib(sequences_that_fit: Callable, rng: random.Random) -> None:
    for usable, amounts in ((None, THREE_DIGITS), (0.95, TWO_DIGITS)):
        _look_at_fit(sequences_that_fit, *_draw_fit(rng, "GiB", usable, amounts))


def _none_fit(sequences_that_fit: Callable, rng: random.Random) -> None:
    for memory, weights in ((80, 141_107_412_992), (24, rng.randrange(22, 200) * 10**9), (16, 14_000_000_000)):
        _look_at_fit(sequences_that_fit, memory, "GB", weights, rng.randrange(5, 20) * 10**8, None)


def _to_the_byte(sequences_that_fit: Callable, rng: random.Random) -> None:
    each, n = rng.randrange(2 * 10**7, 2 * 10**8), rng.randrange(20, 200)
    for spare in (0, -1):
        _look_at_fit(sequences_that_fit, 80, "GB", 80 * 10**9 - n * each - spare, each, 1)


sequences_that_fit = Check("sequences_that_fit", [_in_gb, _in_gib, _none_fit, _to_the_byte])
