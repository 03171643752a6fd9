"""A server's KV cache memory under contiguous reservation and under paging, simulated token by token.

Memory is counted in slots of one token. Some request is always waiting, so that memory limits the batch; requests
start in order. Source: Kwon et al. 2023 (arXiv 2309.06180), sections 3.1 and 6.1, figures 2, 3, 11 and 13.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specdec_ref.cache import BlockPool, OutOfBlocks

Lengths = Sequence[int] | NDArray[np.int64]
Policy = Literal["max", "pow2", "oracle"]
# At one step: slots of each kind, in the order of Waste, and the batch.
Sample = tuple[int, int, int, int, int, int]


@dataclass(frozen=True)
class Waste:
    """Mean shares of the slots, which add up to 1, and the mean batch.

    token_states: hold the keys and values of a token.
    reserved: held for tokens that the request will still produce.
    internal: held by a request that will end before it needs them; known only once it has ended.
    external: lost to the allocator: rounding to its chunk sizes, and free space that would suffice for the next
        request if it were contiguous.
    free: held by no request, and too few to admit the next one (figure 2: "external fragmentation & others").
    batch: requests running at a time.
    preemptions: how often a request lost its blocks to older ones and had to wait again.
    """

    token_states: float
    reserved: float
    internal: float
    external: float
    free: float
    batch: float
    preemptions: int


@dataclass(frozen=True)
class Holding:
    """What one running request holds at one step.

    request: its number. pieces: (first slot, number of slots) of each piece of memory, in the order of its tokens.
    length: tokens it has now. final: tokens it will have at its end.
    """

    request: int
    pieces: Sequence[tuple[int, int]]
    length: int
    final: int


Watch = Callable[[Iterator[Holding]], None]  # called once a decode step with what the running requests hold


class BuddyAllocator:
    """Contiguous chunks of 2^k slots, halved to fit a request and merged with their other half on release.

    Kwon et al. (section 6.1) assume it for Orca. A capacity that is not a power of two starts as several chunks.
    """

    def __init__(self, capacity: int):
        self.free: dict[int, set[int]] = {}
        start = 0
        for bit in reversed(range(capacity.bit_length())):
            self.free[1 << bit] = set()
            if capacity >> bit & 1:
                self.free[1 << bit].add(start)
                start += 1 << bit

    @staticmethod
    def chunk(size: int) -> int:
        """Slots that a request for `size` slots occupies: the next power of two."""
        return 1 << (size - 1).bit_length()

    def allocate(self, size: int) -> int | None:
        """First slot of the smallest, then leftmost, free chunk that holds `size` slots; None if there is none."""
        wanted = self.chunk(size)
        found = min((c for c, starts in self.free.items() if c >= wanted and starts), default=None)
        if found is None:
            return None
        start = min(self.free[found])
        self.free[found].remove(start)
        while found > wanted:
            found //= 2
            self.free[found].add(start + found)
        return start

    def release(self, start: int, size: int) -> None:
        """Free the chunk that `allocate(size)` returned as `start`."""
        chunk = self.chunk(size)
        while (buddy := start ^ chunk) in self.free[chunk]:
            self.free[chunk].remove(buddy)
            start, chunk = min(start, buddy), 2 * chunk
        self.free[chunk].add(start)


def draw_lengths(
    n: int,
    rng: np.random.Generator,
    mean_prompt: float = 161.31,
    mean_output: float = 337.99,
    sigma: float = 1.0,
    max_len: int = 2048,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prompt and output lengths of `n` requests in tokens, `[n]` each: log-normal, from 1, together up to `max_len`.

    The means, before clipping, are those of ShareGPT in Kwon et al., figure 11. The log-normal shape and `sigma`, the
    standard deviation of the logarithm, are assumptions.
    """
    prompts = rng.lognormal(np.log(mean_prompt) - sigma**2 / 2, sigma, n)
    outputs = rng.lognormal(np.log(mean_output) - sigma**2 / 2, sigma, n)
    whole = np.clip(np.rint(prompts), 1, max_len - 1).astype(np.int64)
    return whole, np.clip(np.rint(outputs), 1, max_len - whole).astype(np.int64)


def reservation(prompt: int, output: int, policy: Policy, max_len: int = 2048) -> int:
    """Slots that a contiguous system reserves for a request when it starts (Kwon et al., section 6.1).

    "max": the longest sequence allowed. "pow2": the output rounded up to a power of two. "oracle": what it will need.
    Raises ValueError for any other policy.
    """
    if policy == "max":
        return max_len
    if policy == "pow2":
        return min(max_len, prompt + BuddyAllocator.chunk(output))
    if policy == "oracle":
        return prompt + output
    raise ValueError(f"policy is {policy!r}: give 'max', 'pow2' or 'oracle'")


