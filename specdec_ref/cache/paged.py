"""The paged KV cache: keys and values of many sequences in one pool of blocks.

`BlockPool` decides which blocks a sequence holds, here are the numbers in them. Each sequence is a `PagedCache`, which
does what a `DenseCache` does, and more: it forks without copying, takes over the blocks of a prompt that begins as an
earlier one did, and gives back what it no longer needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specdec_ref.cache.block_pool import BlockPool
from specdec_ref.cache.dense import Memory, check_keep, check_truncate
from specdec_ref.kernels.attention import paged_attention


class PagedKVPool:
    """Keys and values of all layers, `[n_layers, n_kv_heads, num_blocks, block_size, head_dim]` each.

    model: the reference Llama whose keys and values these are; other models bring a cache of their own.
    attention: `paged_attention` of `specdec_ref.kernels.attention`, or a kernel with the same signature.
    Raises TypeError for another model, ValueError for a pool without blocks.
    """

    def __init__(
        self, model: Any, num_blocks: int, block_size: int = 16, attention: Callable[..., Tensor] = paged_attention
    ) -> None:
        c: Any = getattr(model, "config", None)
        if not hasattr(c, "n_kv_heads"):
            raise TypeError(
                f"{type(model).__name__} brings a cache of its own: only the reference Llama's can be paged"
            )
        self.model = model
        self.attention = attention
        self.block_pool = BlockPool(num_blocks, block_size)
        shape = (c.n_layers, c.n_kv_heads, num_blocks, block_size, c.head_dim)
        self.keys = torch.empty(shape, dtype=model.dtype, device=model.device)
        self.values = torch.empty_like(self.keys)

    @property
    def nbytes(self) -> int:
        """Bytes reserved for keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def check(self, model: Any) -> None:
        """Raises ValueError for a model whose keys and values these are not."""
        if model is not self.model:
            raise ValueError(
                "this pool holds keys and values of another model: give each its own, PagedKVPool(model, num_blocks)"
            )

    def new_sequence(self, tokens: Sequence[int] = ()) -> PagedCache:
        """A cache that holds as much of a prompt as the pool still knows; see `PagedCache.reuse`."""
        cache = PagedCache(self)
        cache.reuse(tokens)
        return cache


