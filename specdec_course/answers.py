"""Small numbers that a lesson asks for: is it right, and if not, which mistake leads to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specdec_ref.arithmetic import accelerator, fit, kv_bytes, kv_bytes_per_token, model_shape


@dataclass(frozen=True)
class Question:
    """What is asked for: the `right` number, its `unit`, and numbers that known `mistakes` give, with their reasons."""

    right: float
    unit: str
    mistakes: Mapping[float, str] = field(default_factory=dict)


QUESTIONS: dict[str, Callable[[], Question]] = {}


def _question(name: str) -> Callable[[Callable[[], Question]], Callable[[], Question]]:
    def register(function: Callable[[], Question]) -> Callable[[], Question]:
        QUESTIONS[name] = function
        return function

    return register


def check(name: str, given: Any) -> str:
    """What to say to a learner's number, None or what was written in its place; 2% either way counts as right.

    Raises KeyError for an unknown question.
    """
    question = QUESTIONS[name]()
    if given is None:
        return "Write your number in place of None, and run the cell again."
    try:
        given = math.nan if isinstance(given, str) else float(given)
    except (TypeError, ValueError):
        given = math.nan
    if not math.isfinite(given):
        return "That is no number: write a single one, without quotes or commas. 1500, 1.5e3 and 3 * 500 are all right."
    if _near(given, question.right):
        return f"Yes: {_number(question.right)} {question.unit}."
    for wrong, why in question.mistakes.items():
        if _near(given, wrong):
            return f"Not {_number(given)}: {why}"
    if given <= 0:
        return f"Not {_number(given)}: it has to be more than nothing."
    if given > question.right:
        return f"Not yet: your number is {_number(given / question.right)} times too large."
    return f"Not yet: your number is {_number(question.right / given)} times too small."


def guess_text(given: float, right: float, unit: str = "") -> str:
    """What came out beside a guess, without a judgement: guesses are there to be wrong."""
    side = "about as you guessed" if _near(given, right, 0.25) else f"you guessed {_number(given)}"
    return f"{_number(right)} {unit}".strip() + f" ({side})"


def _number(value: float) -> str:
    """Three digits at least, and no exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"


def _near(a: float, b: float, tolerance: float = 0.02) -> bool:
    return abs(a - b) <= tolerance * abs(b)


WEIGHTS_70B = 70e9 * 2
"""Bytes of 70 billion weights in 16 bit."""


@_question("chips for 70B")
def _chips() -> Question:
    capacity = accelerator("h100-sxm").capacity
    return Question(
        math.ceil(WEIGHTS_70B / capacity),
        "chips",
        {1: "140 GB do not fit into 80 GB.", WEIGHTS_70B / capacity: "chips come whole."},
    )


@_question("70B on those chips")
def _tokens_on_chips() -> Question:
    alone = accelerator("h100-sxm").bandwidth / WEIGHTS_70B
    return Question(
        2 * alone,
        "tokens a second",
        {alone: "that is a single chip; now each reads only half.", alone / 2: "sharing makes it faster, not slower."},
    )


@_question("intensity of decode")
def _intensity() -> Question:
    return Question(
        1, "FLOP/byte", {2: "each weight has two bytes.", 0.5: "a multiplication and an addition are 2 FLOP."}
    )


@_question("ridge of an H100")
def _ridge() -> Question:
    chip = accelerator("h100-sxm")
    return Question(
        chip.ridge(),
        "FLOP/byte",
        {
            2 * chip.ridge(): "that is with 1,979 TFLOP/s, a figure that assumes sparsity.",
            1 / chip.ridge(): "the other way round: operations over bytes.",
        },
    )


@_question("cache of a Llama-2-7B token")
def _llama_2_7b() -> Question:
    right = kv_bytes_per_token(model_shape("llama-2-7b"))
    return Question(
        right,
        "bytes",
        {
            right / 2: "a factor of 2 is missing. Keys *and* values; and 2 bytes in 16 bit.",
            right / 4: "two factors of 2 are missing: keys and values, and 2 bytes in 16 bit.",
            right / 32: "every layer has its own keys and values, and every head.",
            right / 128: "each head's key is a vector of 128 numbers.",
        },
    )


@_question("cache of a Llama-3-70B token")
def _llama_3_70b() -> Question:
    right = kv_bytes_per_token(model_shape("llama-3-70b"))
    return Question(
        right,
        "bytes",
        {
            8 * right: "that is with 64 key/value heads, or vectors of 1,024. It has 8, of 128.",
            right / 2: "a factor of 2 is missing. Keys *and* values; and 2 bytes in 16 bit.",
        },
    )


@_question("cache of 8,192 tokens of Llama-3-70B")
def _chat() -> Question:
    right = kv_bytes(model_shape("llama-3-70b"), 8192) / 1e9
    return Question(
        right,
        "GB",
        {
            right * 1e9 / 2**30: "that is in GiB (2^30 bytes). A GB is 10^9 bytes.",
            8 * right: "that is with a key/value head for each of the 64 query heads.",
            16 * right: "that is the article's figure: twice what its own formula gives, with 64 heads for 8.",
        },
    )


@_question("chats on eight H100s")
def _chats() -> Question:
    shape, chip = model_shape("llama-3-70b"), accelerator("h100-sxm")
    right = fit(shape, chip, 8192, tp=8).sequences
    one = kv_bytes(shape, 8192)
    return Question(
        right,
        "chats",
        {
            (8 * chip.capacity - shape.weight_bytes()) // one: "a tenth of the memory is kept for other things.",
            int(0.9 * 8 * chip.capacity) // one: "the weights take memory, too.",
            right // 8: "that is with a key/value head for each of the 64 query heads.",
        },
    )
