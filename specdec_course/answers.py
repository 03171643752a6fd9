"""Answers to the numbers that lessons ask for: right, or the mistake that leads to what was given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from specdec_course.article.claims import WEIGHTS_70B
from specdec_course.simulate import fit_samples
from specdec_ref.arithmetic import accelerator, fit, kv_bytes, kv_bytes_per_token, model_shape
from specdec_ref.cache import BlockPool


@dataclass(frozen=True)
class Question:
    """A number that is asked for: the `right` one, its `unit`, and the numbers that known `mistakes` lead to.

    counted: whole things are counted, so 2% off is wrong.
    """

    right: float
    unit: str
    mistakes: Mapping[float, str] = field(default_factory=dict)
    counted: bool = False


_chip = accelerator("h100-sxm")
_chips = math.ceil(WEIGHTS_70B / _chip.capacity)
_tokens_per_second = _chip.bandwidth / WEIGHTS_70B
_shape = model_shape("llama-3-70b")
_mha_token = kv_bytes_per_token(model_shape("llama-2-7b"))
_gqa_token = kv_bytes_per_token(_shape)
_chat = kv_bytes(_shape, 8192)
_users = fit(_shape, _chip, 8192, tp=8).sequences
_mla_token = kv_bytes_per_token(model_shape("deepseek-v3"))
_pool = BlockPool(num_blocks=200, block_size=16)
fit_samples(_pool, prompt=100, outputs=[50] * 4)

QUESTIONS = {
    "chips for 70B": Question(
        _chips,
        "chips",
        {1: "140 GB do not fit into 80 GB.", WEIGHTS_70B / _chip.capacity: "chips come whole."},
        counted=True,
    ),
    "70B on those chips": Question(
        _chips * _tokens_per_second,
        "tokens per second",
        {
            _tokens_per_second: "that is a single chip; now each reads only half.",
            _tokens_per_second / 2: "sharing makes it faster, not slower.",
        },
    ),
    "intensity of decode": Question(
        1,
        "FLOP/byte",
        {2: "each weight has two bytes.", 0.5: "a multiplication and an addition are 2 FLOP."},
    ),
    "ridge of an H100": Question(
        _chip.ridge(),
        "FLOP/byte",
        {
            2 * _chip.ridge(): "that is with 1,979 TFLOP/s, a figure that assumes sparsity.",
            1 / _chip.ridge(): "the other way round: operations divided by bytes.",
        },
    ),
    "cache of a Llama-2-7B token": Question(
        _mha_token,
        "bytes",
        {
            _mha_token / 2: "a factor of 2 is missing. Keys *and* values; and 2 bytes in 16 bits.",
            _mha_token / 4: "two factors of 2 are missing: keys and values, and 2 bytes in 16 bits.",
            _mha_token / 32: "every layer has its own keys and values, and so has every head.",
            _mha_token / 128: "each head's key is a vector of 128 numbers.",
        },
    ),
    "cache of a Llama-3-70B token": Question(
        _gqa_token,
        "bytes",
        {
            8 * _gqa_token: "that is with 64 key/value heads, or vectors of 1,024. It has 8 heads, of 128.",
            _gqa_token / 2: "a factor of 2 is missing. Keys *and* values; and 2 bytes in 16 bits.",
        },
    ),
    "cache of a DeepSeek-V3 token": Question(
        _mla_token,
        "bytes",
        {
            2 * _mla_token: "that counts it twice. Keys *and* values are made from the same latent: it is kept once.",
            _mla_token / 2: "a number takes 2 bytes in 16 bits.",
            _mla_token / 61: "each of the 61 layers keeps its own.",
            _mla_token * 512 / 576: "the key of 64 numbers that holds the position is kept as well.",
            128 * _mla_token: "all 128 heads share one latent.",
        },
    ),
    "cache of 8,192 tokens of Llama-3-70B": Question(
        _chat / 1e9,
        "GB",
        {
            _chat / 2**30: "that is in GiB (2^30 bytes). A GB is 10^9 bytes.",
            8 * _chat / 1e9: "that is with a key/value head for each of the 64 query heads.",
            16 * _chat / 1e9: "that is the article's figure: twice what its own formula gives, with 64 heads for 8.",
        },
    ),
    "chats on eight H100s": Question(
        _users,
        "chats",
        {
            (8 * _chip.capacity - _shape.weight_bytes()) // _chat: "a tenth of the memory is kept for other things.",
            int(0.9 * (8 * _chip.capacity - _shape.weight_bytes())) // _chat: (
                "that takes 90% of what the weights leave. Take 90% of all the memory, then subtract the weights."
            ),
            int(0.9 * 8 * _chip.capacity) // _chat: "the weights take memory, too.",
            _users // 8: "that is with a key/value head for each of the 64 query heads.",
            _users + 1: "a last one that fits only in part does not fit: round down.",
        },
        counted=True,
    ),
    "blocks of four samples": Question(
        _pool.num_used,
        "blocks",
        {
            4 * _pool.blocks_for(150): "that is without sharing: four times the blocks of 150 tokens.",
            7 + 4 * 4: "the prompt's own seventh block is free again once every sample has its copy of it.",
            7 + 4 * 3: "the prompt's seventh block is partly filled: each sample writes into one of its own.",
            6 + 4 * 3: "150 tokens take ten blocks, of which six are shared.",
        },
        counted=True,
    ),
}


def check(name: str, given: object) -> str:
    """The reply to a learner's answer: a number, None, or whatever was written instead.

    2% either way is right, but where things are counted.

    Raises KeyError for an unknown question.
    """
    question = QUESTIONS[name]
    if given is None:
        return "Write your number in place of None, and run the cell again."
    number = _as_number(given)
    if number is None:
        return (
            "That is not a number: write a single one, without quotes or commas. 1500, 1.5e3 and 3 * 500 are all right."
        )
    if number == question.right or (not question.counted and _near(number, question.right)):
        return f"Yes: {_text(question.right)} {question.unit}."
    for wrong, why in question.mistakes.items():
        if _near(number, wrong, 0.001 if question.counted else 0.02):
            return f"Not {_text(number)}: {why}"
    if number <= 0:
        return f"Not {_text(number)}: it has to be more than nothing."
    if question.counted and _near(number, question.right, 0.05):
        return f"Not {_text(number)}, but near: they are counted, so it has to be exact."
    if number > question.right:
        return f"Not yet: your number is {_text(number / question.right)} times too large."
    return f"Not yet: your number is {_text(question.right / number)} times too small."


def guess_text(given: object, right: float, unit: str = "") -> str:
    """What came out beside a learner's guess, without a judgement: guesses are there to be wrong.

    given: None where the learner has not guessed yet, as the cell for a guess is written; then it asks for a guess.
        Only what is within 5% is called the same: 1.2 times as fast is not 1.02 times, which is no gain at all.
    """
    number = _as_number(given)
    if given is None:
        side = "no guess yet: write one above and run both cells again"
    elif number is None:
        side = "your guess is not a number"
    elif _near(number, right, 0.05):
        side = "about as you guessed"
    else:
        side = f"you guessed {_text(number)}"
    return f"{_text(right)} {unit}".strip() + f" ({side})"


def _as_number(given: object) -> float | None:
    """`given` as a finite number; None for text, tuples, nan and whatever else is not a single number."""
    if isinstance(given, str):
        return None
    try:
        number = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _text(value: float) -> str:
    """At least three digits, and no exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"


def _near(a: float, b: float, tolerance: float = 0.02) -> bool:
    return abs(a - b) <= tolerance * abs(b)
