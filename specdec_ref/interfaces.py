"""Interfaces between subpackages: what the engine requires of models, caches, drafters and rules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from specdec_ref.sampling import RandomSource, Sampling

Origin = Literal["accepted", "corrected", "bonus", "plain"]

ORIGINS: dict[Origin, str] = {
    "accepted": "drafted, and accepted by the target",
    "corrected": "the target's token after a rejected draft",
    "bonus": "the target's token after drafts that were all accepted; in a tree, after a path down to a leaf",
    "plain": "the target's token in a round in which nothing was drafted",
}
"""Where an emitted token comes from, and what that means."""

Features = tuple[Tensor, ...]
"""Hidden states of the target, `[n, hidden]` for each layer that a drafter asked for."""


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens x_1..x_g, a chain or a tree, and for each the distribution q_i that it was *drawn from*.

    tokens: up to gamma token ids; empty where the drafter has nothing to offer.
    probs: `[g, vocab]`, after every filter; None says that every distribution is one-hot, as for lookup or an argmax
        draft. A drafter that takes the argmax but reports its softmax makes the output wrong: the distribution of an
        argmax is one-hot. Of several children of a token, each carries what it was drawn from given those before it:
        the same q for all where they are drawn with replacement, q without the earlier ones and divided by its sum
        where they are drawn without, one-hot where they are the best few.
    parents: for a tree, the index of each token's parent, a smaller one, or -1 for the last committed token; children
        of one token are tried in the order of their indices. None is a chain.
    match: for lookup, how many last tokens came before at the place that is copied.
    drafter: which of several drafters made it; "" where there is one.
    """

    tokens: list[int]
    probs: Tensor | None = None
    parents: list[int] | None = None
    match: int = 0
    drafter: str = ""

    def __post_init__(self) -> None:
        if self.probs is not None and not hasattr(self.probs, "dim"):
            raise TypeError(f"probs is of type {type(self.probs).__name__}: give a tensor of shape [n_tokens, vocab]")
        if self.probs is not None and (self.probs.dim() != 2 or len(self.probs) != len(self.tokens)):
            raise ValueError(
                f"a proposal of {len(self.tokens)} tokens needs one distribution per token, "
                f"[{len(self.tokens)}, vocab], not probs of shape {list(self.probs.shape)}"
            )

    @property
    def links(self) -> list[int]:
        """The parent of each token, of a chain too; -1 for the last committed token."""
        return list(range(-1, len(self.tokens) - 1)) if self.parents is None else list(self.parents)

    @property
    def depths(self) -> list[int]:
        """How far each token is from the last committed one: 1 for its children, 2 for theirs."""
        depths: list[int] = []
        for parent in self.links:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    @property
    def depth(self) -> int:
        """The length of the longest path; that of a chain is the number of its tokens."""
        return max(self.depths, default=0)

    def children(self, i: int) -> list[int]:
        """The tokens that may follow token i, or the last committed token for i = -1, in the order they are tried."""
        return [child for child, parent in enumerate(self.links) if parent == i]

    def path(self, i: int) -> list[int]:
        """Indices from a child of the last committed token down to token i; empty for i = -1."""
        links, path = self.links, []
        while i >= 0:
            path.append(i)
            i = links[i]
        return path[::-1]

    def up_to(self, depth: int) -> Proposal:
        """The proposal without what lies deeper; whether a token is kept depends on nothing that was drawn."""
        kept = [i for i, d in enumerate(self.depths) if d <= depth]
        if len(kept) == len(self.tokens):
            return self
        new = {-1: -1} | {i: at for at, i in enumerate(kept)}
        probs = None if self.probs is None else self.probs[kept]
        tokens, parents = [self.tokens[i] for i in kept], [new[self.links[i]] for i in kept]
        return replace(self, tokens=tokens, probs=probs, parents=parents)

    def probability(self, i: int, like: Tensor) -> float:
        """q_i(x_i), the probability that the draft gave the token it proposed; rounded to the dtype of `like`."""
        return 1 if self.probs is None else self.probs[i].to(like)[self.tokens[i]].item()

    def distribution(self, i: int, like: Tensor) -> Tensor:
        """q_i over the target's vocabulary: shape, dtype and device of `like` `[vocab]`.

        A draft vocabulary smaller than the target's is q = 0 on the rest.
        """
        q = torch.zeros_like(like)
        if self.probs is None:
            q[self.tokens[i]] = 1
        else:
            q[: self.probs.shape[-1]] = self.probs[i].to(like)
        return q


