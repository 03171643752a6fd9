"""The blanks of lesson 02: one step with a cache, the work without one, a token's bytes, and the users that fit."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor

from specdec_course.checks import Blank, wrong
from specdec_course.checks.mistakes import Answer, Case, Judge, judged, mistakes
from specdec_course.checks.numbers import as_items


def step(q: Tensor, k: Tensor, v: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One new token in one head: what its query q collects, and the cache with its key and value added.

    q, k, v: [d]. K, V: [n, d], those of the tokens before it. Returns the output [d], and K and V, [n + 1, d] each.
    """
    K, V = torch.cat([K, k[None]]), torch.cat([V, v[None]])
    weights = torch.softmax(K @ q / len(q) ** 0.5, 0)
    return weights @ V, K, V


def tokens_without(prompt: int, new_tokens: int) -> int:
    """How many tokens go through the model, over all passes, to write `new_tokens` after the prompt without a cache."""
    return sum(prompt + i for i in range(new_tokens))


def bytes_per_token(layers: int, kv_heads: int, head_dim: int, bytes_per_number: float) -> float:
    """Bytes of the keys and values that one token leaves in all layers."""
    return 2 * layers * kv_heads * head_dim * bytes_per_number


def users_that_fit(memory: int, weights: int, per_user: int, usable: float) -> int:
    """How many users' caches fit beside the weights in the share `usable` of the memory; sizes in bytes."""
    return max(0, int(usable * memory - weights) // per_user)


def _read_step(value: Any, what: str, given: Any = None) -> list[Tensor]:
    items = None if isinstance(value, Tensor) else as_items(value)
    if items is None or len(items) != 3 or not all(isinstance(item, Tensor) for item in items):
        mistake = "is there a return?" if value is None else ""
        raise wrong(
            "Three tensors are wanted.", given=given, got=repr(value), expected="(output, K, V)", mistake=mistake
        )
    return [item.detach().clone() for item in items]


def _same_step(got: list[Tensor], right: list[Tensor]) -> bool:
    return all(a.shape == b.shape and torch.allclose(a.double(), b.double(), atol=1e-9) for a, b in zip(got, right))


def _show_step(value: list[Tensor]) -> str:
    output = ", ".join(f"{x:.4f}" for x in value[0].flatten()[:4])
    shapes = (f"{name} of shape {list(t.shape)}" for name, t in zip(("output", "K", "V"), value))
    return f"{', '.join(shapes)}; output ({output} ...)"


def _step_hint(got: list[Tensor], right: list[Tensor]) -> str:
    for name, a, b in zip(("the output", "K", "V"), got, right):
        if a.shape != b.shape:
            return f"{name} has shape {list(a.shape)}, and {list(b.shape)} is wanted."
        if not torch.allclose(a.double(), b.double(), atol=1e-9):
            return f"{name} is not right; what stands before it is." if name != "the output" else "look at the output."
    return ""


def _attend(q: Tensor, K: Tensor, V: Tensor, scale: float) -> Tensor:
    return torch.softmax(K @ q / scale, 0) @ V


def _grown(old: Tensor, new: Tensor) -> Tensor:
    return torch.cat([old, new[None]])


_STEP = Judge(
    "The step",
    step,
    mistakes(
        lambda function: function,
        {
            "the new token meets itself as well: add its key and value before you attend.": (
                lambda q, k, v, K, V: (_attend(q, K, V, len(q) ** 0.5), _grown(K, k), _grown(V, v))
            ),
            "the scores are divided by the square root of d.": (
                lambda q, k, v, K, V: (_attend(q, _grown(K, k), _grown(V, v), 1), _grown(K, k), _grown(V, v))
            ),
            "divided by d; it is the square root of d.": (
                lambda q, k, v, K, V: (_attend(q, _grown(K, k), _grown(V, v), len(q)), _grown(K, k), _grown(V, v))
            ),
            "the cache comes back without the new token: the next step will need its key and value.": (
                lambda q, k, v, K, V: (_attend(q, _grown(K, k), _grown(V, v), len(q) ** 0.5), K, V)
            ),
            "the new key and value stand first; tokens are kept in order.": (
                lambda q, k, v, K, V: (
                    _attend(q, _grown(K, k), _grown(V, v), len(q) ** 0.5),
                    torch.cat([k[None], K]),
                    torch.cat([v[None], V]),
                )
            ),
            "keys and values are exchanged.": (
                lambda q, k, v, K, V: (
                    _attend(q, _grown(V, v), _grown(K, k), len(q) ** 0.5),
                    _grown(K, k),
                    _grown(V, v),
                )
            ),
        },
    ),
    Answer(_read_step, _same_step, _show_step, _step_hint),
    given=lambda q, k, v, K, V: f"q, k, v of {len(q)} numbers; K and V of {len(K)} tokens",
)


def _caches(rng: random.Random, *lengths: int) -> list[Case]:
    source, d = torch.Generator().manual_seed(rng.randrange(10**6)), rng.choice([4, 8, 16])

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    return [(draw(d), draw(d), draw(d), draw(n, d), draw(n, d)) for n in lengths]


_TOKENS = Judge(
    "The number of tokens that go through the model",
    tokens_without,
    mistakes(
        lambda formula: lambda p, n: formula(p, n),
        {
            "that is with a cache: without one, every pass runs the whole text again.": lambda p, n: p + n - 1,
            "those are the tokens of the finished text; without a cache most of them run many times.": lambda p, n: (
                p + n
            ),
            "the first pass runs the prompt alone; its result is the first new token.": (
                lambda p, n: sum(p + i for i in range(1, n + 1))
            ),
            "one pass too many: the last new token is written, and no pass runs it.": (
                lambda p, n: sum(p + i for i in range(n + 1))
            ),
            "one pass too few: each new token takes a pass.": lambda p, n: sum(p + i for i in range(n - 1)),
            "the text grows: each pass runs one token more than the last.": lambda p, n: n * p,
            "that is the number of forward passes; each of them runs many tokens, and those are counted.": (
                lambda p, n: n
            ),
            "the prompt runs again, too, in every pass.": lambda p, n: p + sum(range(1, n)),
        },
    ),
)

_BYTES = Judge(
    "The bytes of a token",
    bytes_per_token,
    mistakes(
        lambda formula: lambda *sizes: formula(*sizes),
        {
            "a key *and* a value: two vectors.": lambda L, h, d, p: L * h * d * p,
            "each number takes bytes_per_number bytes.": lambda L, h, d, p: 2 * L * h * d,
            "every layer keeps its own.": lambda L, h, d, p: 2 * h * d * p,
            "every key/value head keeps its own.": lambda L, h, d, p: 2 * L * d * p,
            "a key is a vector of head_dim numbers.": lambda L, h, d, p: 2 * L * h * p,
            "the 2 stands for key and value; a number need not take 2 bytes.": lambda L, h, d, p: 4 * L * h * d,
        },
    ),
)

_USERS = Judge(
    "The number of users",
    users_that_fit,
    mistakes(
        lambda formula: lambda *sizes: formula(*sizes),
        {
            "weights that do not fit leave room for 0 users, not for fewer.": lambda m, w, u, s: int(s * m - w) // u,
            "all of the memory is taken there: `usable` is the share that may be.": lambda m, w, u, s: (m - w) // u,
            "`usable` is a share of all the memory, not of what the weights leave.": (
                lambda m, w, u, s: int(s * (m - w)) // u
            ),
            "the weights take memory, too.": lambda m, w, u, s: int(s * m) // u,
            "a user who fits only in part does not fit: round down, to a whole number.": (
                lambda m, w, u, s: max(0.0, (s * m - w) / u)
            ),
            "rounded to the nearest: a user who fits only in part does not fit.": (
                lambda m, w, u, s: max(0, round((s * m - w) / u))
            ),
            "rounded up: a user who fits only in part does not fit.": (
                lambda m, w, u, s: max(0, math.ceil((s * m - w) / u))
            ),
        },
    ),
)


def _sizes(rng: random.Random, bytes_per_number: float) -> Case:
    return rng.randrange(20, 90), rng.choice([2, 4, 8]), rng.choice([64, 96, 128]), bytes_per_number


def _machines(rng: random.Random, *users: float) -> list[Case]:
    """Machines on which so many users fit; with a negative number not even the weights do."""
    cases: list[Case] = []
    for n in users:
        per_user, weights, usable = rng.randrange(10**8, 10**9), rng.randrange(10**10, 10**11), rng.choice([0.8, 0.85])
        cases.append((int((weights + n * per_user) / usable), weights, per_user, usable))
    return cases


BLANKS = {
    "step": Blank(
        judged("step", _STEP, some_tokens=lambda rng: _caches(rng, 5, 9), one_token=lambda rng: _caches(rng, 1)), step
    ),
    "tokens": Blank(
        judged(
            "tokens",
            _TOKENS,
            long_text=lambda rng: [(rng.randrange(5, 90), rng.randrange(10, 300)) for _ in range(2)],
            one_token=lambda rng: [(rng.randrange(5, 90), 1)],
        ),
        tokens_without,
    ),
    "bytes": Blank(
        judged("bytes", _BYTES, drawn=lambda rng: [_sizes(rng, size) for size in (4, 1, 0.5, 2)]), bytes_per_token
    ),
    "users": Blank(
        judged(
            "users",
            _USERS,
            some_fit=lambda rng: _machines(rng, rng.randrange(5, 50) + 0.7, rng.randrange(50, 300) + 0.3),
            none_fit=lambda rng: _machines(rng, 0.5, -3.5),
        ),
        users_that_fit,
    ),
}
