"""Models for checks: a scripted one that is as strict as a real one and notes its passes, and a tiny real one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from specdec_course.checks.check import wrong
from specdec_ref.cache.dense import check_truncate
from specdec_ref.models.llama import Llama, LlamaConfig
from specdec_ref.models.scripted import Conditional, ScriptedModel, TokenCache
from specdec_ref.sampling import RandomSource, Sampling

VOCAB = 9


class WatchedCache:
    """The cache of a `WatchedModel`: it offers a learner what a real cache does, and no list of tokens to work on."""

    def __init__(self, model: WatchedModel, capacity: int, held: Sequence[int] = ()) -> None:
        self.model, self.capacity, self.held = model, int(capacity), list(held)

    @property
    def length(self) -> int:
        """Tokens held."""
        return len(self.held)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens. Raises ValueError outside 0..length."""
        check_truncate(self.length, length)
        del self.held[length:]


class WatchedModel(ScriptedModel):
    """A scripted model that refuses what a real one would, and notes its passes.

    passes: for each what the cache held before, and the tokens that were fed.
    """

    def __init__(
        self, distribution: Conditional, vocab_size: int = VOCAB, max_context: int | None = None, name: str = "model"
    ) -> None:
        super().__init__(distribution, vocab_size, max_context=max_context)
        self.name, self.passes = name, list[tuple[list[int], list[int]]]()

    def new_cache(self, capacity: int) -> WatchedCache:  # type: ignore[override]
        """An empty cache for `capacity` tokens."""
        return WatchedCache(self, capacity)

    def holding(self, tokens: Sequence[int]) -> WatchedCache:
        """A cache that holds `tokens` without a pass, with room for many more."""
        return WatchedCache(self, 200, tokens)

    def forward(self, tokens: Tensor, cache: WatchedCache, rows: slice = slice(None)) -> Tensor:  # type: ignore[override]
        """Logits `[n_rows, vocab]` in float64 after each of `tokens` `[n]`; the cache grows by n.

        Raises TypeError or ValueError for a pass that no real model would make, CheckFailed after too many passes and
        for the cache of a different model.
        """
        if not isinstance(cache, WatchedCache):
            raise TypeError(f"forward(tokens, cache) was given a {type(cache).__name__} in place of a new_cache()")
        if cache.model is not self:
            what = f"The {self.name} was given a cache of the {cache.model.name}."
            raise wrong(what, mistake="each model needs a cache of its own.")
        if not isinstance(tokens, Tensor) or tokens.dim() != 1:
            raise TypeError("forward takes ids as a tensor of one dimension: torch.tensor([3, 1, 4])")
        if len(tokens) == 0:
            raise ValueError("a pass was given no tokens; a prompt of one token leaves nothing to take in beforehand")
        if tokens.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"forward takes token ids, whole numbers, not {tokens.dtype}")
        what = f"{self.name}: {cache.length} cached, {len(tokens)} new tokens exceed"
        if self.max_context is not None and cache.length + len(tokens) > self.max_context:
            raise ValueError(f"{what} its context of {self.max_context}")
        if cache.length + len(tokens) > cache.capacity:
            raise ValueError(f"{what} new_cache({cache.capacity}): is it too small, or not rolled back?")
        if len(self.passes) == 600:
            raise wrong(f"The {self.name} was asked for more than 600 passes: does the loop ever end?")
        self.passes.append((list(cache.held), tokens.tolist()))
        inner = TokenCache()
        inner.tokens = cache.held
        return super().forward(tokens, inner, rows)


def tiny_llama(rng: random.Random) -> Llama:
    """One layer of random weights in float64: a real model with a real cache."""
    config = LlamaConfig(VOCAB, 12, 16, 1, 2, 1, 6, 200, 10_000.0, 1e-5, False)
    model, source = Llama(config, torch.float64).eval(), torch.Generator().manual_seed(rng.randrange(2**31))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.copy_(torch.randn(weight.shape, generator=source, dtype=torch.float64))
    return model


def script(rng: random.Random, vocab: int = VOCAB) -> Conditional:
    """Distributions in which every token so far and its place count; no two probabilities are equal."""
    key = rng.random()

    @cache
    def distribution(tokens: tuple[int, ...]) -> list[float]:
        here = random.Random(f"{key} {tokens}")
        weights = [0.05 + here.random() ** 3 for _ in range(vocab)]
        return [w / sum(weights) for w in weights]

    return distribution


def similar(p: Conditional, rng: random.Random, vocab: int = VOCAB) -> Conditional:
    """`p` itself after three texts of five, and different distributions after the others."""
    other, key = script(rng, vocab), rng.random()
    return lambda tokens: (p if random.Random(f"{key} {tokens}").random() < 0.6 else other)(tokens)


def contrary(p: Conditional, vocab: int = VOCAB) -> Conditional:
    """Distributions whose likeliest token is never that of `p`."""
    return lambda tokens: [p(tokens)[(x + 1) % vocab] for x in range(vocab)]


def tempered(p: Conditional, tokens: Sequence[int], temperature: float) -> list[float]:
    """The distribution after `tokens` at a temperature."""
    logits = torch.tensor([p(tuple(tokens))], dtype=torch.float64).log()
    row: list[float] = Sampling(temperature=temperature).probs(logits)[0].tolist()
    return row


def text_after(
    p: Conditional, tokens: Sequence[int], n: int, temperature: float = 0.0, source: RandomSource | None = None
) -> list[int]:
    """`n` tokens of plain decoding, from the distributions alone."""
    text = list(tokens)
    for _ in range(n):
        row = tempered(p, text, temperature)
        text.append(source.categorical(torch.tensor(row)) if source else row.index(max(row)))
    return text[len(tokens) :]


def random_text(rng: random.Random, least: int = 3, most: int = 8, vocab: int = VOCAB) -> list[int]:
    """Random tokens."""
    return [rng.randrange(vocab) for _ in range(rng.randint(least, most))]
