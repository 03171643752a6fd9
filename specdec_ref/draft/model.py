"""A smaller language model drafts, one token after the other (Leviathan et al. 2023)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from specdec_ref.draft.base import Drafter
from specdec_ref.models.base import CausalLM
from specdec_ref.sampling import RandomSource, Sampling
from specdec_ref.verify import Proposal


class DraftModelDrafter(Drafter):
    """Drafts with `model`, under the same temperature and filters as the target.

    The draft's cache never holds a token that was not committed once `commit` has run. After a round in which
    all drafts were accepted it lacks the last of them, which was drawn but never fed; the next round's first
    pass takes it in together with the pending token, instead of paying a pass of its own.
    """

    def __init__(self, model: CausalLM) -> None:
        self.model = model
        self.cache: Any = None
        self._fed: list[int] = []  # the tokens that the cache holds
        self._agreed = 0  # how many of them were committed when last compared
        self._sampling = Sampling()
        self._vocab = model.vocab_size

    def check(self, target: CausalLM) -> None:
        """Raises ValueError where draft and target number their tokens differently."""
        check_same_tokens(self.model, target)

    def begin(self, target: CausalLM, sampling: Sampling, capacity: int) -> DraftModelDrafter:
        fresh = copy.copy(self)
        limit = self.model.max_context
        fresh.cache = self.model.new_cache(capacity if limit is None else min(capacity, limit))
        fresh._fed, fresh._agreed = [], 0
        fresh._sampling = sampling
        fresh._vocab = min(self.model.vocab_size, target.vocab_size)
        return fresh

    def propose(self, tokens: Sequence[int], gamma: int, source: RandomSource) -> Proposal:
        """`gamma` tokens drawn one by one; fewer, or none, where the draft's own context is full."""
        if self.model.max_context is not None:
            gamma = min(gamma, self.model.max_context - len(tokens) + 1)
        if gamma <= 0:
            return Proposal([])
        new = list(tokens[self.cache.length :])
        drafted: list[int] = []
        laws = []
        for _ in range(gamma):
            # Ids beyond the draft's vocabulary are fed as 0: its guess gets worse, the output stays exact.
            ids = [t if t < self.model.vocab_size else 0 for t in new]
            logits = self.model.forward(
                torch.tensor(ids, device=self.model.device), self.cache, slice(len(ids) - 1, None)
            )
            self._fed += new
            q = self._sampling.probs(logits[:, : self._vocab], [*tokens, *drafted])
            drafted.append(source.categorical(q[0]))
            laws.append(q)
            new = drafted[-1:]
        return Proposal(drafted, None if self._sampling.greedy else torch.cat(laws))

    def commit(self, tokens: Sequence[int]) -> None:
        """Cut the cache to what it shares with the committed sequence, without the pending token."""
        limit, keep = min(len(self._fed), len(tokens) - 1), self._agreed
        while keep < limit and self._fed[keep] == tokens[keep]:
            keep += 1
        del self._fed[keep:]
        self.cache.truncate(keep)
        self._agreed = keep


def check_same_tokens(draft: CausalLM, target: CausalLM) -> None:
    """Raises ValueError unless both models number their common tokens alike.

    Sizes may differ: padded vocabularies of one tokenizer do. Compared where both models have a tokenizer.
    """
    if draft.tokenizer is None or target.tokenizer is None:
        if draft.vocab_size != target.vocab_size and draft.tokenizer is not target.tokenizer:
            raise ValueError(
                f"draft has {draft.vocab_size:,} tokens, target {target.vocab_size:,}, and not both have a tokenizer "
                "to compare: give a draft with the target's tokenizer"
            )
        return
    ours, theirs = draft.tokenizer.get_vocab(), target.tokenizer.get_vocab()
    if ours == theirs:
        return
    different = [t for t, i in ours.items() if theirs.get(t, i) != i or (t not in theirs and i < len(theirs))]
    if different:
        raise ValueError(
            f"draft and target number their tokens differently ({len(different):,} of {len(ours):,}, for instance "
            f"{different[0]!r}): give a draft with the target's tokenizer, or NGramDrafter(), which needs none"
        )
