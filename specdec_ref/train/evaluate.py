"""Tokens per round over rounds really walked, by kind of prompt.

An average over all places of a text flatters: after a miss the next round begins at a hard place, and easy stretches
are crossed in few rounds. So the rounds are walked along the target's own text, each starting where the last one ended.
At temperature 1 the text was drawn from p, and given the text a draft is kept with probability min(1, q / p): the
walk is then over every way in which the rounds can fall, each with its probability.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdec_ref.train.batches import Batch, Teacher
from specdec_ref.train.shards import Example

Acceptance = Callable[[Batch, int, float], Tensor]
"""batch with all anchors, places, temperature -> the probability that each place is kept, `[b, a, places]`."""


@dataclass
class Walked:
    """Rounds and tokens of one kind of prompts, and how often each place was kept where it was reached."""

    tokens: float = 0.0
    rounds: float = 0.0
    reached: Tensor = field(default_factory=lambda: torch.zeros(0))
    kept: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def tokens_per_round(self) -> float:
        """The target's own token included: 1 is plain decoding."""
        return self.tokens / self.rounds


def walk(kept: Tensor) -> tuple[float, Tensor, Tensor]:
    """Expected number of rounds, and how often place k was reached and kept.

    kept: `[n, places]`; row j, for a round that begins with answer token j to come: the probability that place k is
        kept, given that the places before it were. 0 where there is no token left.
    """
    n, places = kept.shape
    begins = [0.0] * (n + places + 2)  # probability that a round begins with token j to come
    begins[0] = 1.0
    reached, good, rows = torch.zeros(places), torch.zeros(places), kept.tolist()
    for j in range(n):
        if begins[j] == 0:
            continue
        alive = begins[j]
        for k in range(places):
            reached[k] += alive
            good[k] += alive * rows[j][k]
            begins[j + k + 1] += alive * (1 - rows[j][k])  # k kept, and the target's own token
            alive *= rows[j][k]
        begins[j + places + 1] += alive
    return sum(begins[:n]), reached, good


@torch.no_grad()
def evaluate(
    acceptance: Acceptance,
    teacher: Teacher,
    examples: Sequence[Example],
    n_places: int,
    temperature: float,
    batch_size: int = 8,
) -> dict[str, Walked]:
    """`Walked` of each kind over all `examples`, which the target wrote at `temperature`."""
    found: dict[str, Walked] = defaultdict(lambda: Walked(0, 0, torch.zeros(n_places), torch.zeros(n_places)))
    by_length = sorted(examples, key=lambda e: len(e.ids))
    for start in range(0, len(by_length), batch_size):
        part = by_length[start : start + batch_size]
        batch = teacher.batch(part)
        kept = acceptance(batch, n_places, temperature)
        for row, example in enumerate(part):
            rounds, reached, good = walk(kept[row, : example.n_answer])
            kind = found[example.kind]
            kind.tokens += example.n_answer
            kind.rounds += rounds
            kind.reached += reached
            kind.kept += good
    return dict(found)


def mean(found: dict[str, Walked]) -> float:
    """Tokens per round, the plain mean over kinds."""
    return sum(w.tokens_per_round for w in found.values()) / len(found)


def by_place(found: dict[str, Walked]) -> list[float]:
    """How often a place was kept where a round reached it, all kinds together."""
    reached, kept = (sum(getattr(w, name) for w in found.values()) for name in ("reached", "kept"))
    return [round(float(k / r), 3) if r else 0.0 for k, r in zip(kept, reached)]
