"""What the checks of problem set 05 share: models that watch, distributions without a cache, and right parts of an
engine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specdec_course.checks import wrong
from specdec_ref.cache.dense import check_truncate
from specdec_ref.models.scripted import Conditional

VOCAB = 9
CLOSE = 1e-5
"""Largest difference that counts as rounding: float32 keeps below it, and no mistake is this small."""


class WatchedCache:
    """A scripted model's cache: the tokens themselves, with a capacity as a real one has."""

    def __init__(self, capacity: int) -> None:
        self.held: list[int] = []
        self.capacity = int(capacity)

    @property
    def length(self) -> int:
        """Tokens held."""
        return len(self.held)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens. Raises ValueError outside 0..length."""
        check_truncate(self.length, length)
        del self.held[length:]


class Model:
    """What the two models below have in common: they are as strict as a real one."""

    def __init__(self, vocab_size: int, max_context: int | None, name: str) -> None:
        self.vocab_size, self.max_context, self.name = vocab_size, max_context, name
        self.eos_token_ids: tuple[int, ...] = ()
        self.tokenizer = None
        self.device = torch.device("cpu")
        self.n_passes = 0

    def check(self, tokens: Any, cache: Any, kind: Any) -> None:
        """Raises where a pass is none that a real model would make."""
        if not isinstance(cache, kind):
            raise TypeError(
                f"forward(tokens, cache) was given {type(cache).__name__} in place of a cache of new_cache()"
            )
        if not isinstance(tokens, Tensor) or tokens.dim() != 1:
            raise TypeError("forward takes ids as a tensor of one dimension: torch.tensor([3, 1, 4])")
        if len(tokens) == 0:
            raise ValueError(
                "a pass was given no tokens; of a prompt of one token there is nothing to take in beforehand"
            )
        if tokens.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"forward takes token ids, whole numbers, not {tokens.dtype}")
        what = f"{self.name}: {cache.length} cached, {len(tokens)} new tokens exceed"
        if self.max_context is not None and cache.length + len(tokens) > self.max_context:
            raise ValueError(f"{what} its context of {self.max_context}")
        if cache.length + len(tokens) > cache.capacity:
            raise ValueError(f"{what} new_cache({cache.capacity}): is it too small, or not rolled back?")
        self.n_passes += 1
        if self.n_passes > 600:
            raise wrong(f"The {self.name} was asked for more than 600 passes: does the loop ever end?")


class WatchedModel(Model):
    """A scripted model, log distribution(tokens so far) in float64, that notes its passes.

    passes: for each pass what the cache held before and what was fed.
    """

    def __init__(
        self, distribution: Conditional, vocab_size: int = VOCAB, max_context: int | None = None, name: str = "model"
    ) -> None:
        super().__init__(vocab_size, max_context, name)
        self.distribution = distribution
        self.passes: list[tuple[list[int], list[int]]] = []

    def new_cache(self, capacity: int) -> WatchedCache:
        """An empty cache for `capacity` tokens."""
        return WatchedCache(capacity)

    def holding(self, tokens: Sequence[int], capacity: int = 200) -> WatchedCache:
        """A cache that holds `tokens`, without a pass."""
        cache = self.new_cache(capacity)
        cache.held = list(tokens)
        return cache

    def forward(self, tokens: Tensor, cache: WatchedCache, rows: slice = slice(None)) -> Tensor:
        """Logits `[n_rows, vocab]` after each of `tokens` `[n]`; the cache grows by n."""
        self.check(tokens, cache, WatchedCache)
        self.passes.append((list(cache.held), tokens.tolist()))
        start = cache.length
        cache.held += tokens.tolist()
        distributions = [list(self.distribution(tuple(cache.held[: start + i + 1]))) for i in range(len(tokens))[rows]]
        return torch.tensor(distributions, dtype=torch.float64).reshape(len(distributions), self.vocab_size).log()


class TinyCache:
    """Keys and values of one layer, `[capacity, width]`; what lies behind `length` is left over, as in a real one."""

    def __init__(self, capacity: int, width: int) -> None:
        self.capacity, self.length = int(capacity), 0
        self.keys, self.values = torch.zeros(2, self.capacity, width, dtype=torch.float64)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens. Raises ValueError outside 0..length."""
        check_truncate(self.length, length)
        self.length = length

    def copy(self, more: int) -> TinyCache:
        """A copy with place for `more` tokens behind those that it holds: to be asked without touching this one."""
        other = TinyCache(self.length + more, self.keys.shape[1])
        other.length = self.length
        other.keys[: self.length], other.values[: self.length] = self.keys[: self.length], self.values[: self.length]
        return other


