"""Training of Medusa heads: each place on its own, from the target's last hidden state."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from specdec_ref.draft.medusa import MedusaConfig, MedusaHeads
from specdec_ref.models.llama import Llama
from specdec_ref.train.batches import Batch, Teacher, pick
from specdec_ref.train.heads import HeadTraining


def new_medusa(model: Llama, tokens: Tensor, n_places: int) -> MedusaHeads:
    """Heads for `model` before training: each begins as the target's own, so it says the token after the state."""
    c = model.config
    heads = MedusaHeads(MedusaConfig(c.hidden_size, (c.n_layers,), len(tokens), n_places))
    with torch.no_grad():
        for weight in heads.parameters():
            nn.init.zeros_(weight)
        heads.tokens.copy_(tokens)
    return heads


class MedusaTraining(HeadTraining):
    """How Medusa heads are trained and measured; see `loop.Training`. They read the last state alone."""

    kind = "medusa"

    def __init__(self, head: MedusaHeads, decay: float = 4.0) -> None:
        super().__init__(head, head.config.n_places, decay)
        self.layers = head.config.layers

    def unroll(self, batch: Batch, model: Llama, n_places: int) -> Iterator[Tensor]:
        """What the output rows are given at place 1, 2, ..., `[b, a, hidden]`."""
        last = pick(batch.states[0], batch.anchors)
        for k in range(n_places):
            yield self.module.place(k, last)

    def logits(self, teacher: Teacher, state: Tensor, before: Tensor) -> Tensor:
        """Each place's own marginal, whatever stands before it."""
        return teacher.logits(state)