@dataclass(frozen=True)
class Verdict:
    """A rule's answer: keep `accepted` drafted tokens, then emit `token`.

    origin: "bonus" where nothing was drafted after the last kept token, so that none was rejected there, else
        "corrected".
    path: which drafts of a tree are kept, as indices into the proposal, from the root down; None is the first
        `accepted`.
    Raises ValueError for a path of another length.
    """

    accepted: int
    token: int
    origin: Origin
    path: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.path is not None and len(self.path) != self.accepted:
            raise ValueError(f"a path of {len(self.path)} drafts, and {self.accepted} accepted: they have to agree")

    @property
    def indices(self) -> tuple[int, ...]:
        """Indices of the kept drafts in the proposal."""
        return tuple(range(self.accepted)) if self.path is None else self.path

    def emitted(self, drafted: Sequence[int]) -> list[int]:
        """The round's tokens: the kept drafts and one more."""
        return [*(drafted[i] for i in self.indices), self.token]


Rule = Callable[[Proposal, Tensor, RandomSource], Verdict]
"""proposal, p `[g + 1, vocab]` (row 0: the target's distribution before any draft, row i + 1: after draft i and those
on its path), random source -> verdict."""


class KVCache(Protocol):
    """Keys and values of the tokens that a model has taken in, in order: what the engine asks of them."""

    @property
    def length(self) -> int:
        """Tokens held."""

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens (absolute). Raises ValueError outside 0..self.length."""

    def keep(self, indices: Sequence[int]) -> None:
        """Keep every token before `indices[0]`, and from there on only those at `indices` (absolute, rising).

        The kept entries are compacted, so the cache then holds `indices[0] + len(indices)` tokens. Indices without a
        gap move nothing. Raises ValueError for indices that are empty, do not rise or are not held.
        """


class AttentionCache(KVCache, Protocol):
    """What the reference Llama asks of its cache: room for a pass, attention layer by layer, then the new length."""

    def reserve(self, n_tokens: int) -> None:
        """Make room for `n_tokens` more; where there is none, raise and change nothing."""

    def attend(self, layer: int, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Write n new tokens of one layer, `[n_kv_heads, n, head_dim]`, and attend to them and to all before them.

        q and the result: `[n_kv_heads, rows, head_dim]`; mask: `[rows, length + n]`, see `kernels.attention`.
        """

    def advance(self, n_tokens: int) -> None:
        """Count the `n_tokens` that every layer has just taken in."""


CacheKind = Callable[..., AttentionCache]
"""Makes a cache from (n_layers, n_kv_heads, head_dim, capacity, dtype, device), as `cache.DenseCache` does."""


class Pass(NamedTuple):
    """What a forward pass returns: logits `[n_rows, vocab]`, and hidden states of the layers that were asked for."""

    logits: Tensor
    features: Features


Cache = TypeVar("Cache", bound=KVCache)
"""The class of caches that a model makes and its passes take."""


class Tokenizer(Protocol):
    """The part of the transformers tokenizer interface that is used here."""

    def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""

    def decode(self, token_ids: list[int], /, skip_special_tokens: bool = False) -> str:
        """Text of token ids."""

    def get_vocab(self) -> dict[str, int]:
        """Every token with its id."""


