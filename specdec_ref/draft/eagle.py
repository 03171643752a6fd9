"""An EAGLE-style head drafts: one decoder layer over the target's hidden states (Li et al. 2024 and 2025).

A language model drafts from token ids alone, and needs many layers to understand them. The target has already done
that work: its hidden state after token t says most of what comes next. The head takes that state together with the
token that was then chosen, t + 1, and guesses t + 2. Where the target has no state yet, in the middle of a draft, the
head goes on from its own output, so it is trained as it drafts: step after step on what it wrote itself.

Sources: EAGLE (arXiv 2401.15077), EAGLE-3 (arXiv 2503.01840): states of three layers, frequent tokens only.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_ref.cache.dense import DenseCache
from specdec_ref.draft.for_target import check_target
from specdec_ref.draft.shipped import shipped_draft
from specdec_ref.draft.weights import read_draft
from specdec_ref.interfaces import CausalLM, Drafter, Features, Proposal
from specdec_ref.kernels.masks import additive
from specdec_ref.models.llama import Llama, causal_mask, rotate
from specdec_ref.sampling import RandomSource, Sampling


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
    tensors, about = read_draft(path)
    if about.get("kind") != "eagle":
        raise ValueError(f"{path} holds a draft of kind {about.get('kind')!r}, not an EAGLE-style head")
    sizes = about["sizes"]
    head = EagleHead(EagleConfig(**sizes | {"layers": tuple(sizes["layers"])}))
    head.load_state_dict(tensors)
    return head, about


class EagleDrafter(Drafter):
    """Drafts with an `EagleHead`, under the same temperature and filters as the target.

    Between rounds the head's cache holds entries made from the target's own states only: those that it made from its
    own output are dropped with each `commit`, and made again from the states that the target's pass has given.
    stop_below: no further token is drawn once the product of the drawn tokens' probabilities is below this. The drawn
        token itself is kept, so its distribution stays what it was.
    target: fingerprint of the model that the head was trained for; None accepts any of its sizes.
    """

    def __init__(self, head: EagleHead, stop_below: float = 0.0, target: str | None = None) -> None:
        if not 0 <= stop_below < 1:
            raise ValueError(f"stop_below is {stop_below}: give a probability from 0 (never stop early) to below 1")
        self.head, self.stop_below, self.target = head, stop_below, target
        self.layers = head.config.layers
        self._model: Llama | None = None
        self._cache: DenseCache | None = None
        self._sampling = Sampling()
        self._known = 0  # entries of the cache that come from the target's states
        self._states = torch.empty(0)  # the target's, fused, not yet taken in: [n, hidden]

    @classmethod
    def read(cls, path: Path | str | None = None, stop_below: float = 0.0) -> EagleDrafter:
        """The drafter of a file that `specdec train-draft run` wrote; it refuses any other target.

        path: None is the head for SmolLM2-135M-Instruct that comes with the package.
        """
        head, about = read_head(shipped_draft("eagle") if path is None else Path(path))
        return cls(head, stop_below, about["target"])

    @property
    def cache(self) -> DenseCache:
        """The head's cache, of a drafter that `begin` returned. Raises RuntimeError for any other."""
        if self._cache is None:
            raise RuntimeError("this drafter has no cache yet: begin(target, sampling, capacity) returns one that has")
        return self._cache

    def check(self, target: CausalLM) -> None:
        """Raises ValueError for a target that the head was not trained for."""
        check_target(target, self.head.config.hidden_size, self.target)

    def begin(self, target: CausalLM, sampling: Sampling, capacity: int) -> EagleDrafter:
        assert isinstance(target, Llama)  # `check` has seen to it
        c = self.head.config
        if self._model is not target:  # once per model: the head in its number format, and the rows that it drafts from
            self._model = target
            self._head = copy.deepcopy(self.head).to(target.device, target.dtype).requires_grad_(False).eval()
            self._rows = output_rows(target, self.head.tokens)
        fresh = copy.copy(self)
        fresh._sampling = sampling
        fresh._cache = DenseCache(1, c.n_kv_heads, c.head_dim, capacity, target.dtype, target.device)
        fresh._known, fresh._states = 0, self._rows.new_empty(0, c.hidden_size)
        return fresh

    def propose(self, tokens: Sequence[int], gamma: int, source: RandomSource) -> Proposal:
        """Up to `gamma` tokens; none where the target has shown no new state, as before a prompt of one token."""
        drafted: list[int] = []
        distributions: list[Tensor] = []
        state, ids, confidence = self._states, list(tokens[self._known + 1 :]), 1.0
        if not len(state):
            return Proposal([])
        self._known += len(state)
        self._states = state[:0]
        while True:
            state = self._step(state, ids)[-1:]  # [1, hidden]
            logits = F.linear(self._head.norm(state), self._rows)  # [1, n_tokens]
            q = self._sampling.probs(self._in_target_ids(logits), [*tokens, *drafted])
            if self._sampling.reads_context and not q.any():  # all that the head knows is forbidden
                break
            drafted.append(source.categorical(q[0]))
            distributions.append(q)
            if len(drafted) == gamma or drafted[-1] in self._sampling.eos:
                break
            confidence *= self._probability(logits, q, drafted[-1])
            if confidence < self.stop_below:
                break
            ids = drafted[-1:]
        return Proposal(drafted, None if self._sampling.greedy or not distributions else torch.cat(distributions))

    def commit(self, tokens: Sequence[int], features: Features | None = None) -> None:
        """Forget the entries of the draft; keep the target's new states for the next round."""
        self.cache.truncate(self._known)
        if features is not None:
            self._states = torch.cat([self._states, self._head.fused(features)])

    def _step(self, state: Tensor, ids: Sequence[int]) -> Tensor:
        """Output states after `state` `[n, hidden]` and the tokens that follow each, `ids` of length n."""
        model, start, n = self._model, self.cache.length, len(state)
        assert model is not None
        at = slice(start, start + n)
        mask = causal_mask(n, start, model.device)
        if mask is not None:
            c = self.head.config
            mask = additive(mask.repeat(c.n_heads // c.n_kv_heads, 1), model.dtype)
        embedded = model.embed(torch.tensor(ids, device=model.device))
        output: Tensor = self._head(state, embedded, model.cos[at], model.sin[at], mask, self.cache)
        return output

    def _in_target_ids(self, logits: Tensor) -> Tensor:
        """`[1, n_tokens]` over the target's ids: what the head does not know has probability 0."""
        assert self._model is not None
        spread = logits.new_full((1, self._model.vocab_size), -torch.inf)
        spread[:, self._head.tokens] = logits
        return spread

    def _probability(self, logits: Tensor, q: Tensor, token: int) -> float:
        """How sure the head was of the token that it drew: its own probability also where the draft is its argmax."""
        if not self._sampling.greedy:
            return float(q[0, token])
        return float(torch.softmax(logits.float(), -1).amax())


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
