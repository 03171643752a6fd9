"""Training of a block drafter: at random places of the target's text a block each, which sees what stands before it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_ref.draft.block import BlockConfig, BlockHead
from specdec_ref.models.llama import Llama, rotate
from specdec_ref.train.batches import Batch, Teacher, pick
from specdec_ref.train.heads import HeadTraining, embed
from specdec_ref.train.losses import acceptance, draft_loss

PATH_RANK = 256


def new_block(
    model: Llama,
    tokens: Tensor,
    n_places: int,
    layers: tuple[int, ...] | None = None,
    width: float = 1.0,
    depth: int = 1,
    rank: int = 128,
) -> BlockHead:
    """A block drafter for `model` before training.

    layers: three of the target's if None, those that an EAGLE-style head reads, so that kept states serve both.
    width: the feed-forward part, in multiples of the target's; depth: layers of its own; rank: of the Markov bias.
    """
    c = model.config
    layers = layers or (max(1, c.n_layers // 10), c.n_layers // 2, c.n_layers - 2)
    intermediate = round(width * c.intermediate_size / 32) * 32
    sizes = (c.hidden_size, intermediate, c.n_heads, c.n_kv_heads, c.head_dim, c.rms_norm_eps)
    head = BlockHead(BlockConfig(*sizes, layers, len(tokens), n_places, depth, min(PATH_RANK, c.hidden_size), rank))
    for weight in head.parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=0.02)
    with torch.no_grad():
        nn.init.normal_(head.path_in.weight, std=(2 * c.hidden_size) ** -0.5)
        nn.init.normal_(head.markov_in.weight, std=c.hidden_size**-0.5)
        head.markov_out.weight.zero_()  # no bias at first
        nn.init.normal_(head.mask, std=float(model.embed.weight.float().std()))
        head.norm.weight.copy_(0.5 * model.norm.weight.float())  # where the target's rows give logits of their size
        head.tokens.copy_(tokens)
    return head


class BlockTraining(HeadTraining):
    """How a block drafter is trained and measured; see `loop.Training`.

    The confidence head learns the acceptance probability at temperature 1, sum min(p, q), by binary cross-entropy; it
    reads the state without a gradient, so it changes nothing in the draft.
    """

    kind = "block"

    def __init__(self, head: BlockHead, decay: float = 4.0) -> None:
        super().__init__(head, head.config.n_places, decay)
        self.layers = head.config.layers

    def visible(self, batch: Batch) -> Tensor:
        """`[b, a, s - 1]`: whether an anchor's block may see the target's state at a position.

        Those up to the anchor exist when the block is drafted. The next ones are its answers.
        """
        return torch.arange(batch.ids.shape[1] - 1) <= batch.anchors[..., None]

    def unroll(self, batch: Batch, model: Llama, n_places: int) -> Iterator[Tensor]:
        """The head's state `[b, a, hidden]` at place 1, 2, ...: all of one pass, over all of the head's places."""
        yield from self.blocks(batch, model).unbind(2)[:n_places]

    def blocks(self, batch: Batch, model: Llama) -> Tensor:
        """The states of all blocks, `[b, a, places, hidden]`."""
        head, c, t = self.module, self.module.config, batch.anchors
        n, group = batch.ids.shape[1] - 1, c.n_heads // c.n_kv_heads
        context = head.context([state[:, :-1] for state in batch.states]).float()  # [b, n, hidden]
        cos, sin = model.cos.float(), model.sin.float()
        x = head.inputs(pick(context, t), embed(model, batch.ids.gather(1, t + 1))).float()  # [b, a, places, hidden]
        at = (t[..., None] + 1 + torch.arange(c.n_places)).clamp(max=len(cos) - 1)  # [b, a, places]
        hidden = ~self.visible(batch)[:, :, None, None, None]  # [b, a, 1, 1, 1, n]
        for layer in head.layers:
            keys, values = head.keys_values(layer, context, cos[:n], sin[:n])  # [b, n, kv, d]
            qkv = layer.qkv(layer.attention_norm(x)).unflatten(-1, (-1, c.head_dim))  # [b, a, places, heads + 2 kv, d]
            qk = rotate(qkv[..., : c.n_heads + c.n_kv_heads, :], cos[at], sin[at])
            q = qk[..., : c.n_heads, :].unflatten(-2, (c.n_kv_heads, group))  # [b, a, places, kv, group, d]
            own_keys, own_values = qk[..., c.n_heads :, :], qkv[..., c.n_heads + c.n_kv_heads :, :]
            text = torch.einsum("bapkgd,bnkd->bapkgn", q, keys.to(q.dtype)).float().masked_fill(hidden, -torch.inf)
            own = torch.einsum("bapkgd,barkd->bapkgr", q, own_keys).float()  # rows see all rows of their block
            share = (torch.cat([text, own], -1) * c.head_dim**-0.5).softmax(-1).to(values.dtype)
            attended = torch.einsum("bapkgn,bnkd->bapkgd", share[..., :n], values)
            attended = attended + torch.einsum("bapkgr,barkd->bapkgd", share[..., n:], own_values.to(values.dtype))
            x = x + layer.out(attended.flatten(-3))
            gate, up = layer.gate_up(layer.mlp_norm(x)).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        return x

    def logits(self, teacher: Teacher, state: Tensor, before: Tensor) -> Tensor:
        """With the Markov bias of the tokens before."""
        head = self.module
        bias: Tensor = head.markov_out(head.before(embed(teacher.model, before)))
        return teacher.logits(head.norm(state)) + bias

    def place_loss(self, teacher: Teacher, state: Tensor, before: Tensor, p: Tensor, blend: float) -> Tensor:
        """The draft's loss, and that of its confidence."""
        head = self.module
        logits = self.logits(teacher, state, before)
        with torch.no_grad():
            kept = acceptance(p, logits.float().softmax(-1)).clamp(max=1)
            seen, known = head.norm(state), head.before(embed(teacher.model, before))
        sureness = head.sureness(seen, known).float()
        return draft_loss(logits, p, blend) + F.binary_cross_entropy_with_logits(sureness, kept, reduction="none")