def serve_contiguous(
    prompts: Lengths,
    outputs: Lengths,
    policy: Policy,
    capacity: int = 15_700,
    max_len: int = 2048,
    watch: Watch | None = None,
) -> Waste:
    """Serve the requests from contiguous reservations.

    capacity: slots; by default those of OPT-13B on an A100 with 40 GB (table 1). watch: called at each step. Raises
    ValueError for lengths out of range, a reservation that can never fit, or so few requests that memory is never
    short.
    """
    final = _final_lengths(prompts, outputs, min(capacity, max_len))
    size = [reservation(int(p), int(o), policy, max_len) for p, o in zip(prompts, outputs, strict=True)]
    length = [int(p) for p in prompts]
    memory = BuddyAllocator(capacity)
    waiting, running = deque(range(len(final))), dict[int, int]()
    samples: list[Sample] = []
    ended = 0
    while True:
        while waiting and (start := memory.allocate(size[waiting[0]])) is not None:
            running[waiting.popleft()] = start
        if not waiting:
            return _mean(samples, capacity, preemptions=0)
        if not running:
            raise ValueError(
                f"a request reserves {size[waiting[0]]} slots, and {capacity} hold no such chunk: give more capacity"
            )
        if watch:
            watch(Holding(i, [(start, size[i])], length[i], final[i]) for i, start in running.items())
        if ended:
            tokens = sum(length[i] for i in running)
            ends = sum(final[i] for i in running)
            held = sum(size[i] for i in running)
            chunks = sum(memory.chunk(size[i]) for i in running)
            gaps = capacity - chunks
            scattered = gaps if gaps >= size[waiting[0]] else 0
            external = chunks - held + scattered
            samples.append((tokens, ends - tokens, held - ends, external, gaps - scattered, len(running)))
        for i in list(running):
            length[i] += 1
            if length[i] == final[i]:
                memory.release(running.pop(i), size[i])
                ended += 1


def serve_paged(
    prompts: Lengths,
    outputs: Lengths,
    block_size: int = 16,
    capacity: int = 15_700,
    watermark: float = 0.01,
    watch: Watch | None = None,
) -> Waste:
    """Serve the requests from a `BlockPool`: a request takes a block whenever its tokens need one.

    When none is free, the newest request gives up its blocks, waits, and is computed again (section 4.5). To make
    that rare, a request starts only if a share `watermark` of the blocks stays free (name and 0.01 as in vLLM's first
    block manager). watch: called at each step. Raises ValueError as `serve_contiguous` does.
    """
    pool = BlockPool(capacity // block_size, block_size)
    final = _final_lengths(prompts, outputs, len(pool.blocks) * block_size)
    length = [int(p) for p in prompts]
    waiting, running = deque(range(len(final))), dict[int, list[int]]()
    samples: list[Sample] = []
    ended = preemptions = 0
    while True:
        while waiting:
            spare = int(watermark * len(pool.blocks)) if running else 0
            if pool.blocks_for(length[waiting[0]]) + spare > pool.num_free:
                break
            newest = waiting.popleft()
            running[newest] = pool.allocate(pool.blocks_for(length[newest]))
        if not waiting:
            return _mean(samples, capacity, preemptions)
        if watch:
            watch(
                Holding(i, [(b * block_size, block_size) for b in t], length[i], final[i]) for i, t in running.items()
            )
        if ended:
            tokens = sum(length[i] for i in running)
            held = pool.num_used * block_size
            ends = sum(min(final[i], len(table) * block_size) for i, table in running.items())
            free = pool.num_free * block_size
            samples.append((tokens, ends - tokens, held - ends, capacity - held - free, free, len(running)))
        for i in list(running):
            while i in running:
                try:
                    pool.extend(running[i], length[i], length[i] + 1)
                    length[i] += 1
                    break
                except OutOfBlocks:
                    newest, table = running.popitem()
                    pool.free(table)
                    waiting.appendleft(newest)
                    preemptions += 1
            if i in running and length[i] == final[i]:
                pool.free(running.pop(i))
                ended += 1


def block_utilisation(lengths: Lengths, block_size: int) -> float:
    """Share of slots that hold a token, in the blocks that sequences of these lengths take."""
    pool = BlockPool(1, block_size)
    return float(np.sum(lengths) / sum(pool.blocks_for(int(n)) * block_size for n in lengths))


def fit_samples(pool: BlockPool, prompt: int, outputs: Lengths, share: bool = True) -> int:
    """How many samples of one prompt fit into the pool at full length, with the prompt shared or copied.

    They stay in the pool, so that `pool.num_used` counts their blocks.
    """
    parent: list[int] = []
    if share:
        pool.extend(parent, 0, prompt)
    fitted = 0
    for output in outputs:
        table = pool.share(parent)
        try:
            pool.extend(table, prompt if share else 0, prompt + int(output))
        except OutOfBlocks:
            pool.free(table)
            break
        fitted += 1
    pool.free(parent)
    return fitted


def _final_lengths(prompts: Lengths, outputs: Lengths, limit: int) -> list[int]:
    final = [int(p) + int(o) for p, o in zip(prompts, outputs, strict=True)]
    if len(final) == 0 or min(prompts) < 1 or min(outputs) < 1 or max(final) > limit:
        raise ValueError(f"give at least one request, prompts and outputs from 1 token, together up to {limit}")
    return final


def _mean(samples: list[Sample], capacity: int, preemptions: int) -> Waste:
    if not samples:
        raise ValueError("no request ended while others were waiting, so memory was never short: give more requests")
    *slots, batch = np.mean(samples, axis=0).tolist()
    tokens, reserved, internal, external, free = (mean / capacity for mean in slots)
    return Waste(tokens, reserved, internal, external, free, batch, preemptions)
