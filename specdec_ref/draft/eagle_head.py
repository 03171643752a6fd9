"""An EAGLE-style head: one decoder layer over a target's hidden states, and how it drafts step by step beside one.

Sources: EAGLE (arXiv 2401.15077), EAGLE-3 (arXiv 2503.01840): states of three layers, frequent tokens only.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_ref.cache.dense import DenseCache
from specdec_ref.draft.weights import read_kind
from specdec_ref.interfaces import Features
from specdec_ref.kernels.masks import additive
from specdec_ref.models.llama import Llama, causal_mask, rotate


@dataclass(frozen=True)
class EagleConfig:
    """Sizes of a head. layers: whose hidden states it reads, as `interfaces.TreeLM` counts them."""

    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    layers: tuple[int, ...]
    n_tokens: int


class EagleHead(nn.Module):
    """The head's own weights; embedding and output rows are the target's.

    | weight | shape | |
    |---|---|---|
    | fuse | `[hidden, layers * hidden]` | states of several layers, each divided by its root mean square, become one |
    | token_norm, state_norm | `[hidden]` | norms of the two halves of the input |
    | qkv | `[(heads + 2 kv) * d, 2 hidden]` | queries, keys, values, stacked in this order |
    | out | `[hidden, heads * d]` | |
    | mlp_norm, gate_up, down | as in `models.llama.Layer` | |
    | norm | `[hidden]` | before the output rows |
    | tokens | `[n_tokens]` | the target's id of each token that can be drafted, rising |
    """

    tokens: Tensor

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config, c = config, config
        h, d = c.hidden_size, c.head_dim
        self.fuse = nn.Linear(len(c.layers) * h, h, bias=False)
        self.token_norm = nn.RMSNorm(h, c.rms_norm_eps)
        self.state_norm = nn.RMSNorm(h, c.rms_norm_eps)
        self.qkv = nn.Linear(2 * h, (c.n_heads + 2 * c.n_kv_heads) * d, bias=False)
        self.out = nn.Linear(c.n_heads * d, h, bias=False)
        self.mlp_norm = nn.RMSNorm(h, c.rms_norm_eps)
        self.gate_up = nn.Linear(h, 2 * c.intermediate_size, bias=False)
        self.down = nn.Linear(c.intermediate_size, h, bias=False)
        self.norm = nn.RMSNorm(h, c.rms_norm_eps)
        self.register_buffer("tokens", torch.arange(c.n_tokens))

    def fused(self, states: Sequence[Tensor]) -> Tensor:
        """States `[..., hidden]` of each layer -> one state `[..., hidden]`.

        Later layers have far larger states than early ones: without the division they alone would be seen.
        """
        h = self.config.hidden_size
        fused: Tensor = self.fuse(torch.cat([F.rms_norm(s, (h,), eps=self.config.rms_norm_eps) for s in states], -1))
        return fused

    def projected(self, state: Tensor, embedded: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[n, heads, d]`, keys and values `[n, kv, d]` of states and the tokens after them, both
        `[n, hidden]`."""
        c = self.config
        x = torch.cat([self.token_norm(embedded), self.state_norm(state)], -1)  # [n, 2 hidden]
        qkv = self.qkv(x).unflatten(-1, (-1, c.head_dim))  # [n, heads + 2 kv, d]
        qk = rotate(qkv[..., : c.n_heads + c.n_kv_heads, :], cos, sin)
        return qk[..., : c.n_heads, :], qk[..., c.n_heads :, :], qkv[..., c.n_heads + c.n_kv_heads :, :]

    def finished(self, state: Tensor, attended: Tensor) -> Tensor:
        """The head's output state `[n, hidden]`: attention's answer `[n, heads * d]` and the feed-forward part, added
        to the state."""
        x = state + self.out(attended)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        output: Tensor = x + self.down(F.silu(gate) * up)
        return output

    def forward(
        self, state: Tensor, embedded: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: DenseCache
    ) -> Tensor:
        """`state`, `embedded` `[n, hidden]` of one sequence -> output states `[n, hidden]`; the cache grows by n."""
        c, n = self.config, len(state)
        q, k, v = self.projected(state, embedded, cos, sin)  # [n, heads, d], twice [n, kv, d]
        q = q.transpose(0, 1).reshape(c.n_kv_heads, -1, c.head_dim)  # [kv, heads / kv * n, d]
        cache.reserve(n)
        a = cache.attend(0, q, k.transpose(0, 1), v.transpose(0, 1), mask)  # [kv, heads / kv * n, d]
        cache.advance(n)
        return self.finished(state, a.view(c.n_heads, n, c.head_dim).transpose(0, 1).reshape(n, -1))


