"""The page table of a KV cache: fixed blocks, reference counts, prefix cache, copy-on-write.

Only block numbers live here, no keys or values. A *block table* lists the blocks of one sequence: position i
lies in block `table[i // block_size]`, at offset `i % block_size`. Two rules keep every reader right:

1. A block that several tables hold, or that carries a hash, is never written: `extend` sees to it.
2. A hash describes what the block holds: `register` a block once its tokens are final and written.

Source: Kwon et al. 2023 (arXiv 2309.06180), sections 4.2 to 4.4; vLLM's `BlockPool` for the prefix cache.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

Key = tuple[bytes, tuple[int, ...], str]


class OutOfBlocks(RuntimeError):
    """Fewer blocks are free than were asked for; pool and block table are as they were."""

    def __init__(self, asked: int, free: int, total: int):
        self.asked, self.free = asked, free
        super().__init__(
            f"asked for {asked} blocks, {free} of {total} are free: "
            "free or shorten a sequence, or build the pool with more blocks"
        )


@dataclass
class Block:
    """A physical block: how many tables hold it and, once registered, the hash and key of what it holds."""

    id: int
    refs: int = 0
    hash: bytes | None = None
    key: Key | None = None


def hash_block(key: Key) -> bytes:
    """Hash of a full block; its key is (hash of the block before it or b"", its tokens, an extra key).

    The parent's hash stands for the whole prefix: after a different one, equal tokens have other keys and values.
    The extra key keeps apart what tokens do not show, such as an adapter or a tenant.
    """
    return hashlib.sha256(repr(key).encode()).digest()


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens each, all free at first.

    A free block keeps its hash, and may be found again, until it is handed out: least recently freed first.
    """

    def __init__(self, num_blocks: int, block_size: int = 16):
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"got {num_blocks} blocks of {block_size} tokens: both must be at least 1")
        self.block_size = block_size
        self.blocks = [Block(i) for i in range(num_blocks)]
        # A dictionary over a linked list: a prefix hit leaves the middle of the queue in O(1).
        self.free_queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        # Several sequences may have computed equal blocks. All are listed: whichever is evicted, another is found.
        self.cached: dict[bytes, dict[int, None]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that no table holds, cached ones among them."""
        return len(self.free_queue)

    @property
    def num_used(self) -> int:
        """Blocks that at least one table holds."""
        return len(self.blocks) - len(self.free_queue)

    def blocks_for(self, length: int) -> int:
        """Blocks that `length` tokens take: ceil(length / block_size)."""
        return -(-length // self.block_size)

    def allocate(self, n: int) -> list[int]:
        """Take `n` free blocks, all or none. Raises OutOfBlocks."""
        if n < 0:
            raise ValueError(f"cannot allocate {n} blocks: give a count of 0 or more")
        if n > self.num_free:
            raise OutOfBlocks(n, self.num_free, len(self.blocks))
        taken = [self.free_queue.popitem(last=False)[0] for _ in range(n)]
        for block in taken:
            self._forget(block)
            self.blocks[block].refs = 1
        return taken

    def share(self, table: Sequence[int]) -> list[int]:
        """A second table over the same blocks (fork). Raises ValueError if one of them is free."""
        self._check_held(table)
        for block in table:
            self.blocks[block].refs += 1
        return list(table)

    def free(self, table: Sequence[int]) -> None:
        """Let go of each block, the last first, so that a prefix is evicted after what was built on it.

        Raises ValueError, and frees nothing, if a block is unknown, free already, or named twice.
        """
        self._check_held(table)
        for block in reversed(table):
            self.blocks[block].refs -= 1
            if self.blocks[block].refs == 0:
                self.free_queue[block] = None

    def extend(self, table: list[int], length: int, new_length: int) -> list[tuple[int, int]]:
        """Make positions `length` to `new_length - 1` of a sequence writable, or none; changes its table.

        Returns the (source, target) blocks to copy before writing: a half-full last block that other tables
        hold too gives way to a copy (copy-on-write). Raises OutOfBlocks; ValueError if `length` is not what
        the table was made for.
        """
        if not 0 <= length <= new_length or len(table) != self.blocks_for(length):
            raise ValueError(
                f"cannot extend a table of {len(table)} blocks from {length} to {new_length} tokens: "
                "give the length it has now and one that is not shorter (truncate shortens)"
            )
        self._check_held(table[-1:])
        half_full = new_length > length and length % self.block_size > 0
        shared = half_full and self.blocks[table[-1]].refs > 1
        fresh = self.allocate(self.blocks_for(new_length) - len(table) + shared)
        copies = []
        if shared:
            copies = [(table.pop(), fresh[0])]
            self.blocks[copies[0][0]].refs -= 1
        elif half_full:
            self._forget(table[-1])
        table += fresh
        return copies

    def truncate(self, table: list[int], length: int) -> None:
        """Keep the blocks of the first `length` tokens and free the others; changes the table.

        A block cut in its middle keeps content and hash until `extend` makes it writable.
        """
        if not 0 <= length <= len(table) * self.block_size:
            raise ValueError(f"cannot truncate a table of {len(table)} blocks to {length} tokens")
        keep = self.blocks_for(length)
        self.free(table[keep:])
        del table[keep:]

    def register(self, table: Sequence[int], tokens: Sequence[int], extra: str = "") -> None:
        """Offer the full blocks of a sequence for reuse; `tokens` are its tokens from the start.

        Under speculation register committed tokens only. Raises ValueError if the table is too short.
        """
        full = len(tokens) // self.block_size
        if full > len(table):
            raise ValueError(f"tokens for {full} full blocks, but a table of {len(table)}: extend it first")
        self._check_held(table[:full])
        parent = b""
        for i, block in enumerate(self.blocks[b] for b in table[:full]):
            if block.hash is None:
                block.key = self._key(parent, tokens, i, extra)
                block.hash = hash_block(block.key)
                self.cached.setdefault(block.hash, {})[block.id] = None
            parent = block.hash

    def reuse_prefix(self, tokens: Sequence[int], extra: str = "") -> list[int]:
        """Table over the longest cached prefix of a prompt; it holds `len(table) * block_size` tokens.

        At least one token is left over, even if all are cached: the logits after the prompt must be computed.
        """
        table: list[int] = []
        parent = b""
        for i in range((len(tokens) - 1) // self.block_size):
            key = self._key(parent, tokens, i, extra)
            parent = hash_block(key)
            # The latest of equal blocks. Comparing keys makes a hash collision a miss.
            twins = reversed(self.cached.get(parent, {}))
            found = next((block for block in twins if self.blocks[block].key == key), None)
            if found is None:
                break
            table.append(found)
        for block in table:
            self.free_queue.pop(block, None)
            self.blocks[block].refs += 1
        return table

    def _key(self, parent: bytes, tokens: Sequence[int], i: int, extra: str) -> Key:
        return parent, tuple(map(int, tokens[i * self.block_size : (i + 1) * self.block_size])), extra

    def _forget(self, block: int) -> None:
        known = self.blocks[block]
        if known.hash is not None:
            del self.cached[known.hash][block]
            if not self.cached[known.hash]:
                del self.cached[known.hash]
        known.hash = known.key = None

    def _check_held(self, table: Sequence[int]) -> None:
        wrong = [b for b in table if not 0 <= b < len(self.blocks) or self.blocks[b].refs == 0]
        if wrong or len(set(table)) != len(table):
            raise ValueError(
                f"of blocks {list(table)}, {wrong or 'one'} is unknown, free already, or named twice: "
                f"name blocks from 0 to {len(self.blocks) - 1} that a table holds, each once"
            )
