"""An EAGLE-style head drafts: one decoder layer over the target's hidden states (Li et al. 2024 and 2025).

A language model drafts from token ids alone, and needs many layers to understand them. The target has already done
that work: its hidden state after token t says most of what comes next. The head takes that state together with the
token that was then chosen, t + 1, and guesses t + 2. Where the target has no state yet, in the middle of a draft, the
head goes on from its own output, so it is trained as it drafts: step after step on what it wrote itself.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from specdec_ref.cache.dense import DenseCache
from specdec_ref.draft.eagle_head import EagleHead, EagleSteps, Guess, read_head
from specdec_ref.draft.for_target import check_target
from specdec_ref.draft.shipped import shipped_draft
from specdec_ref.draft.stored_head import CompiledSteps, can_store
from specdec_ref.interfaces import CausalLM, Drafter, Features, Proposal
from specdec_ref.models.compiled import CompiledLlama
from specdec_ref.models.llama import Llama
from specdec_ref.sampling import RandomSource, Sampling


class _Drawn(NamedTuple):
    """A token, how sure the head was of it, and the distribution `[1, n]` it was drawn from; None for an argmax."""

    token: int
    probability: float
    q: Tensor | None


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
        self._steps: EagleSteps | None = None
        self._cache: DenseCache | None = None
        self._sampling = Sampling()
        self._known = 0  # entries of the cache that come from the target's states
        self._new: Features = ()  # the target's states that are not yet taken in: [n, hidden] for each layer
        self._ids = head.tokens.tolist()

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
        if self._steps is None or self._steps.model is not target:  # once per model
            if isinstance(target, CompiledLlama) and can_store(c):
                self._steps = CompiledSteps(self.head, target)
            else:
                self._steps = EagleSteps(self.head, target)
        fresh = copy.copy(self)
        fresh._sampling = sampling
        fresh._cache = DenseCache(1, c.n_kv_heads, c.head_dim, capacity, target.dtype, target.device)
        fresh._known, fresh._new = 0, ()
        return fresh

    def propose(self, tokens: Sequence[int], gamma: int, source: RandomSource) -> Proposal:
        """Up to `gamma` tokens; none where the target has shown no new state, as before a prompt of one token."""
        states: Features | Tensor = self._new
        drafted: list[int] = []
        distributions: list[Tensor] = []
        ids, confidence = list(tokens[self._known + 1 :]), 1.0
        if not self._new:
            return Proposal([])
        assert self._steps is not None
        self._known += len(ids)
        self._new = ()
        while True:
            guess = self._steps.step(states, ids, self.cache)
            drawn = self._draw(guess, tokens, drafted, source)
            if drawn is None:  # all that the head knows is forbidden
                break
            drafted.append(drawn.token)
            distributions += [] if drawn.q is None else [drawn.q]
            confidence *= drawn.probability
            if len(drafted) == gamma or drawn.token in self._sampling.eos or confidence < self.stop_below:
                break
            states, ids = guess.state, drafted[-1:]
        return Proposal(drafted, self._over_all_tokens(distributions) if distributions else None)

    def commit(self, tokens: Sequence[int], features: Features | None = None) -> None:
        """Forget the entries of the draft; keep the target's new states for the next round."""
        self.cache.truncate(self._known)
        if features is not None:
            both = zip(self._new, features, strict=True)
            self._new = tuple(torch.cat(layer) for layer in both) if self._new else features

    def _draw(self, guess: Guess, tokens: Sequence[int], drafted: list[int], source: RandomSource) -> _Drawn | None:
        """The token that comes after `tokens` and `drafted`; None where no token may."""
        sampling = self._sampling
        if sampling.reads_context:
            q = sampling.probs(self._in_target_ids(guess.logits), [*tokens, *drafted])
            if not q.any():
                return None
            token = source.categorical(q[0])
            return _Drawn(token, guess.confidence, None) if sampling.greedy else _Drawn(token, float(q[0, token]), q)
        if sampling.greedy:
            if math.isnan(guess.confidence):
                raise ValueError("the draft returned logits that are not finite: its weights are broken, get it again")
            return _Drawn(self._ids[guess.best], guess.confidence, None)
        q = sampling.probs(guess.logits)
        own = source.categorical(q[0])
        return _Drawn(self._ids[own], float(q[0, own]), q)

    def _in_target_ids(self, logits: Tensor) -> Tensor:
        """`[1, n_tokens]` over the target's ids: what the head does not know has probability 0."""
        assert self._steps is not None
        spread = logits.new_full((1, self._steps.model.vocab_size), -torch.inf)
        spread[:, self.head.tokens] = logits
        return spread

    def _over_all_tokens(self, distributions: list[Tensor]) -> Tensor:
        """`[g, vocab]` over the target's ids."""
        assert self._steps is not None
        q, vocab = torch.cat(distributions), self._steps.model.vocab_size
        if q.shape[1] == vocab:  # drawn over the target's ids, or over all of them
            return q
        return q.new_zeros(len(q), vocab).index_copy_(1, self.head.tokens.to(q.device), q)
