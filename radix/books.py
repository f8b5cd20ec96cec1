"""What the store counts, and how it is told."""

from __future__ import annotations

from collections.abc import Collection

from radix.info import StoreStats
from radix.pool import BlockPool
from radix.sequence import Sequence
from radix.tree import RadixTree

_EXACT_DEPTH_NODES = 1024


class StoreBooks:
    """Counters of one store since it was made.

    Attributes:
        evicted_tokens, evicted_blocks: taken from the tree to make room.
        copied_tokens: because a match ended inside a block.
    """

    def __init__(self) -> None:
        self.evicted_tokens = 0
        self.evicted_blocks = 0
        self.copied_tokens = 0
        self._depth = 0
        self._depth_at = -1

    def stats(self, pool: BlockPool, tree: RadixTree, sequences: Collection[Sequence], leases: int) -> StoreStats:
        """Count the pool and the tree; amortised O(1), see `StoreStats.max_depth`."""
        private = sum(seq.length for seq in sequences if seq.cursor.node is None)
        return StoreStats(
            total_blocks=pool.num_blocks,
            free_blocks=pool.free,
            active_blocks=pool.pinned,
            cached_blocks=pool.held - pool.pinned - pool.leaving,
            leaving_blocks=pool.leaving,
            block_size=tree.block_size,
            cached_tokens=tree.tokens,
            nodes=tree.nodes,
            max_depth=self._max_depth(tree),
            namespaces=len(tree.roots),
            open_sequences=len(sequences),
            evicted_tokens=self.evicted_tokens,
            evicted_blocks=self.evicted_blocks,
            copied_tokens=self.copied_tokens,
            unused_slots=max(0, pool.held * tree.block_size - tree.tokens - private),
            shared_blocks=pool.seq_holds - pool.pinned,
            leases=leases,
            leased_tokens=tree.leased_tokens,
        )

    def _max_depth(self, tree: RadixTree) -> int:
        changed = abs(tree.reshaped - self._depth_at)
        if self._depth_at < 0 or (changed and (tree.nodes <= _EXACT_DEPTH_NODES or changed > tree.nodes // 8)):
            self._depth = tree.depth()
            self._depth_at = tree.reshaped
        return self._depth