def read_head(path: Path) -> tuple[EagleHead, dict[str, Any]]:
    """The head in a file that `specdec train-draft run` wrote, and what it is.

    Raises ValueError for a file that holds none.
    """
    tensors, about = read_kind(path, "eagle", "an EAGLE-style head")
    head = EagleHead(EagleConfig(**about["sizes"]))
    head.load_state_dict(tensors)
    return head, about


class Guess(NamedTuple):
    """What a head says comes next, in its own numbering of tokens.

    state: its output `[1, hidden]`, from which it goes on. logits: `[1, n_tokens]`. best: the largest of them, the
    first of equals; confidence: its softmax.
    """

    state: Tensor
    logits: Tensor
    best: int
    confidence: float


class EagleSteps:
    """A head beside the target whose embedding and output rows it takes."""

    def __init__(self, head: EagleHead, model: Llama) -> None:
        self.head = copy.deepcopy(head).to(model.device, model.dtype).requires_grad_(False).eval()
        self.model = model
        self.rows: Any = output_rows(model, head.tokens)

    def step(self, states: Features | Tensor, ids: Sequence[int], cache: DenseCache) -> Guess:
        """The guess after n states and the token that follows each, `ids`; the cache grows by n.

        states: `[n, hidden]` of each layer that the head reads, or the head's own output.
        Raises IndexError for a token that the target does not have, ValueError where cache or context is full.
        """
        self.check(ids, cache)
        model, start, n = self.model, cache.length, len(ids)
        state = self.head.fused(states) if isinstance(states, tuple) else states
        mask = causal_mask(n, start, model.device)
        if mask is not None:
            group = self.head.config.n_heads // self.head.config.n_kv_heads
            mask = additive(mask.repeat(group, 1), model.dtype)
        at = slice(start, start + n)
        embedded = model.embed(torch.tensor(ids, device=model.device))
        output = self.head(state, embedded, model.cos[at], model.sin[at], mask, cache)[-1:]
        logits = self.logits(output)
        best = int(logits[0].max(-1).indices)
        return Guess(output, logits, best, float(torch.softmax(logits[0].float(), -1)[best]))

    def logits(self, output: Tensor) -> Tensor:
        """Logits `[n, n_tokens]` over the tokens that the head knows, after its output `[n, hidden]`."""
        return F.linear(self.head.norm(output), self.rows)

    def check(self, ids: Sequence[int], cache: DenseCache) -> None:
        """Raises IndexError for a token that the target does not have, ValueError where cache or context is full."""
        if not (min(ids) >= 0 and max(ids) < self.model.vocab_size):
            raise IndexError(f"tokens {list(ids)[:20]} are not all from 0 to {self.model.vocab_size - 1}")
        self.model.check_context(cache.length, len(ids))
        cache.reserve(len(ids))


def output_rows(target: Llama, tokens: Tensor) -> Tensor:
    """The rows of the target's head for `tokens` `[n]`: `[n, hidden]`.

    Raises ValueError where head and embedding differ and the head is packed, so that its rows can't be read.
    """
    tokens = tokens.to(target.device)
    if target.config.tied_head:
        return target.embed.weight[tokens]
    if isinstance(target.head, nn.Linear):
        return target.head.weight[tokens]
    raise ValueError("the target's head is packed: load it in float32, or take a target whose head is its embedding")