class TinyModel(Model):
    """One layer of attention with random weights, in float64: a real model with a real cache, only small."""

    def __init__(self, rng: random.Random, width: int = 12, name: str = "model", like: TinyModel | None = None) -> None:
        super().__init__(VOCAB, None, name)
        source = torch.Generator().manual_seed(rng.randrange(2**31))
        shapes = [(VOCAB, width), (200, width), (3, width, width), (width, VOCAB)]
        own = [torch.randn(shape, generator=source, dtype=torch.float64) for shape in shapes]
        # A model `like` another has its weights, nearly: it agrees with it now and then.
        self.weights: list[Tensor] = own if like is None else [a + 0.3 * b for a, b in zip(like.weights, own)]

    def new_cache(self, capacity: int) -> TinyCache:
        """An empty cache for `capacity` tokens."""
        return TinyCache(capacity, self.weights[0].shape[1])

    def forward(self, tokens: Tensor, cache: TinyCache, rows: slice = slice(None)) -> Tensor:
        """Logits `[n_rows, vocab]` after each of `tokens` `[n]`; the cache grows by n."""
        self.check(tokens, cache, TinyCache)
        embed, place, qkv, head = self.weights
        start, end = cache.length, cache.length + len(tokens)
        x = embed[tokens] + place[start:end]
        q, cache.keys[start:end], cache.values[start:end] = x @ qkv
        seen = torch.ones(end - start, end, dtype=torch.bool).tril(start)
        scores = (q @ cache.keys[:end].T / 5).masked_fill(~seen, -torch.inf)
        cache.length = end
        return ((x + scores.softmax(-1) @ cache.values[:end]) @ head)[rows]

    def next_logits(self, tokens: Sequence[int]) -> Tensor:
        """Logits `[vocab]` after `tokens`, from a fresh cache."""
        return self.forward(torch.tensor(list(tokens)), self.new_cache(len(tokens)))[-1]


def random_distribution(rng: random.Random, vocab: int = VOCAB) -> Conditional:
    """A distribution in which every token and its place count; no two probabilities of a place are equal."""
    seed = rng.random()

    @cache
    def distribution(tokens: tuple[int, ...]) -> tuple[float, ...]:
        here = random.Random(f"{seed} {tokens}")
        weights = [0.05 + here.random() ** 3 for _ in range(vocab)]
        return tuple(w / sum(weights) for w in weights)

    return distribution


def similar_distribution(
    distribution: Conditional, rng: random.Random, vocab: int = VOCAB, agree: float = 0.6
) -> Conditional:
    """A distribution that is `distribution` itself after a share `agree` of all texts, and another one after the
    rest.
    """
    other, seed = random_distribution(rng, vocab), rng.random()
    return lambda tokens: (distribution if random.Random(f"{seed} {tokens}").random() < agree else other)(tuple(tokens))


def contrary_distribution(distribution: Conditional, vocab: int = VOCAB) -> Conditional:
    """A distribution whose best token is never the best one of `distribution`."""
    return lambda tokens: [distribution(tuple(tokens))[(x + 1) % vocab] for x in range(vocab)]


def best(distribution: Conditional, tokens: Sequence[int]) -> int:
    """The likeliest token after `tokens`."""
    p = list(distribution(tuple(tokens)))
    return p.index(max(p))


def greedy_text(distribution: Conditional, tokens: Sequence[int], n: int) -> list[int]:
    """`n` tokens of plain greedy decoding, from the distribution alone."""
    text = list(tokens)
    for _ in range(n):
        text.append(best(distribution, text))
    return text[len(tokens) :]


def tempered(distribution: Conditional, tokens: Sequence[int], temperature: float) -> list[float]:
    """The distribution after `tokens` at a temperature: p^(1/T), normalised; one-hot at 0."""
    p = list(distribution(tuple(tokens)))
    if temperature == 0:
        return [float(x == p.index(max(p))) for x in range(len(p))]
    powers = [x ** (1 / temperature) for x in p]
    return [x / sum(powers) for x in powers]


def rounds_of(p: Conditional, q: Conditional, prompt: Sequence[int], end: int, gamma: int) -> list[tuple[int, int]]:
    """(drafted, accepted) of each greedy round until the text has `end` tokens, from the distributions alone."""
    text, rounds = list(prompt), []
    while len(text) < end:
        drafted = greedy_text(q, text, min(gamma, end - len(text) - 1))
        truth = greedy_text(p, text, len(drafted) + 1)
        accepted = next((i for i, (a, b) in enumerate(zip(drafted, truth)) if a != b), len(drafted))
        text += truth[: accepted + 1]
        rounds.append((len(drafted), accepted))
    return rounds


