"""A smaller language model drafts, one token after the other (Leviathan et al. 2023)."""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from specdec_ref.cache.paged import PagedCache, PagedKVPool
from specdec_ref.interfaces import CausalLM, Drafter, Features, KVCache, Proposal, Tokenizer, check_model
from specdec_ref.sampling import RandomSource, Sampling


class DraftModelDrafter(Drafter):
    """Drafts with `model`, under the same temperature and filters as the target.

    The draft's cache never holds a token that was not committed once `commit` has run. After a round in which
    all drafts were accepted it lacks the last of them, which was drawn but never fed; the next round's first
    pass takes it in together with the pending token, instead of paying a pass of its own.

    token_map: for a model over a part of the target's vocabulary, the target's id of each of its tokens, as a list or
        as {own id: target id}. Everything here is in the target's ids but for what the model is fed and answers.
    pool: where the draft's keys and values live; None gives each generation memory of its own.
    Raises ValueError for a pool of another model or a map that lacks tokens, TypeError for what is no model or no map.
    """

    def __init__(
        self,
        model: CausalLM,
        token_map: Sequence[int] | Mapping[int, int] | None = None,
        pool: PagedKVPool | None = None,
    ) -> None:
        check_model(model)
        if pool is not None:
            pool.check(model)
        self.model = model
        self.pool = pool
        self.token_map = None if token_map is None else read_token_map(token_map, model.vocab_size)
        self._own_id = {i: own for own, i in enumerate(self.token_map or range(model.vocab_size))}
        self._cache: KVCache | None = None
        self._fed: list[int] = []  # the tokens that the cache holds
        self._agreed = 0  # how many of them were committed when last compared
        self._sampling = Sampling()
        self._vocab = model.vocab_size
        self._columns: Tensor | None = None  # the map, on the model's device

    @property
    def cache(self) -> KVCache:
        """The draft's cache, of a drafter that `begin` returned. Raises RuntimeError for any other."""
        if self._cache is None:
            raise RuntimeError("this drafter has no cache yet: begin(target, sampling, capacity) returns one that has")
        return self._cache

    def check(self, target: CausalLM) -> None:
        """Raises ValueError where draft and target number their tokens differently, or the map does not fit them."""
        check_same_tokens(self.model, target, self.token_map)

    def begin(self, target: CausalLM, sampling: Sampling, capacity: int) -> DraftModelDrafter:
        fresh = copy.copy(self)
        limit = self.model.max_context
        capacity = capacity if limit is None else min(capacity, limit)
        fresh._cache = self.model.new_cache(capacity + self.nodes) if self.pool is None else self.pool.new_sequence()
        fresh._fed, fresh._agreed = [], 0
        fresh._sampling = sampling
        fresh._vocab = target.vocab_size
        fresh._columns = None if self.token_map is None else torch.tensor(self.token_map, device=self.model.device)
        return fresh

    def propose(self, tokens: Sequence[int], gamma: int, source: RandomSource) -> Proposal:
        """`gamma` tokens drawn one by one; fewer up to an end token, or where the draft's own context is full."""
        if self.model.max_context is not None:
            gamma = min(gamma, self.model.max_context - len(tokens) + 1)
        if gamma <= 0:
            return Proposal([])
        cache = self.cache
        if isinstance(cache, PagedCache) and not self._fed:
            cache.reuse(self._own_ids(tokens))
            self._fed = list(tokens[: cache.length])
        new = list(tokens[cache.length :])
        drafted: list[int] = []
        distributions = []
        for _ in range(gamma):
            ids = torch.tensor(self._own_ids(new), device=self.model.device)
            logits = self.model.forward(ids, cache, slice(len(ids) - 1, None))
            self._fed += new
            q = self._sampling.probs(self._in_target_ids(logits), [*tokens, *drafted])
            if self._sampling.reads_context and not q.any():  # all that a smaller vocabulary holds is forbidden
                break
            drafted.append(source.categorical(q[0]))
            distributions.append(q)
            if drafted[-1] in self._sampling.eos:  # what comes after it is never kept
                break
            new = drafted[-1:]
        return Proposal(drafted, None if self._sampling.greedy or not distributions else torch.cat(distributions))

    def commit(self, tokens: Sequence[int], features: Features | None = None) -> None:
        """Cut the cache to what it shares with the committed sequence, without the pending token."""
        limit, keep = min(len(self._fed), len(tokens) - 1), self._agreed
        while keep < limit and self._fed[keep] == tokens[keep]:
            keep += 1
        del self._fed[keep:]
        self.cache.truncate(keep)
        self._agreed = keep

    def end(self) -> None:
        """Offer what the draft's pool holds of this sequence for reuse, and give the blocks back."""
        if isinstance(self._cache, PagedCache):
            self._cache.register(self._own_ids(self._fed))
            self._cache.truncate(0)

    def _own_ids(self, tokens: Sequence[int]) -> list[int]:
        """What the model is fed. A token it does not have becomes 0: its guess gets worse, the output stays exact."""
        return [self._own_id.get(t, 0) for t in tokens]

    def _in_target_ids(self, logits: Tensor) -> Tensor:
        """The model's logits over the target's ids; a narrower row says that the draft has none of the rest."""
        if self._columns is None:
            return logits[:, : self._vocab]
        spread = logits.new_full((len(logits), self._vocab), -torch.inf)
        spread[:, self._columns] = logits
        return spread


