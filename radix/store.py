"""The prefix store: the tree and the block pool behind one object.

It never sees a tensor. It decides, and returns what to copy as data; the runtime carries it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from radix.availability import obtainable_blocks
from radix.errors import InvalidArgument, OutOfBlocks, SequenceClosed
from radix.eviction import policy_named
from radix.info import Copy, NodeInfo, StoreStats
from radix.invariants import check_store
from radix.namespace import Namespace
from radix.node import Node
from radix.pool import BlockPool
from radix.sequence import Sequence
from radix.tokens import as_tokens
from radix.tree import RadixTree

DEFAULT_NAMESPACE = Namespace()


class PrefixStore:
    """Maps token prefixes to ref-counted KV blocks.

    Not thread-safe: one thread owns it.

    Args:
        num_blocks: blocks in the pool.
        block_size: token slots a block.
        eviction: name of the eviction order, see `radix.eviction.POLICIES`.
        clock: seconds, never going back.
        track_changes: keep what `changes` reports.

    Raises:
        InvalidArgument: a value outside its limits.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        eviction: str = "lru",
        clock: Callable[[], float] = time.monotonic,
        track_changes: bool = False,
    ) -> None:
        if not 1 <= block_size <= 65536:
            raise InvalidArgument(f"block_size is {block_size}: it must be from 1 to 65536")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._clock = clock
        self._pool = BlockPool(num_blocks)
        self._tree = RadixTree(self._pool, block_size, policy_named(eviction), track_changes)
        self._open: set[Sequence] = set()
        self._lookup_tokens = 0
        self._hit_tokens = 0
        self._evicted_tokens = 0
        self._evicted_blocks = 0
        self._copied_tokens = 0

    # The life of a sequence

    def match(self, tokens: ArrayLike, namespace: Namespace = DEFAULT_NAMESPACE) -> int:
        """Return how many leading tokens are cached. Changes nothing.

        Raises:
            InvalidTokens: see `radix.tokens.as_tokens`.
        """
        return self._tree.match(as_tokens(tokens), namespace)

    def open(self, tokens: ArrayLike, namespace: Namespace = DEFAULT_NAMESPACE, publish: bool = True) -> Sequence:
        """Open a sequence on the longest cached prefix of `tokens`, at most all but the last token.

        Its blocks are held until it is closed. With `publish=False` it neither reads the cache nor adds to it.

        Args:
            tokens: int[n], n >= 1.

        Raises:
            InvalidTokens: no tokens, or see `radix.tokens.as_tokens`.
        """
        ids = as_tokens(tokens)
        if len(ids) == 0:
            raise InvalidArgument("tokens is empty: a sequence needs at least one")
        if not publish:
            seq = Sequence(namespace, self.block_size, np.empty(0, dtype=np.int32), 0, None)
        else:
            node, length, table = self._tree.path(ids[:-1], namespace)
            seq = Sequence(namespace, self.block_size, table, length, node)
            self._pool.pin(table)
            self._tree.enter(seq, node)
            self._tree.use(node, self._clock(), hit=True)
            self._lookup_tokens += len(ids)
            self._hit_tokens += length
        self._open.add(seq)
        return seq

    def reserve(self, seq: Sequence, n: int) -> list[Copy]:
        """Make room for `n` tokens after the committed ones, evicting what has to go.

        Returns:
            Copies to carry out before the next forward pass. Their sources are held until the next commit or close.

        Raises:
            OutOfBlocks: there is not that much to be had; nothing was changed.
            SequenceClosed, InvalidArgument.
        """
        self._check_open(seq)
        if n < 0:
            raise InvalidArgument(f"n is {n}: it must be at least 0")
        if n == 0:
            return []
        copy = seq.reads_partial_block
        have = len(seq.table)
        fresh = -(-(seq.length + n) // self.block_size) - have + copy
        if fresh <= 0:
            return []
        self._make_room(fresh)
        blocks = self._pool.allocate(fresh)
        if not copy:
            seq.append_blocks(blocks)
            return []
        source = seq.drop_last_block()
        seq.copy_sources.append(source)
        seq.append_blocks(blocks)
        tokens = seq.length % self.block_size
        self._copied_tokens += tokens
        return [Copy(source, int(blocks[0]), tokens)]

    def drop_partial(self, seq: Sequence) -> int:
        """Give up the part of the committed tokens that lies in a block which the sequence would have to copy.

        A copy needs source and destination at once: without it a request that needs the whole pool still runs.

        Returns:
            Tokens given up, to be computed again; 0 when there was no such part.
        """
        self._check_open(seq)
        if not seq.reads_partial_block:
            return 0
        tokens = seq.length % self.block_size
        block = seq.drop_last_block()
        self._tree.rewind(seq, seq.length - tokens)
        seq.matched = min(seq.matched, seq.length)
        self._pool.unpin(np.array([block], dtype=np.int32))
        return tokens

    def commit(self, seq: Sequence, tokens: ArrayLike) -> None:
        """The KV of these tokens is written, at positions `seq.length` and on: others may share it from now on.

        Raises:
            InvalidArgument: more tokens than were reserved.
            InvalidTokens, SequenceClosed.
        """
        self._check_open(seq)
        ids = as_tokens(tokens)
        if seq.length + len(ids) > seq.capacity:
            raise InvalidArgument(
                f"tokens holds {len(ids)}: {max(0, seq.capacity - seq.length)} are reserved after those committed"
            )
        if len(ids) == 0:
            return
        if seq.node is not None:
            self._tree.extend(seq, ids)
        seq.length += len(ids)
        self._drop_copy_sources(seq)

    def fork(self, seq: Sequence) -> Sequence:
        """Return a second sequence with the same committed tokens.

        No KV is copied now; whoever first has to write in a block that it did not allocate copies then.

        Raises:
            SequenceClosed.
        """
        self._check_open(seq)
        table = seq.table[: -(-seq.length // self.block_size)].copy()
        child = Sequence(seq.namespace, self.block_size, table, seq.length, seq.node)
        self._pool.pin(table)
        if seq.node is not None:
            self._tree.enter(child, seq.node)
        self._open.add(child)
        return child

    def close(self, seq: Sequence) -> None:
        """Give back everything that the sequence holds. Closing twice is fine."""
        if seq.closed:
            return
        seq.closed = True
        self._open.discard(seq)
        if seq.node is not None:
            self._tree.use(seq.node, self._clock(), hit=False)
            self._tree.leave(seq)
            seq.node = None
        self._drop_copy_sources(seq)
        self._pool.unpin(seq.table)

    def _drop_copy_sources(self, seq: Sequence) -> None:
        for block in seq.copy_sources:
            self._pool.unpin(np.array([block], dtype=np.int32))
        seq.copy_sources.clear()

    @staticmethod
    def _check_open(seq: Sequence) -> None:
        if seq.closed:
            raise SequenceClosed("the sequence was closed before")

    def refresh(self, tokens: ArrayLike, namespace: Namespace = DEFAULT_NAMESPACE) -> None:
        """Move the recency of the cached prefix of `tokens`: a queued request is going to need it.

        Raises:
            InvalidTokens: see `radix.tokens.as_tokens`.
        """
        self._tree.refresh(as_tokens(tokens), namespace, self._clock())

    # Room

    @property
    def free_blocks(self) -> int:
        return self._pool.free

    def _make_room(self, blocks: int) -> None:
        if self._pool.free >= blocks:
            return
        available = obtainable_blocks(self._pool, self._tree, self._open, blocks)
        if available < blocks:
            raise OutOfBlocks(blocks, available, self.num_blocks)
        self.evict(blocks - self._pool.free)

    def evict(self, blocks: int) -> int:
        """Evict until `blocks` more blocks are free, or nothing is left that may go.

        Returns:
            Blocks that came free.
        """
        before = self._pool.free
        self._evicted_tokens += self._tree.evict(blocks)
        freed = self._pool.free - before
        self._evicted_blocks += freed
        return freed

    def flush(self, namespace: Namespace | None = None) -> tuple[int, int]:
        """Forget a namespace, or everything. Open sequences go on and publish nothing more.

        Returns:
            Tokens forgotten and blocks that came free.
        """
        before = self._pool.free
        names = list(self._tree.roots) if namespace is None else [namespace]
        tokens = sum(self._tree.flush(name) for name in names)
        return tokens, self._pool.free - before

    # Inspecting

    def stats(self) -> StoreStats:
        """Count the pool and the tree; O(nodes)."""
        pool, tree = self._pool, self._tree
        private = sum(seq.length for seq in self._open if seq.node is None)
        return StoreStats(
            total_blocks=pool.num_blocks,
            free_blocks=pool.free,
            active_blocks=pool.pinned,
            cached_blocks=pool.held - pool.pinned,
            block_size=self.block_size,
            cached_tokens=tree.tokens,
            nodes=tree.nodes,
            max_depth=self._max_depth(),
            namespaces=len(tree.roots),
            open_sequences=len(self._open),
            lookup_tokens=self._lookup_tokens,
            hit_tokens=self._hit_tokens,
            evicted_tokens=self._evicted_tokens,
            evicted_blocks=self._evicted_blocks,
            copied_tokens=self._copied_tokens,
            unused_slots=max(0, pool.held * self.block_size - tree.tokens - private),
        )

    def _max_depth(self) -> int:
        deepest = 0
        stack = [(root, 0) for root in self._tree.roots.values()]
        while stack:
            node, depth = stack.pop()
            deepest = max(deepest, depth)
            stack.extend((child, depth + 1) for child in node.children.values())
        return deepest

    def nodes(self, namespace: Namespace | None = None, head_tokens: int = 16) -> Iterator[NodeInfo]:
        """Yield the nodes of one namespace or of all, parents first."""
        roots = self._tree.roots
        names = list(roots) if namespace is None else [namespace] if namespace in roots else []
        for name in names:
            for node in self._tree.below(roots[name]):
                yield _info(node, name, head_tokens)

    def changes(self, head_tokens: int = 16) -> tuple[list[NodeInfo], list[int]]:
        """Return the nodes that are new or different since the last call, and the ids of those that went.

        Raises:
            InvalidArgument: the store was made without `track_changes`.
        """
        tree = self._tree
        if not tree.track_changes:
            raise InvalidArgument("track_changes is off: changes are not recorded")
        upserted = [_info(node, tree.namespace_of(node), head_tokens) for node in tree.touched.values()]
        removed = tree.removed.copy()
        tree.touched.clear()
        tree.removed.clear()
        return upserted, removed

    def check(self) -> None:
        """Recompute every invariant of pool and tree. Raises AssertionError on the first that does not hold."""
        check_store(self._pool, self._tree, self._open)


def _info(node: Node, namespace: Namespace, head_tokens: int) -> NodeInfo:
    return NodeInfo(
        id=node.id,
        parent_id=node.parent.id if node.parent is not None else 0,
        namespace=namespace,
        start=node.start,
        tokens=len(node.tokens),
        blocks=len(node.blocks),
        hits=node.hits,
        last_used=node.last_used,
        holders=len(node.users),
        children=len(node.children),
        head=node.tokens.view[:head_tokens].copy(),
    )