def some_text(rng: random.Random, least: int = 3, most: int = 8, vocab: int = VOCAB) -> list[int]:
    """Random tokens."""
    return [rng.randrange(vocab) for _ in range(rng.randint(least, most))]


def ids(value: Any, what: str) -> list[int]:
    """Token ids out of a list, tuple, array or tensor."""
    if value is None:
        raise wrong(f"{what} is None: is there a return?")
    try:
        items = value.tolist() if hasattr(value, "tolist") else list(value)
        numbers = [int(x) for x in items]
    except (TypeError, ValueError):
        raise wrong(f"{what} should be a list of token ids.", got=value) from None
    return numbers


def floats(value: Any, what: str) -> list[float]:
    """A distribution out of a list, tuple, array or tensor."""
    try:
        return [float(x) for x in (value.tolist() if hasattr(value, "tolist") else value)]
    except (TypeError, ValueError):
        raise wrong(f"{what} should hold one number for each token of the vocabulary.", got=value) from None


def pair(value: Any, what: str) -> tuple[Any, Any]:
    """Two things out of a tuple or list."""
    try:
        first, second = value
    except (TypeError, ValueError):
        raise wrong(f"{what} should return two things, a pair.", got=value, expected="(..., ...)") from None
    return first, second


def same(a: Sequence[float], b: Sequence[float]) -> bool:
    """Equal up to rounding."""
    return len(a) == len(b) and all(abs(x - y) <= CLOSE for x, y in zip(a, b))


def shown(distribution: Sequence[float]) -> str:
    """A distribution for a message."""
    return "[" + ", ".join(f"{x:.5f}" for x in distribution) + "]"


def _distribution(logits: Tensor, temperature: float) -> Tensor:
    if temperature == 0:
        return torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
    return torch.softmax(logits / temperature, -1)


def _draft(
    model: Any, cache: Any, tokens: Sequence[int], gamma: int, temperature: float, source: Any
) -> tuple[list[int], list[Tensor]]:
    tokens, drafted, distributions = ids(tokens, "The `tokens` that parts.draft was given"), [], []
    if gamma > 0 and cache.length >= len(tokens):
        raise wrong(
            "parts.draft was called with a draft's cache that is too long.",
            given=f"tokens {tokens}",
            got=f"a cache that holds {getattr(cache, 'held', f'{cache.length} tokens')}",
            mistake="the draft's cache was not rolled back, or the two caches are mixed up",
        )
    new = tokens[cache.length :]
    for _ in range(gamma):
        q = _distribution(model.forward(torch.tensor(new), cache)[-1], temperature)
        drafted.append(int(q.argmax()) if temperature == 0 else source.categorical(q))
        distributions.append(q)
        new = drafted[-1:]
    return drafted, distributions


def _verify(
    model: Any, cache: Any, tokens: Sequence[int], drafted: Sequence[int], q: Any, rule: Any, temperature: float
) -> list[int]:
    logits = model.forward(torch.tensor([int(tokens[-1]), *drafted]), cache)
    accepted, token = rule(drafted, q, _distribution(logits, temperature))
    return [*drafted[:accepted], token]


def _roll_back(cache: Any, tokens: Sequence[int]) -> None:
    cache.truncate(min(cache.length, len(tokens) - 1))


def _how_many_drafts(gamma: int, n_tokens: int, end: int, draft_context: int | None = None) -> int:
    room = end - n_tokens - 1
    return max(0, min(gamma, room, gamma if draft_context is None else draft_context - n_tokens + 1))


def _cut(emitted: Sequence[int], eos: Any) -> list[int]:
    kept: list[int] = []
    for token in emitted:
        kept.append(token)
        if token in eos:
            break
    return kept


def right_greedy_rule(drafted: Sequence[int], q: Any, p: Any) -> tuple[int, int]:
    """The greedy rule, for loops that need one: (accepted, token)."""
    choices = [int(row.argmax()) for row in p]
    accepted = next((i for i, (a, b) in enumerate(zip(drafted, choices)) if a != b), len(drafted))
    return accepted, choices[accepted]


def right_sampling_rule(source: Any) -> Callable[..., tuple[int, int]]:
    """The rule of lesson 04 with its chance from `source`, for loops that need one."""

    def rule(drafted: Sequence[int], q: Any, p: Any) -> tuple[int, int]:
        for i, x in enumerate(drafted):
            if not source.bernoulli(min(1.0, float(p[i][x] / q[i][x]))):
                residual = (p[i] - q[i]).clamp(min=0)
                return i, source.categorical(residual if residual.sum() > 0 else p[i])
        return len(drafted), source.categorical(p[len(drafted)])

    return rule


RIGHT = SimpleNamespace(draft=_draft, verify=_verify, roll_back=_roll_back, how_many_drafts=_how_many_drafts, cut=_cut)
