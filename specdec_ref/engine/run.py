"""One generation in flight, and what it leaves: runs, rounds, streams of text, results."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from specdec_ref.cache.paged import PagedCache
from specdec_ref.engine.stats import Stats
from specdec_ref.engine.text import TextStream
from specdec_ref.interfaces import Drafter, KVCache, Proposal, Verdict
from specdec_ref.sampling import RandomSource, Sampling, SamplingOptions


@dataclass(frozen=True)
class Generation:
    """New token ids, their text, the finish reason ("length", "eos" or "stop"), and statistics.

    logprobs: where asked for, log p of each token under the target as it is: softmax of its logits, before
        temperature, filters and penalties. This makes runs with different options comparable, and
        keeps greedy log-probabilities meaningful.
    """

    tokens: list[int]
    text: str
    finish_reason: str
    stats: Stats
    logprobs: list[float] | None = None


class Chunk(NamedTuple):
    """What one round committed. `text` contains only what later tokens cannot change, so it may lag behind `tokens`."""

    tokens: list[int]
    text: str


class Round(NamedTuple):
    """One round, for inspection: the proposal, the rule's verdict, and the tokens that were committed (`kept`)."""

    proposal: Proposal
    verdict: Verdict
    kept: list[int]


@dataclass
class Run:
    """One generation in flight: its tokens (prompt and output), caches and counts.

    cache: the target's; None before the prompt is taken in, so that a run nobody steps holds no memory.
    prefix: a cache for the prompt alone, which several runs fork; None where the run has its own.
    logprobs: one for each new token, None unless requested.
    """

    tokens: list[int]
    prompt_length: int
    budget: int
    eos: frozenset[int]
    sampling: Sampling
    source: RandomSource
    drafter: Drafter
    text: TextStream
    cache: KVCache | None = None
    prefix: PagedCache | None = None
    logprobs: list[float] | None = None
    stats: Stats = field(default_factory=Stats)
    finish_reason: str | None = None

    @property
    def output(self) -> list[int]:
        """The new tokens."""
        return self.tokens[self.prompt_length :]

    @property
    def room(self) -> int:
        """How many more tokens the budget allows."""
        return self.prompt_length + self.budget - len(self.tokens)

    def append(self, emitted: list[int]) -> list[int]:
        """Append emitted tokens up to the first that ends the output; returns those kept."""
        for i, token in enumerate(emitted):
            self.tokens.append(token)
            self.text.push(token)
            if token in self.eos:
                self.finish_reason = "eos"
            elif self.text.stopped:
                self.finish_reason = "stop"
            elif self.room == 0:
                self.finish_reason = "length"
            if self.finish_reason:
                return emitted[: i + 1]
        return emitted

    def release(self) -> None:
        """Empty the caches of a finished or aborted run, returning its blocks to the pool."""
        if self.cache is not None:
            self.cache.truncate(0)
        self.drafter.end()

    def generation(self) -> Generation:
        """The result of a run that is over."""
        assert self.finish_reason is not None
        return Generation(self.output, self.text.text, self.finish_reason, self.stats, self.logprobs)


class Stream(Iterator[Chunk]):
    """A generation, streamed: iterate over its chunks, one per round; `result` is the whole at the end.

    Nothing is computed before the first chunk is asked for. `close` aborts it and frees the caches.
    """

    def __init__(self, chunks: Generator[Chunk, None, Generation]) -> None:
        self._chunks = chunks
        self._result: Generation | None = None

    def __next__(self) -> Chunk:
        try:
            return next(self._chunks)
        except StopIteration as end:
            # Asked again after its end, a generator returns None.
            self._result = self._result or end.value
            raise StopIteration from None

    @property
    def result(self) -> Generation:
        """The `Generation`. Raises RuntimeError before the last chunk was read."""
        if self._result is None:
            raise RuntimeError("this stream has not ended: read all its chunks before you ask for the result")
        return self._result

    def read(self) -> Generation:
        """Read the rest and return the `Generation`."""
        for _ in self:
            pass
        return self.result

    def close(self) -> None:
        """Abort the generation: its caches are emptied, and there is no result."""
        self._chunks.close()


class RunOptions(SamplingOptions, total=False):
    """Options of a generation, besides how to sample.

    seed: makes sampled output repeatable; None draws a new one.
    source: a RandomSource to use instead of a seeded one.
    stop: a string, or several, that end the text; the text is cut before it, `tokens` end with the token that
        completed it.
    eos_token_id: an id, or several, that end the output and stay in it; None switches it off. By default ("target")
        those of the target.
    logprobs: True fills `Generation.logprobs`.
    """

    seed: int | None
    source: RandomSource | None
    stop: str | Iterable[str] | None
    eos_token_id: int | Iterable[int] | str | None
    logprobs: bool


OnRound = Callable[[Run, Round], None]
"""Called after each round, with the run as it stands then."""


def log_probabilities(logits: Tensor, tokens: list[int]) -> list[float]:
    """log softmax(logits_i)[token i] for each of `tokens`; `logits` has a row `[vocab]` for each."""
    log_p = logits.log_softmax(-1) if logits.element_size() == 8 else logits.float().log_softmax(-1)
    return log_p[range(len(tokens)), tokens].tolist()
