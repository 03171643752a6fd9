"""Training of an EAGLE-style head: unrolled over the places that it will draft, on states that it made itself."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from specdec_ref.draft.eagle_head import EagleConfig, EagleHead
from specdec_ref.models.llama import Llama
from specdec_ref.train.batches import Batch, pick
from specdec_ref.train.heads import HeadTraining, embed


def new_head(model: Llama, tokens: Tensor, layers: tuple[int, ...] | None = None, width: float = 2.0) -> EagleHead:
    """A head for `model` before training. layers: three of the target's if None: early, middle, late.

    width: the feed-forward part, in multiples of the target's.
    """
    c = model.config
    layers = layers or (max(1, c.n_layers // 10), c.n_layers // 2, c.n_layers - 2)
    intermediate = round(width * c.intermediate_size / 32) * 32
    config = EagleConfig(
        c.hidden_size, intermediate, c.n_heads, c.n_kv_heads, c.head_dim, c.rms_norm_eps, layers, len(tokens)
    )
    head = EagleHead(config)
    for weight in head.parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=0.02)
    with torch.no_grad():  # the rows after it are the target's, so its norm is where the logits have their size
        head.norm.weight.copy_(0.5 * model.norm.weight.float())
        head.tokens.copy_(tokens)
    return head


class EagleTraining(HeadTraining):
    """How a head is trained and measured; see `loop.Training`."""

    kind = "eagle"

    def __init__(self, head: EagleHead, n_places: int = 5, decay: float = 4.0) -> None:
        super().__init__(head, n_places, decay)
        self.layers = head.config.layers

    def unroll(self, batch: Batch, model: Llama, n_places: int) -> Iterator[Tensor]:
        """The head's output state `[b, a, hidden]` at place 1, 2, ...

        Its input at place 1 is the target's state at the anchor, afterwards its own output. The token that it is given
        is the text's: a draft counts only as far as it is the text.
        """
        head, c = self.module, self.module.config
        ids, t = batch.ids, batch.anchors
        b, s, a = *ids.shape, t.shape[1]
        group = c.n_heads // c.n_kv_heads
        fused = head.fused(
            [state[:, :-1] for state in batch.states]
        ).float()  # [b, s - 1, hidden], residuals in 32 bits
        cos, sin = model.cos.float(), model.sin.float()
        q_all, keys, values = head.projected(fused, embed(model, ids[:, 1:]), cos[: s - 1], sin[: s - 1])
        keys, values = keys.transpose(1, 2), values.transpose(1, 2)  # [b, kv, s - 1, d]
        seen = torch.arange(s - 1) <= t[..., None]  # [b, a, s - 1]: the target's states up to the anchor
        own_keys, own_values = list[Tensor](), list[Tensor]()
        state, q = pick(fused, t), pick(q_all.flatten(2), t).unflatten(-1, (c.n_heads, c.head_dim))
        for k in range(n_places):
            if k:
                token = ids.gather(1, (t + 1 + k).clamp(max=s - 1))
                place = (t + k).clamp(max=len(cos) - 1)
                q, key, value = head.projected(state, embed(model, token), cos[place], sin[place])
                own_keys.append(key)  # [b, a, kv, d]
                own_values.append(value)
            q = q.unflatten(2, (c.n_kv_heads, group))  # [b, a, kv, group, d]
            scores = torch.einsum("bakgd,bksd->bakgs", q, keys).float()
            scores = scores.masked_fill(~seen[:, :, None, None], -torch.inf)
            own = [torch.einsum("bakgd,bakd->bakg", q, key)[..., None].float() for key in own_keys]
            share = (torch.cat([scores, *own], -1) * c.head_dim**-0.5).softmax(-1).to(values.dtype)
            attended = torch.einsum("bakgs,bksd->bakgd", share[..., : s - 1], values)
            for i, value in enumerate(own_values):
                attended = attended + share[..., s - 1 + i, None] * value[:, :, :, None]
            state = head.finished(state, attended.reshape(b, a, -1))  # [b, a, hidden]
            yield state
