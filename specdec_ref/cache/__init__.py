"""Key-value caches: contiguous, or in blocks of a pool that sequences share."""

from typing import TYPE_CHECKING

from specdec_ref.lazy import attach

if TYPE_CHECKING:
    from specdec_ref.cache.block_pool import BlockPool as BlockPool
    from specdec_ref.cache.block_pool import OutOfBlocks as OutOfBlocks
    from specdec_ref.cache.block_pool import hash_block as hash_block
    from specdec_ref.cache.dense import DenseCache as DenseCache
    from specdec_ref.cache.paged import PagedKVPool as PagedKVPool
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