class CausalLM(Protocol[Cache]):
    """A causal language model whose cache can be truncated.

    vocab_size: number of logits per row.
    max_context: most tokens that the cache may hold, None where there is no limit.
    eos_token_ids: ids that end a text; empty where the model has none.
    tokenizer: a transformers tokenizer, or None for a model that works on ids alone.
    """

    vocab_size: int
    max_context: int | None
    eos_token_ids: tuple[int, ...]
    tokenizer: Tokenizer | None

    @property
    def device(self) -> torch.device:
        """Where the token ids have to be."""

    def new_cache(self, capacity: int) -> Cache:
        """An empty cache with room for `capacity` tokens."""

    def forward(self, tokens: Tensor, cache: Cache, rows: slice = slice(None)) -> Tensor:
        """Take in `tokens` `[n]` after what the cache holds; logits `[n_rows, vocab]` of the chosen rows.

        Row i predicts the token after tokens[i]. `rows=slice(0)` asks for no logits (prefill).
        """


class TreeLM(CausalLM[Cache], Protocol[Cache]):
    """A model whose pass also takes trees of tokens, and shows hidden states."""

    def forward_pass(
        self,
        tokens: Tensor,
        cache: Cache,
        rows: slice = slice(None),
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        layers: Sequence[int] = (),
    ) -> Pass:
        """As `forward`, for tokens that need not be a chain, with hidden states on request.

        positions: `[n]`, the place of each token in the text; None counts on from the cache's length.
        mask: `[n, m]`, m >= n, over the last m tokens, cached and new: True where new token i sees token j (itself
            included). Every token sees all cached ones before these. None is a chain: each sees the new tokens up to
            itself.
        layers: whose hidden states to return, as transformers counts them: 0 is the embedding, i the output of layer
            i, the last one after the final norm.
        """


def check_model(model: Any) -> None:
    """Raises TypeError if `model` lacks a member of `CausalLM`; the message says how to wrap a transformers model."""
    parts = (*CausalLM.__annotations__, "device", "new_cache", "forward")
    missing = [name for name in parts if not hasattr(model, name)]
    if missing:
        raise TypeError(
            f"{type(model).__name__} is no model for this package (it has no {missing[0]}): give what load_model(name) "
            "returns, or HuggingFaceModel(model, tokenizer) around a transformers model"
        )


class Drafter:
    """Base class of all drafters. A drafter without state only needs to implement `propose`.

    The engine calls, for each generation: `begin` once, then `propose` and `commit` alternately, and finally `end`.
    layers: hidden states of the target that `commit` is to be handed, by layer; empty for a drafter that needs none.
    nodes: for a drafter of trees the most tokens in a proposal, for which the target's cache gets room; 0 says that it
        proposes chains. See `propose`.
    draws: False for a drafter whose proposal follows from `tokens` alone: it may be looked at, and cut.
    """

    layers: tuple[int, ...] = ()
    nodes: int = 0
    draws: bool = True

    def check(self, target: CausalLM) -> None:
        """Raises ValueError where this drafter's tokens are not the target's."""

    def begin(self, target: CausalLM, sampling: Sampling, capacity: int) -> Drafter:
        """A drafter for one sequence of at most `capacity` tokens, drawn with `sampling`.

        A copy, so that two generations in flight at once never share state.
        """
        return copy.copy(self)

    def propose(self, tokens: Sequence[int], gamma: int, source: RandomSource) -> Proposal:
        """Up to `gamma` tokens to follow `tokens` (prompt and output so far), with the distributions they came from.

        All randomness comes from `source`. A drafter may always propose fewer tokens, or none, as long as that was
        decided before drawing: dropping a token *because of what was drawn* changes its distribution. In a tree the
        number of a token's children has to be settled before the first of them is drawn.
        For a drafter of trees gamma counts tokens, on whatever path. A path may be longer than what is left of
        `begin`'s capacity: its end is cut off.
        """
        raise NotImplementedError

    def commit(self, tokens: Sequence[int], features: Features | None = None) -> None:
        """`tokens` is now the whole committed sequence: forget drafts that did not become part of it.

        features: for a drafter with `layers`, the target's hidden states of the committed tokens that it took in since
            the last call, `[n, hidden]` for each layer; they belong to tokens[-1 - n : -1], since the newest token is
            pending. The first call comes after the prefill.
        """

    def end(self) -> None:
        """The generation is over, or was aborted: release any blocks held in a shared pool."""