class PagedCache:
    """The cache of one sequence: a block table over a `PagedKVPool`, and how many tokens it stands for.

    Position i lies in block `table[i // block_size]`, at offset `i % block_size`. `truncate(0)` gives all blocks back;
    a sequence that is dropped without it keeps them.
    """

    def __init__(self, pool: PagedKVPool) -> None:
        self.pool = pool
        self.table: list[int] = []
        self.length = 0
        self.reserve(0)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks it holds, shared ones too."""
        return len(self.table) * self.pool.nbytes // len(self.pool.block_pool.blocks)

    @property
    def room(self) -> int:
        """How many more tokens it can take in, as the pool is now."""
        pool = self.pool.block_pool
        blocks = len(self.table) + pool.num_free
        if self.length % pool.block_size and pool.blocks[self.table[self.length // pool.block_size]].refs > 1:
            blocks -= 1  # a half-full block that others read is copied
        return blocks * pool.block_size - self.length

    def reuse(self, tokens: Sequence[int]) -> None:
        """Take over the blocks of the longest cached prefix of a prompt; at least its last token is left over.

        What they hold is as those passes rounded it: a prefill cut elsewhere differs by the rounding error.
        Raises ValueError for a cache that holds tokens already.
        """
        if self.length:
            raise ValueError(f"this cache holds {self.length} tokens: only an empty one can begin with a known prefix")
        self.truncate(0)
        self.table = self.pool.block_pool.reuse_prefix(tokens)
        self.length = len(self.table) * self.pool.block_pool.block_size

    def register(self, tokens: Sequence[int]) -> None:
        """Offer the full blocks for reuse; `tokens` are those taken in, from the first on.

        Raises ValueError for more tokens than are held.
        """
        if len(tokens) > self.length:
            raise ValueError(f"this cache holds {self.length} tokens, not {len(tokens)}: register those it took in")
        self.pool.block_pool.register(self.table, tokens)

    def fork(self) -> PagedCache:
        """A second sequence with the same tokens. A shared block is copied before it is written (copy-on-write)."""
        self.truncate(self.length)
        twin = PagedCache(self.pool)
        twin.table, twin.length = self.pool.block_pool.share(self.table), self.length
        return twin

    def slots(self, start: int, stop: int) -> Tensor:
        """Where positions `start` to `stop - 1` lie: block * block_size + offset, int64 `[stop - start]`."""
        size = self.pool.block_pool.block_size
        slots = [self.table[i // size] * size + i % size for i in range(start, stop)]
        return torch.tensor(slots, dtype=torch.long, device=self.pool.keys.device)

    def gather(self) -> tuple[Tensor, Tensor]:
        """A copy of the keys and values held, `[n_layers, n_kv_heads, length, head_dim]` each."""
        slots = self.slots(0, self.length)
        return self.pool.keys.flatten(2, 3)[:, :, slots], self.pool.values.flatten(2, 3)[:, :, slots]

    def reserve(self, n_tokens: int) -> None:
        """Make room for `n_tokens` more, in blocks that nobody else reads. Raises OutOfBlocks, then nothing changed."""
        self.truncate(self.length)  # a pass that broke off has left its blocks behind
        end = self.length + n_tokens
        for source, target in self.pool.block_pool.extend(self.table, self.length, end):
            for tensor in (self.pool.keys, self.pool.values):
                tensor[:, :, target] = tensor[:, :, source]
        self._new_slots = self.slots(self.length, end)
        self._blocks = torch.tensor(self.table, dtype=torch.long, device=self.pool.keys.device)

    def attend(self, layer: int, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Write n new tokens of one layer, `[n_kv_heads, n, head_dim]`, and attend to them and all before.

        q, mask and the result are those of `specdec_ref.kernels.attention.attention`.
        """
        key_pool, value_pool = self.pool.keys[layer], self.pool.values[layer]
        key_pool.flatten(1, 2).index_copy_(1, self._new_slots, keys)
        value_pool.flatten(1, 2).index_copy_(1, self._new_slots, values)
        return self.pool.attention(q, key_pool, value_pool, self._blocks, self.length + keys.shape[1], mask)

    def memory(self, length: int) -> Memory:
        """Where the first `length` tokens' keys and values lie, for a compiled pass."""
        _, heads, blocks, size, d = self.pool.keys.shape
        slots = (self._blocks[:, None] * size + torch.arange(size)).flatten()[:length]
        return Memory(self.pool.keys, self.pool.values, heads * blocks * size * d, blocks * size * d, slots)

    def advance(self, n_tokens: int) -> None:
        """Count the `n_tokens` that every layer has just taken in."""
        self.length += n_tokens

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens (absolute), give back other blocks. Raises ValueError outside 0..length."""
        check_truncate(self.length, length)
        self.pool.block_pool.truncate(self.table, length)
        self.length = length

    def keep(self, indices: Sequence[int]) -> None:
        """Keep the tokens before `indices[0]`, and of the rest those at `indices` (absolute, rising), closed up.

        Only what lies after a gap moves, and a block that others read is copied before it is written. Raises ValueError
        for indices that are not held or do not rise, OutOfBlocks where such a copy has no room; then nothing is lost
        but the tokens from the first gap on.
        """
        check_keep(self.length, indices)
        start, end = indices[0], indices[0] + len(indices)
        if indices[-1] < end:
            self.truncate(end)
            return
        first = next(i for i, at in enumerate(indices) if at != start + i)
        slots = torch.cat([self.slots(at, at + 1) for at in indices[first:]])
        keys, values = (p.flatten(2, 3)[:, :, slots] for p in (self.pool.keys, self.pool.values))
        self.truncate(start + first)
        self.reserve(len(slots))
        self.pool.keys.flatten(2, 3).index_copy_(2, self._new_slots, keys)
        self.pool.values.flatten(2, 3).index_copy_(2, self._new_slots, values)
        self.advance(len(slots))
