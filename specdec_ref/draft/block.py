"""A block drafter: one pass over the pending token and masked places gives the whole draft (Chen et al. 2026, DFlash).

An autoregressive draft takes a pass per token, and on a small target the passes are what it costs. Here the places of
a round are filled in one: the block is [pending token, MASK, MASK, ...], each row says the token after it, and all rows
see each other. What the draft knows of the text comes from the target: its hidden states of several layers are
projected once per token, and are the keys and values of every layer of the draft.

Guessed side by side, the places don't know what was drawn at the others. Two small parts of DSpark repair some of that:
a *Markov bias* adds to each place's logits what the token before it says of it, so the draft is walked left to right,
a small product per token; and a *confidence head* estimates before each draw whether the token will be accepted.

Sources: DFlash (arXiv 2602.06036), DSpark (arXiv 2607.05147). Different here: every place has a direct, low-rank path
from the target's last state and the pending token, where theirs have to learn to attend first; the first row is the
pending token's own, so that g places take g rows; the Markov bias reads the target's embedding of the token before, so
it is there for tokens outside the draft's vocabulary too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_ref.cache.dense import DenseCache
from specdec_ref.draft.places import PlacesDrafter, PlacesHead
from specdec_ref.draft.shipped import shipped_draft
from specdec_ref.draft.weights import read_kind
from specdec_ref.interfaces import Features
from specdec_ref.models.config import LlamaConfig
from specdec_ref.models.llama import Layer, Llama, rotate


@dataclass(frozen=True)
class BlockConfig:
    """Sizes of a block drafter.

    layers: whose hidden states it reads, as `interfaces.TreeLM` counts them. depth: layers of its own. path_rank and
    markov_rank: of the direct path and of the Markov bias.
    """

    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    layers: tuple[int, ...]
    n_tokens: int
    n_places: int
    depth: int
    path_rank: int
    markov_rank: int

    def of_a_layer(self) -> LlamaConfig:
        """What `models.llama.Layer` is made from."""
        return LlamaConfig(
            vocab_size=self.n_tokens,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            n_layers=self.depth,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            max_context=self.n_places,
            rope_theta=1.0,
            rms_norm_eps=self.rms_norm_eps,
            tied_head=True,
        )


class BlockHead(PlacesHead):
    """The drafter's own weights; embedding and output rows are the target's.

    | weight | shape | |
    |---|---|---|
    | fuse, context_norm | `[hidden, layers * hidden]`, `[hidden]` | states of several layers become one |
    | mask | `[hidden]` | the input of every place but the first |
    | token_norm | `[hidden]` | for embeddings that path and Markov bias read |
    | path_in, path_out | `[rank, 2 hidden]`, `[places * hidden, rank]` | the direct path into each place |
    | layers | `models.llama.Layer` each | |
    | norm | `[hidden]` | before the output rows |
    | markov_in, markov_out | `[rank, hidden]`, `[n_tokens, rank]` | the bias by the token before |
    | confidence | `[1, hidden + markov_rank]` and a bias | |
    | tokens | `[n_tokens]` | the target's id of each token that can be drafted, rising |
    """

    config: BlockConfig

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config, c = config, config
        h = c.hidden_size
        self.fuse = nn.Linear(len(c.layers) * h, h, bias=False)
        self.context_norm = nn.RMSNorm(h, c.rms_norm_eps)
        self.mask = nn.Parameter(torch.zeros(h))
        self.token_norm = nn.RMSNorm(h, c.rms_norm_eps)
        self.path_in = nn.Linear(2 * h, c.path_rank, bias=False)
        self.path_out = nn.Linear(c.path_rank, c.n_places * h, bias=False)
        self.layers = nn.ModuleList(Layer(c.of_a_layer()) for _ in range(c.depth))
        self.norm = nn.RMSNorm(h, c.rms_norm_eps)
        self.markov_in = nn.Linear(h, c.markov_rank, bias=False)
        self.markov_out = nn.Linear(c.markov_rank, c.n_tokens, bias=False)
        self.confidence = nn.Linear(h + c.markov_rank, 1)
        self.register_buffer("tokens", torch.arange(c.n_tokens))

    def context(self, states: Sequence[Tensor]) -> Tensor:
        """States `[..., hidden]` of each layer -> one `[..., hidden]`, which keys and values are made from.

        Each is divided by its root mean square first: later layers have far larger states than early ones.
        """
        h = self.config.hidden_size
        scaled = [F.rms_norm(s, (h,), eps=self.config.rms_norm_eps) for s in states]
        context: Tensor = self.context_norm(self.fuse(torch.cat(scaled, -1)))
        return context

    def keys_values(self, layer: Any, context: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `[..., n, kv, d]` of a layer, of the text's `context` `[..., n, hidden]`."""
        c = self.config
        weight = layer.qkv.weight[c.n_heads * c.head_dim :]
        keys, values = F.linear(context, weight).unflatten(-1, (2, c.n_kv_heads, c.head_dim)).unbind(-3)
        return rotate(keys, cos, sin), values

    def inputs(self, last: Tensor, pending: Tensor) -> Tensor:
        """The block's rows `[..., places, hidden]`: of the last token's context and the pending token's embedding,
        both `[..., hidden]`."""
        places = self.config.n_places
        masks = self.mask.expand(*pending.shape[:-1], places - 1, -1)
        path = self.path_out(self.path_in(torch.cat([last, self.token_norm(pending)], -1)))
        return torch.cat([pending[..., None, :], masks], -2) + path.unflatten(-1, (places, -1))

    def before(self, embedded: Tensor) -> Tensor:
        """What Markov bias and confidence know of the token before, `[..., rank]`, from its embedding."""
        known: Tensor = self.markov_in(self.token_norm(embedded))
        return known

    def sureness(self, state: Tensor, known: Tensor) -> Tensor:
        """The logit of the probability `[...]` that the place is accepted: its state after `norm`, `[..., hidden]`."""
        logit: Tensor = self.confidence(torch.cat([state, known.to(state.dtype)], -1))
        return logit[..., 0]