def read_token_map(token_map: Sequence[int] | Mapping[int, int], vocab_size: int) -> list[int]:
    """The target's id of each of the draft's `vocab_size` tokens, in their order.

    Raises TypeError for ids that are not whole numbers, ValueError for a mapping without one of the draft's tokens.
    """
    if isinstance(token_map, Mapping):
        missing = [i for i in range(vocab_size) if i not in token_map]
        if missing or len(token_map) > vocab_size:
            wrong = f"lacks token {missing[0]}" if missing else f"has {len(token_map):,} entries"
            raise ValueError(f"token_map {wrong}: give the target id of each of the draft's {vocab_size:,} tokens")
        token_map = [token_map[i] for i in range(vocab_size)]
    try:
        return [operator.index(i) for i in token_map]
    except TypeError:
        odd = next(i for i in token_map if not hasattr(i, "__index__"))
        raise TypeError(f"token_map holds {odd!r}: a token id is a whole number") from None


def check_same_tokens(draft: CausalLM, target: CausalLM, token_map: Sequence[int] | None = None) -> None:
    """Raises ValueError unless the draft's ids, through the map if there is one, mean the same to the target.

    Sizes may differ: vocabularies of one tokenizer are padded to different ones. Tokens are compared where both
    models have a tokenizer, but for added ones (the names of special tokens change between releases of a model);
    where only one has, and there is no map, the sizes have to be equal.
    """
    if token_map is not None:
        _check_map(token_map, draft, target)
    if draft.tokenizer is target.tokenizer:
        return
    if draft.tokenizer is None or target.tokenizer is None:
        if token_map is None and draft.vocab_size != target.vocab_size:
            raise ValueError(
                f"draft has {draft.vocab_size:,} tokens, target {target.vocab_size:,}, and not both have a tokenizer "
                "to compare: give a token_map, or a draft with the target's tokenizer"
            )
        return
    ours, theirs = _plain_tokens(draft.tokenizer), _plain_tokens(target.tokenizer)
    if token_map is not None:
        ours = {token: token_map[i] for token, i in ours.items() if i < len(token_map)}
    at = {i: token for token, i in theirs.items()}
    different = [token for token, i in ours.items() if at.get(i, token) != token or theirs.get(token, i) != i]
    if different or not ours.keys() & theirs.keys():
        example = f", for instance {different[0]!r}" if different else ""
        raise ValueError(
            f"draft and target number their tokens differently ({len(different):,} of {len(ours):,}{example}): give a "
            "draft with the target's tokenizer, a right token_map, or NGramDrafter(), which needs none"
        )


def _check_map(token_map: Sequence[int], draft: CausalLM, target: CausalLM) -> None:
    if len(token_map) != draft.vocab_size:
        raise ValueError(
            f"token_map has {len(token_map):,} entries, the draft {draft.vocab_size:,} tokens: give each its target id"
        )
    outside = [i for i in token_map if not 0 <= i < target.vocab_size]
    if outside:
        raise ValueError(f"token_map names id {outside[0]:,}, and the target has 0 to {target.vocab_size - 1:,}")
    if len(set(token_map)) < len(token_map):
        twice = next(i for i, n in Counter(token_map).items() if n > 1)
        raise ValueError(f"token_map names id {twice:,} twice: each of the draft's tokens needs one of its own")


def _plain_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    added: dict[str, int] = getattr(tokenizer, "get_added_vocab", dict)()
    return {token: i for token, i in tokenizer.get_vocab().items() if token not in added}
