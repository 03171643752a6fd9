"""The blanks of lesson 00: guessing by lookup, and what one round yields."""

from __future__ import annotations

import random
from collections.abc import Sequence

from specdec_course.checks import Blank
from specdec_course.checks.mistakes import Case, Judge, judged, mistakes
from specdec_course.checks.tokens import TOKENS


def lookup(tokens: list[int], gamma: int) -> list[int]:
    """Up to gamma guesses: what followed the last two tokens where they last stood before; [] if they never did."""
    for i in range(len(tokens) - 3, -1, -1):
        if tokens[i : i + 2] == tokens[-2:]:
            return tokens[i + 2 : i + 2 + gamma]
    return []


def round_tokens(guesses: list[int], choices: list[int]) -> list[int]:
    """The tokens that a round adds to the text: the right guesses up to the first wrong one, and one of the model's.

    choices: the model's own token for the place of each guess, and for the place after the last; one pass gives all.
    """
    kept = 0
    while kept < len(guesses) and guesses[kept] == choices[kept]:
        kept += 1
    return [*guesses[:kept], choices[kept]]


def _first(tokens: list[int], gamma: int) -> list[int]:
    for i in range(len(tokens) - 2):
        if tokens[i : i + 2] == tokens[-2:]:
            return tokens[i + 2 : i + 2 + gamma]
    return []


def _at(start: int, tokens: list[int], gamma: int) -> list[int]:
    """`lookup`, but for the place in the earlier text at which the guesses start."""
    for i in range(len(tokens) - 3, -1, -1):
        if tokens[i : i + 2] == tokens[-2:]:
            return tokens[i + start : i + start + gamma]
    return []


def _between(first: int, last: int, tokens: list[int], gamma: int) -> list[int]:
    """`lookup`, but for the places at which it looks: from `last` before the end down to `first`."""
    for i in range(len(tokens) - last, first - 1, -1):
        if tokens[i : i + 2] == tokens[-2:]:
            return tokens[i + 2 : i + 2 + gamma]
    return []


def _one_token(tokens: list[int], gamma: int) -> list[int]:
    for i in range(len(tokens) - 2, -1, -1):
        if tokens[i] == tokens[-1]:
            return tokens[i + 1 : i + 1 + gamma]
    return []


_LOOKUP = Judge(
    "The guesses",
    lookup,
    mistakes(
        lambda function: function,
        {
            "that is always empty: the last two tokens match themselves at the end, so start the search before them.": (
                lambda tokens, gamma: []
            ),
            "the search ends too early: the two tokens may stand at the very beginning, at place 0.": (
                lambda tokens, gamma: _between(1, 3, tokens, gamma)
            ),
            "the search starts too early: in [5, 5, 5] the last two tokens stood one place before, where the two pairs "
            "share a token.": lambda tokens, gamma: _between(0, 4, tokens, gamma),
            "that is the first place where they stood; the latest is more often right.": _first,
            "that begins with the two tokens themselves: guess what followed them.": (
                lambda tokens, gamma: _at(0, tokens, gamma)
            ),
            "that begins one token too early.": lambda tokens, gamma: _at(1, tokens, gamma),
            "that begins one token too late.": lambda tokens, gamma: _at(3, tokens, gamma),
            "more than gamma guesses: cut them.": lambda tokens, gamma: lookup(tokens, len(tokens)),
            "that compares only the last token: two have to match.": _one_token,
        },
    ),
    TOKENS,
)


def _with_repeat(rng: random.Random) -> list[Case]:
    a, b, *rest = rng.sample(range(10, 100), 12)
    return [
        ([*rest[:4], a, b, *rest[4:8], a, b], 3),
        ([a, b, rest[0], rest[1], a, b, rest[2], rest[3], rest[4], a, b], 2),
        ([a, b, rest[0], a, b], 8),
        ([*rest[:4], a, a, a], 2),
    ]


def _without_repeat(rng: random.Random) -> list[Case]:
    tokens = rng.sample(range(10, 100), 8)
    return [(tokens, 4), ([tokens[-1], *tokens], 4), (tokens[:2], 4)]


def _drop_wrong(guesses: Sequence[int], choices: Sequence[int]) -> list[int]:
    return [g for g, c in zip(guesses, choices) if g == c] + [choices[-1]]


_ROUND = Judge(
    "The tokens of the round",
    round_tokens,
    mistakes(
        lambda function: function,
        {
            "without the extra token: where all guesses are right, the pass has also given the token after them.": (
                lambda guesses, choices: round_tokens(guesses, choices)[: len(guesses)]
            ),
            "the model's own token is missing: the pass has computed it, so every round adds at least one.": (
                lambda guesses, choices: round_tokens(guesses, choices)[:-1]
            ),
            "guesses after the first wrong one must go: the choices there follow a text that is not written.": (
                _drop_wrong
            ),
            "that is all the choices: those after the first wrong guess follow a text that is not written.": (
                lambda guesses, choices: list(choices)
            ),
            "the wrong guess itself is kept: the model's own token stands in its place.": (
                lambda guesses, choices: list(guesses[: len(round_tokens(guesses, choices))])
            ),
        },
    ),
    TOKENS,
)


def _rounds(rng: random.Random, *right: int) -> list[Case]:
    """Rounds of five guesses of which the first `right` ones are; the later ones agree by chance, but for one."""
    cases: list[Case] = []
    for n in right:
        choices = rng.sample(range(10, 100), 6)
        guesses = choices[:5]
        if n < 5:
            guesses[n] = 7
        cases.append((guesses, choices))
    return cases


BLANKS = {
    "lookup": Blank(judged("lookup", _LOOKUP, repeated_text=_with_repeat, new_text=_without_repeat), lookup),
    "round": Blank(
        judged(
            "round",
            _ROUND,
            some_right=lambda rng: _rounds(rng, 2, 3),
            none_right=lambda rng: _rounds(rng, 0),
            all_right=lambda rng: _rounds(rng, 5),
            nothing_guessed=lambda rng: [([], [rng.randrange(100)])],
        ),
        round_tokens,
    ),
}
