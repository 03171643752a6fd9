"""Medusa heads draft: one small block per place on the target's last hidden state (Cai et al. 2024).

The target's head turns its last hidden state into the next token. Head k turns the same state into the token k places
further on, through a residual block of its own and the target's output rows. That is one matrix per place and no cache.
What it can't know: the pending token, which was chosen after that state, and what was drawn at other places. So each
place is drawn from its own marginal distribution, and the proposal carries that one.

Source: Medusa (arXiv 2401.10774), Medusa-1: the target is frozen. Different here: the heads share the target's output
rows, of frequent tokens only, where theirs have rows of their own; and the draft is a chain, not a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_ref.draft.places import PlacesDrafter, PlacesHead
from specdec_ref.draft.shipped import shipped_draft
from specdec_ref.draft.weights import read_kind
from specdec_ref.interfaces import Features
from specdec_ref.models.llama import Llama


@dataclass(frozen=True)
class MedusaConfig:
    """Sizes of a set of heads. layers: the number of the target's last layer, whose state is read after its norm."""

    hidden_size: int
    layers: tuple[int, ...]
    n_tokens: int
    n_places: int


class MedusaHeads(PlacesHead):
    """The heads' own weights; output rows are the target's.

    | weight | shape | |
    |---|---|---|
    | blocks | `[hidden, hidden]` and `[hidden]`, per place | x + SiLU(W x + b) |
    | tokens | `[n_tokens]` | the target's id of each token that can be drafted, rising |
    """

    config: MedusaConfig

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(nn.Linear(config.hidden_size, config.hidden_size) for _ in range(config.n_places))
        self.register_buffer("tokens", torch.arange(config.n_tokens))

    def place(self, k: int, state: Tensor) -> Tensor:
        """What the output rows are given at place k = 0, 1, ...: the target's last state, `[..., hidden]` both."""
        return state + F.silu(self.blocks[k](state))


class MedusaDrafter(PlacesDrafter[MedusaHeads]):
    """Drafts with `MedusaHeads`; see `PlacesDrafter`.

    A place's confidence is the largest probability of its marginal, known before anything is drawn.
    """

    def __init__(self, head: MedusaHeads, stop_below: float = 0.0, target: str | None = None) -> None:
        super().__init__(head, stop_below, target)
        self.layers = head.config.layers
        self._last = torch.empty(0)  # the newest state, [1, hidden]

    @classmethod
    def read(cls, path: Path | str | None = None, stop_below: float = 0.0) -> MedusaDrafter:
        """The drafter of a file that `specdec train-draft run` wrote; it refuses any other target.

        path: None is the one for SmolLM2-135M-Instruct that comes with the package.
        """
        found = shipped_draft("medusa") if path is None else Path(path)
        tensors, about = read_kind(found, "medusa", "a set of Medusa heads")
        head = MedusaHeads(MedusaConfig(**about["sizes"]))
        head.load_state_dict(tensors)
        return cls(head, stop_below, about["target"])

    def commit(self, tokens: Sequence[int], features: Features | None = None) -> None:
        """Keep the target's newest state."""
        if features is not None:
            self._last = features[0][-1:]

    def _start(self, target: Llama, capacity: int) -> None:
        self._last = self._rows.new_empty(0, self.head.config.hidden_size)

    def _states(self, tokens: Sequence[int]) -> Tensor:
        if not len(self._last):
            return self._last
        return torch.cat([self._head.place(k, self._last) for k in range(self.head.config.n_places)])

    def _place(self, state: Tensor, before: int) -> tuple[Tensor, float]:
        logits = F.linear(state, self._rows)
        return logits, float(torch.softmax(logits.float(), -1).amax())
