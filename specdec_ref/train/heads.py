"""What training and measurement of all drafts over the target's hidden states have in common, place by place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_ref.models.llama import Llama
from specdec_ref.train.batches import Batch, Teacher, pick
from specdec_ref.train.losses import draft_loss, place_weights


class HeadTraining:
    """How a head is trained and measured; see `loop.Training`. A kind of head says how its states are made.

    module: the head, with `config`, `tokens` and `norm`. decay: of the places' weights, see `losses.place_weights`.
    """

    kind: str
    layers: tuple[int, ...] = ()

    def __init__(self, head: Any, n_places: int, decay: float = 4.0) -> None:
        self.module, self.n_places, self.decay = head, n_places, decay

    def unroll(self, batch: Batch, model: Llama, n_places: int) -> Iterator[Tensor]:
        """The head's state `[b, a, hidden]` at place 1, 2, ... of each anchor."""
        raise NotImplementedError

    def logits(self, teacher: Teacher, state: Tensor, before: Tensor) -> Tensor:
        """Logits `[..., n_tokens]` of a place with `state` `[..., hidden]` after the tokens `before` `[...]`."""
        return teacher.logits(self.module.norm(state))

    def place_loss(self, teacher: Teacher, state: Tensor, before: Tensor, p: Tensor, blend: float) -> Tensor:
        """The loss `[n]` of places whose distribution should be `p` `[n, n_tokens]`."""
        return draft_loss(self.logits(teacher, state, before), p, blend)

    def loss(self, batch: Batch, teacher: Teacher, blend: float) -> Tensor:
        """Mean over the anchors' places, late ones weighing less."""
        at, exists = batch.places(self.n_places)
        weights = place_weights(self.n_places, self.decay) * exists  # [b, a, places]
        total = torch.zeros(())
        for k, state in enumerate(self.unroll(batch, teacher.model, self.n_places)):
            chosen = exists[..., k]
            wanted = pick(batch.last, at[..., k])[chosen]  # [n, hidden]
            with torch.no_grad():
                p = teacher.logits(wanted).float().softmax(-1)
            each = self.place_loss(teacher, state[chosen], tokens_before(batch, at[..., k])[chosen], p, blend)
            total = total + (each * weights[..., k][chosen]).sum()
        return total / weights.sum()

    @torch.no_grad()
    def acceptance(self, batch: Batch, teacher: Teacher, n_places: int, temperature: float) -> Tensor:
        """See `loop.Training.acceptance`."""
        at, exists = batch.places(n_places)
        text, out = batch.tokens(at), torch.zeros(at.shape)
        own_id = torch.full((teacher.model.vocab_size,), -1)
        own_id[teacher.vocabulary] = torch.arange(len(teacher.vocabulary))
        log_p = teacher.log_probs_of_text(batch, temperature or 1.0)
        for k, state in enumerate(self.unroll(batch, teacher.model, n_places)):
            token = own_id[text[..., k]]  # -1 where the head does not know it
            logits = self.logits(teacher, state, tokens_before(batch, at[..., k])).float()
            if temperature == 0:
                out[..., k] = (logits.argmax(-1) == token).float()
                continue
            log_q = (logits / temperature).log_softmax(-1).gather(-1, token.clamp(min=0)[..., None])[..., 0]
            ratio = (log_q - log_p.gather(1, at[..., k])).clamp(max=0).exp()
            out[..., k] = ratio * (token >= 0)
        return out * exists

    def tensors(self) -> dict[str, Tensor]:
        """What is stored."""
        return {name: w.detach() for name, w in self.module.state_dict().items()}

    def sizes(self) -> dict[str, Any]:
        """What the head is made again from."""
        return asdict(self.module.config)


def tokens_before(batch: Batch, at: Tensor) -> Tensor:
    """The token before a place, of those at positions `at` `[b, a]`: the pending one, or the text's."""
    return batch.ids.gather(1, at)


def embed(model: Llama, ids: Tensor) -> Tensor:
    """The target's embedding of `ids`, float32, without a gradient."""
    return F.embedding(ids, model.embed.weight.detach()).float()
