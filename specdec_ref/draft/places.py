"""Drafts whose places all come from one pass: what block drafter and Medusa heads share.

The pass gives one state per place. From there on the draft is walked from left to right: a distribution, a token drawn
from it, the next distribution. The proposal carries each distribution as it was drawn from, so it is verified exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from specdec_ref.draft.eagle_head import output_rows
from specdec_ref.draft.for_target import check_target
from specdec_ref.interfaces import CausalLM, Drafter, Proposal
from specdec_ref.models.llama import Llama
from specdec_ref.sampling import RandomSource, Sampling


class PlacesConfig(Protocol):
    """Sizes that every draft of this kind has."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def n_places(self) -> int: ...


class PlacesHead(nn.Module):
    """Trained weights that give a state per place. tokens: `[n_tokens]`, the target's ids that can be drafted."""

    config: PlacesConfig
    tokens: Tensor


Head = TypeVar("Head", bound=PlacesHead)


class PlacesDrafter(Drafter, Generic[Head]):
    """Drafts with a `PlacesHead`, under the same temperature and filters as the target.

    stop_below: a place is not drawn once the estimated probability that it and all before it are accepted falls below
        this. The estimate is made before the place is drawn, from the target's states and from tokens already drawn and
        kept, and no drawn token is ever dropped: so the output's distribution stays the target's.
    target: fingerprint of the model that the head was trained for; None accepts any of its sizes.
    """

    def __init__(self, head: Head, stop_below: float = 0.0, target: str | None = None) -> None:
        if not 0 <= stop_below < 1:
            raise ValueError(f"stop_below is {stop_below}: give a probability from 0 (never stop early) to below 1")
        self.head, self.stop_below, self.target = head, stop_below, target
        self._model: Llama | None = None
        self._sampling = Sampling()

    def check(self, target: CausalLM) -> None:
        """Raises ValueError for a target that the head was not trained for."""
        check_target(target, self.head.config.hidden_size, self.target)

    def begin(self, target: CausalLM, sampling: Sampling, capacity: int) -> PlacesDrafter[Head]:
        assert isinstance(target, Llama)  # `check` has seen to it
        if self._model is not target:  # once per model: the head in its number format, and the rows that it drafts from
            self._model = target
            self._head = copy.deepcopy(self.head).to(target.device, target.dtype).requires_grad_(False).eval()
            self._rows = output_rows(target, self.head.tokens)
        fresh = copy.copy(self)
        fresh._sampling = sampling
        fresh._start(target, capacity)
        return fresh

    def propose(self, tokens: Sequence[int], gamma: int, source: RandomSource) -> Proposal:
        """Up to `gamma` tokens, at most as many as the head has places; none before the target has shown a state."""
        drafted: list[int] = []
        distributions: list[Tensor] = []
        states, sure = self._states(tokens), 1.0
        for k in range(min(gamma, len(states))):
            logits, kept = self._place(states[k : k + 1], drafted[-1] if drafted else tokens[-1])
            sure *= kept
            if sure < self.stop_below:
                break
            q = self._sampling.probs(self._in_target_ids(logits), [*tokens, *drafted])
            if self._sampling.reads_context and not q.any():  # all that the head knows is forbidden
                break
            drafted.append(source.categorical(q[0]))
            distributions.append(q)
            if drafted[-1] in self._sampling.eos:
                break
        return Proposal(drafted, None if self._sampling.greedy or not distributions else torch.cat(distributions))

    def _start(self, target: Llama, capacity: int) -> None:
        """Empty what belongs to one sequence, of at most `capacity` tokens."""
        raise NotImplementedError

    def _states(self, tokens: Sequence[int]) -> Tensor:
        """A state per place, `[n_places, hidden]`; `[0, hidden]` before the target has shown any."""
        raise NotImplementedError

    def _place(self, state: Tensor, before: int) -> tuple[Tensor, float]:
        """Logits `[1, n_tokens]` of a place with `state` `[1, hidden]` after token `before`, and how probably the
        target accepts what is drawn from them."""
        raise NotImplementedError

    def _in_target_ids(self, logits: Tensor) -> Tensor:
        """`[1, n_tokens]` over the target's ids: what the head does not know has probability 0."""
        assert self._model is not None
        spread = logits.new_full((1, self._model.vocab_size), -torch.inf)
        spread[:, self._head.tokens] = logits
        return spread
