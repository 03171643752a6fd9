"""Prompts for training data: thousands of our own, over many kinds, in a fixed order that a seed decides.

Each prompt belongs to one split: "train"; "held", a share of every trained kind that is never trained on; or
"unseen", kinds that are never trained on at all, with fillers of their own.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specdec_ref.prompts import prompts as course_prompts
from specdec_ref.train.grammar import Grammar

Split = Literal["train", "held", "unseen"]
FOLDERS: dict[str, Path] = {name: Path(__file__).parent / "texts" / name for name in ("trained", "unseen")}
HELD_SHARE = 0.05
PER_KIND = 1_500
"""Prompts of each trained kind, held-out ones included."""
PER_UNSEEN_KIND = 48
SPEAKERS = ("user", "assistant")
IN_A_ROW = 400
"""Duplicates in a row after which a kind counts as exhausted."""


@dataclass(frozen=True)
class TrainingPrompt:
    """A conversation that ends with the user's message, and what may be done with it."""

    id: str
    kind: str
    split: Split
    turns: tuple[str, ...]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns as a chat template takes them: user, assistant, user."""
        return [{"role": SPEAKERS[i % 2], "content": turn} for i, turn in enumerate(self.turns)]


def kinds(folder: str) -> list[str]:
    """The kinds of prompts in `folder`, "trained" or "unseen"."""
    return sorted(file.stem for file in FOLDERS[folder].glob("*.txt"))


def build_prompts(
    seed: int = 0, per_kind: int = PER_KIND, per_unseen_kind: int = PER_UNSEEN_KIND
) -> list[TrainingPrompt]:
    """All prompts, without duplicates: first those that drafts are measured on, then the training prompts, shuffled.

    The same seed gives the same prompts. A kind whose grammar has fewer gives fewer.
    """
    taken: set[tuple[str, ...]] = {(p.user,) for p in course_prompts()}
    measured, trained = list[TrainingPrompt](), list[TrainingPrompt]()
    for kind in kinds("unseen"):
        texts = _texts("unseen", kind, per_unseen_kind, seed, taken)
        measured += [TrainingPrompt(f"{kind}-{i}", kind, "unseen", turns) for i, turns in enumerate(texts)]
    for kind in kinds("trained"):
        texts = _texts("trained", kind, per_kind, seed, taken)
        n_held = max(1, round(HELD_SHARE * len(texts)))
        for i, turns in enumerate(texts):
            held = i < n_held
            prompt = TrainingPrompt(f"{kind}-{i}", kind, "held" if held else "train", turns)
            (measured if held else trained).append(prompt)
    random.Random(f"{seed} order").shuffle(trained)
    return measured + trained


def digest(prompts: Sequence[TrainingPrompt]) -> str:
    """Hex sha256 of prompts and their order: data made with other texts is not continued."""
    return hashlib.sha256(repr([(p.id, p.split, p.turns) for p in prompts]).encode()).hexdigest()


def _texts(folder: str, kind: str, n: int, seed: int, taken: set[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Up to `n` different conversations of a kind, in the order in which they were drawn."""
    files = [*sorted((FOLDERS[folder] / "common").glob("*.txt")), FOLDERS[folder] / f"{kind}.txt"]
    grammar, rng = Grammar(files), random.Random(f"{seed} {kind}")
    found: dict[tuple[str, ...], None] = {}
    in_a_row = 0
    while len(found) < n and in_a_row < IN_A_ROW:
        turns = tuple(turn.strip() for turn in grammar.expand("prompt", rng).split(" >> "))
        in_a_row = in_a_row + 1 if turns in found or turns in taken else 0
        if turns not in taken:
            found[turns] = None
    return list(found)
