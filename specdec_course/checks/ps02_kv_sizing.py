"""Checks of problem set 02: bytes of a token in the cache, windows, tensor parallelism, how many sequences fit.

The right values are counted one vector, one layer, one sequence at a time, not with the formulas that learners write.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from specdec_course.checks import Check
from specdec_course.checks.mistakes import NUMBER, Judge, Mistake
from specdec_course.checks.numbers import near
from specdec_ref.arithmetic import model_catalogue

Config = dict[str, Any]

BYTES = replace(NUMBER, same=partial(near, tolerance=1e-12))
"""Bytes are counted, so a count that is off by one is wrong; 1e-12 leaves room for floats."""

ENTRIES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")


def _real_config(name: str, entries: tuple[str, ...] = ENTRIES) -> Config:
    config = model_catalogue()[name]["config"]
    return {key: config[key] for key in entries if key in config}


# One token: keys and values of heads.


def _heads(config: Config) -> tuple[int, int, int, int]:
    """Layers, key/value heads, numbers of a head's key, query heads."""
    heads: int = config["num_attention_heads"]
    width: int = config["head_dim"] if config.get("head_dim") else config["hidden_size"] // heads
    return config["num_hidden_layers"], config.get("num_key_value_heads", heads), width, heads


def _token_bytes(config: Config, bytes_per_number: int = 2) -> int:
    layers, kv_heads, head_dim, _ = _heads(config)
    total = 0
    for _layer in range(layers):
        for _head in range(kv_heads):
            for _vector in ("key", "value"):
                total += len(range(head_dim)) * bytes_per_number
    return total


def _formula(formula: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a config, from one of layers L, key/value heads K, head_dim d, query heads H, hidden size w, bytes
    P.
    """
    return lambda config, nbytes=2: formula(*_heads(config), config["hidden_size"], nbytes)


token_bytes = Judge(
    "The bytes of a token",
    _token_bytes,
    [
        Mistake(says, _formula(formula))
        for says, formula in (
            (
                "half of it: a key *and* a value; and bytes_per_number bytes for each number.",
                lambda L, K, d, H, w, P: L * K * d * P,
            ),
            (
                "there is a key and a value for each *key/value* head, not each query head.",
                lambda L, K, d, H, w, P: 2 * L * H * d * P,
            ),
            (
                "the config gives head_dim, and it need not be hidden size / heads.",
                lambda L, K, d, H, w, P: 2 * L * K * (w // H) * P,
            ),
            (
                "key/value heads, not query heads; and head_dim where the config has it.",
                lambda L, K, d, H, w, P: 2 * L * H * (w // H) * P,
            ),
            ("hidden size is as wide as all query heads together.", lambda L, K, d, H, w, P: 2 * L * w * P),
            ("every layer keeps its own keys and values.", lambda L, K, d, H, w, P: 2 * K * d * P),
            ("these are numbers; each takes bytes_per_number bytes.", lambda L, K, d, H, w, P: 2 * L * K * d),
            (
                "a number does not always take 2 bytes: use bytes_per_number.",
                lambda L, K, d, H, w, P: 4 * L * K * d,
            ),
            ("every key/value head keeps its own.", lambda L, K, d, H, w, P: 2 * L * d * P),
            ("a head's key is a vector of head_dim numbers.", lambda L, K, d, H, w, P: 2 * L * K * P),
            ("queries are not kept: keys and values only.", lambda L, K, d, H, w, P: 3 * L * K * d * P),
            (
                "hidden size is divided by the number of *query* heads.",
                lambda L, K, d, H, w, P: 2 * L * K * (w // K) * P,
            ),
        )
    ],
    BYTES,
)


def _drawn_config(rng: random.Random, kv_heads: int | None = None, explicit: bool = False) -> Config:
    """A config of up to 128 query heads; without the entry where `kv_heads` is None, and head_dim if not `explicit`."""
    heads = rng.choice([8, 12, 16, 24, 32, 40, 64, 96, 128])
    head_dim = rng.choice([64, 80, 96, 128, 192])
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


def _every_head_its_own(kv_bytes_per_token: Callable, rng: random.Random) -> None:
    token_bytes(kv_bytes_per_token, [(_drawn_config(rng),), (_drawn_config(rng, kv_heads=0),)])


def _heads_shared(kv_bytes_per_token: Callable, rng: random.Random) -> None:
    real = _real_config(rng.choice(["smollm2-135m", "llama-3-70b", "llama-3.2-1b"]))
    drawn = [_drawn_config(rng, kv_heads) for kv_heads in (rng.choice([2, 4]), 1)]
    token_bytes(kv_bytes_per_token, [(config,) for config in (*drawn, real)])


def _head_dim_given(kv_bytes_per_token: Callable, rng: random.Random) -> None:
    drawn = _drawn_config(rng, rng.choice([0, 1, 2, 4]), explicit=True)
    token_bytes(kv_bytes_per_token, [(drawn,), (_real_config(rng.choice(["qwen3-4b", "qwen3-32b", "gemma-3-27b"])),)])


def _other_formats(kv_bytes_per_token: Callable, rng: random.Random) -> None:
    token_bytes(kv_bytes_per_token, [(_drawn_config(rng, rng.choice([2, 4])), nbytes) for nbytes in (1, 4)])


kv_bytes_per_token = Check("kv_bytes_per_token", [_every_head_its_own, _heads_shared, _head_dim_given, _other_formats])
