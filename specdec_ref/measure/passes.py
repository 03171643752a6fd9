"""Timing forward passes of a model over several numbers of tokens, and with several numbers of threads.

Every function takes turns between the things it compares, so that a slow minute of the machine affects all alike, and
takes a `clock`: `time.perf_counter` by default. With one thread, `time.thread_time` counts only the time in which the
thread itself ran, so it hardly notices other programs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

from specdec_ref.arithmetic import measured_curve
from specdec_ref.engine.control import Controller
from specdec_ref.interfaces import CausalLM, Drafter

Clock = Callable[[], float]
T = TypeVar("T")


class Progress(Protocol):
    """Passes on the steps of a long measurement while it shows how many are done; tqdm is one."""

    def __call__(self, steps: Collection[T], what: str, /) -> Iterable[T]: ...


def silently(steps: Collection[T], what: str = "", /) -> Iterable[T]:
    """The steps, with nothing shown."""
    return steps


def pass_seconds(
    model: CausalLM,
    n_tokens: Sequence[int] = (1, 2, 4, 8, 16),
    context: int = 64,
    repeats: int = 8,
    clock: Clock = time.perf_counter,
    progress: Progress = silently,
) -> dict[int, list[float]]:
    """Seconds of one forward pass over n tokens, with `context` tokens in the cache; `repeats` of each n.

    The sizes take turns, so that a slow minute of the machine hits all alike. Each pass returns the logits of all its
    tokens, as verification needs them. The context is cut to what the model takes beside the largest pass. Raises
    ValueError for a pass that exceeds the model's context by itself.
    """
    timed = timed_pass(model, context, max(n_tokens), clock)
    seconds: dict[int, list[float]] = {n: [] for n in n_tokens}
    for _ in progress(range(repeats + 1), "rounds of passes"):
        for n in n_tokens:
            seconds[n].append(timed(n))
    return {n: times[1:] for n, times in seconds.items()}  # the first round warms up


def relative_cost(seconds: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """T(n) / T(1) by n from the repeats of `pass_seconds`, their medians; v(gamma) = T(gamma + 1) / T(1).

    Raises ValueError where n = 1 was not measured.
    """
    if 1 not in seconds:
        raise ValueError("a pass over one token was not measured: include 1 in n_tokens")
    medians = {n: statistics.median(times) for n, times in seconds.items()}
    v = measured_curve(medians)
    return {n: v(n - 1) for n in medians}


def controller(
    target: CausalLM,
    *drafters: Drafter,
    most: int = 11,
    context: int = 128,
    repeats: int = 5,
    clock: Clock = time.perf_counter,
    repeatable: bool = False,
) -> Controller:
    """A `Controller` of `drafters` by `target`'s passes, timed here and now: a second for the default model.

    most: the largest number of drafts; it and the context are cut to what the model takes.
    repeatable: keep these times instead of timing on, so that a seed gives the same sampled text again.
    """
    if target.max_context is not None:
        most = min(most, target.max_context - 1)
    sizes = sorted({n for n in (1, 2, 3, 4, 6, 8, 12, 16, most + 1) if n <= most + 1})
    seconds = pass_seconds(target, sizes, context, repeats, clock)
    typical = {n: statistics.median(seconds[n]) for n in sizes}
    return Controller(drafters, typical, clock=None if repeatable else clock)


def fastest_threads(
    model: CausalLM, candidates: Sequence[int] = (), repeats: int = 7, clock: Clock = time.perf_counter
) -> int:
    """The number of threads with which a pass over one token takes least here and now; PyTorch's setting is left alone.

    candidates: 1 and PyTorch's own number where none are given. They take turns. On an idle machine all threads win; on
    one where something else wants a core, threads that wait for each other can take ten times as long as one alone.
    """
    counts = sorted(set(candidates) or {1, torch.get_num_threads()})
    if len(counts) == 1:
        return counts[0]
    timed = timed_pass(model, 16, 1, clock)
    seconds: dict[int, list[float]] = {n: [] for n in counts}
    for _ in range(repeats + 1):  # the first round warms up
        for n in counts:
            with using_threads(n):
                seconds[n].append(timed(1))
    return min(counts, key=lambda n: statistics.median(seconds[n][1:]))


def timed_pass(model: CausalLM, context: int, largest: int, clock: Clock) -> Callable[[int], float]:
    """A function that times a pass over its number of tokens, `largest` at most, after `context` cached ones."""
    context = fitting_context(model, context, largest)
    cache = model.new_cache(context + largest)
    ids = torch.arange(context + largest, device=model.device) % model.vocab_size

    @torch.inference_mode()
    def timed(n_tokens: int) -> float:
        if cache.length < context:
            model.forward(ids[:context], cache, slice(0))
        synchronise(model.device)
        start = clock()
        model.forward(ids[context : context + n_tokens], cache)
        synchronise(model.device)
        seconds = clock() - start
        cache.truncate(context)
        return seconds

    return timed


def fitting_context(model: CausalLM, context: int, largest: int) -> int:
    """`context`, cut so that a pass over `largest` tokens still fits after it, as the engine cuts its budget.

    Raises ValueError where such a pass exceeds the model's context by itself.
    """
    if model.max_context is None:
        return context
    if largest > model.max_context:
        raise ValueError(f"a pass over {largest} tokens exceeds the model's context of {model.max_context}")
    return min(context, model.max_context - largest)


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """PyTorch with `count` threads inside the block, and the number from before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def synchronise(device: torch.device | str) -> None:
    """Wait until the device has finished its work; a CPU always has."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
