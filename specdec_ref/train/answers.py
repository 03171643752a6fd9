"""The target answers prompts: greedily or sampled, many at a time, each with a random source of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdec_ref.sampling import RandomSource
from specdec_ref.train.batch import Rows


@dataclass(frozen=True)
class Request:
    """A prompt's tokens, and how to answer it.

    index: by which the answer is known. seed: any text; the same one gives the same draws.
    """

    index: int
    tokens: list[int]
    temperature: float
    seed: str


@dataclass
class _InFlight:
    request: Request
    source: RandomSource
    answer: list[int] = field(default_factory=list)


@torch.inference_mode()
def answers(
    rows: Rows,
    n_rows: int,
    requests: Sequence[Request],
    max_new_tokens: int,
    eos: Collection[int],
    report: Callable[[int], object] = lambda n: None,
) -> Iterator[tuple[int, list[int]]]:
    """Each request's index and its answer, end token included, in the order in which they end.

    As soon as an answer ends, the next request takes its row.
    report: told how many tokens each pass has given.
    """
    waiting, flying = list(reversed(requests)), list[_InFlight]()
    while waiting or flying:
        while waiting and len(flying) < n_rows:
            request = waiting.pop()
            one = _InFlight(request, _source(request.seed))
            _extend([one], rows.start(len(flying), request.tokens)[None])
            flying.append(one)
        for row in reversed(range(len(flying))):
            one = flying[row]
            if one.answer[-1] in eos or len(one.answer) >= max_new_tokens:
                report(len(one.answer))
                yield one.request.index, one.answer
                last = flying.pop()
                if last is not one:
                    rows.move(len(flying), row)
                    flying[row] = last
        if flying and not (waiting and len(flying) < n_rows):
            _extend(flying, rows.step([one.answer[-1] for one in flying]))


def _extend(flying: Sequence[_InFlight], logits: Tensor) -> None:
    """One more token for each answer, from its row of `logits` `[n, vocab]`."""
    best = logits.argmax(-1).tolist()
    for one, row, argmax in zip(flying, logits, best, strict=True):
        t = one.request.temperature
        one.answer.append(one.source.categorical(torch.softmax(row.float() / t, -1)) if t else argmax)


def _source(seed: str) -> RandomSource:
    return RandomSource(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big"))