class BlockDrafter(PlacesDrafter[BlockHead]):
    """Drafts with a `BlockHead`; see `PlacesDrafter`.

    The cache holds keys and values of committed tokens, all from the target's states: what the block's own rows write
    is dropped as soon as its pass is over. The confidence of a place is read before the place is drawn, from the pass
    and the token before, so cutting by it is exact. All places are computed whatever gamma is: rows see each other, so
    a shorter block would be another one than it was trained on.
    """

    def __init__(self, head: BlockHead, stop_below: float = 0.0, target: str | None = None) -> None:
        super().__init__(head, stop_below, target)
        self.layers = head.config.layers
        self._cache: DenseCache | None = None
        self._last = torch.empty(0)  # the newest token's context, [1, hidden]

    @classmethod
    def read(cls, path: Path | str | None = None, stop_below: float = 0.0) -> BlockDrafter:
        """The drafter of a file that `specdec train-draft run` wrote; it refuses any other target.

        path: None is the one for SmolLM2-135M-Instruct that comes with the package.
        """
        found = shipped_draft("block") if path is None else Path(path)
        tensors, about = read_kind(found, "block", "a block drafter")
        head = BlockHead(BlockConfig(**about["sizes"]))
        head.load_state_dict(tensors)
        return cls(head, stop_below, about["target"])

    @property
    def cache(self) -> DenseCache:
        """The drafter's cache, of one that `begin` returned. Raises RuntimeError for any other."""
        if self._cache is None:
            raise RuntimeError("this drafter has no cache yet: begin(target, sampling, capacity) returns one that has")
        return self._cache

    def commit(self, tokens: Sequence[int], features: Features | None = None) -> None:
        """Take in the target's new states: each token's keys and values are made once."""
        if features is None:
            return
        model, head, cache = self._model, self._head, self.cache
        assert model is not None
        context = head.context(features)
        cache.reserve(len(context))
        at = slice(cache.length, cache.length + len(context))
        for i, layer in enumerate(head.layers):
            keys, values = head.keys_values(layer, context, model.cos[at], model.sin[at])
            cache.append(i, keys.transpose(0, 1), values.transpose(0, 1))
        cache.advance(len(context))
        self._last = context[-1:]

    def _start(self, target: Llama, capacity: int) -> None:
        c = self.head.config
        room = capacity + c.n_places  # a block may reach beyond the last token
        self._cache = DenseCache(c.depth, c.n_kv_heads, c.head_dim, room, target.dtype, target.device)
        self._last = self._rows.new_empty(0, c.hidden_size)

    def _states(self, tokens: Sequence[int]) -> Tensor:
        model = self._model
        if not len(self._last) or model is None:
            return self._last
        x, known = self._head.inputs(self._last, self._embedded(tokens[-1]))[0], self.cache.length
        at = torch.arange(known, known + len(x), device=x.device).clamp(max=len(model.cos) - 1)
        for i, layer in enumerate(self._head.layers):  # no mask: rows see all rows; the cache is not advanced
            x = layer(x, model.cos[at], model.sin[at], None, self.cache, i)
        states: Tensor = self._head.norm(x)
        return states

    def _place(self, state: Tensor, before: int) -> tuple[Tensor, float]:
        known = self._head.before(self._embedded(before))
        logits = F.linear(state, self._rows) + self._head.markov_out(known)
        return logits, float(torch.sigmoid(self._head.sureness(state, known).float()))

    def _embedded(self, token: int) -> Tensor:
        """The target's embedding of a token, `[1, hidden]`."""
        assert self._model is not None
        embedded: Tensor = self._model.embed(torch.tensor([token], device=self._model.device))
        return embedded
