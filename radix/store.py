"""The prefix store: the tree and the block pool behind one object.

It never sees a tensor. It decides, and returns what to copy as data; the runtime carries it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from radix.availability import obtainable_blocks
from radix.block_events import BlockEvent, BlockEventLog, BlockStored
from radix.books import StoreBooks
from radix.cold.demoter import Demoter
from radix.cold.index import ColdIndex
from radix.cursor import Cursor
from radix.errors import InvalidArgument, OutOfBlocks, SequenceClosed
from radix.eviction import DEFAULT_POLICY, lapsed_first, policy_named
from radix.info import Copy, NodeInfo, StoreStats, node_info, nodes_of
from radix.invariants import check_store
from radix.leaf_queues import LeafQueues
from radix.namespace import Namespace
from radix.node import Node
from radix.observers import ChangeLog, Observers, TreeObserver
from radix.pool import BlockPool
from radix.retention import Retention
from radix.sequence import Sequence
from radix.tokens import Ints, as_tokens
from radix.tree import RadixTree
from radix.verdict import Verdict
from radix.witness import Witness

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
        record_events: keep what `events` reports.
        history_tokens: tokens of evicted prefixes that `explain` remembers; 0 keeps none.
        leasable_share: of the pool, how much leases may cover together.
        cold: where to tell of blocks that are evicted, by way of `demoter`.
        copies_take_time: with `cold`, keep an evicted block until its copy is reported.

    Raises:
        InvalidArgument: a value outside its limits.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        eviction: str = DEFAULT_POLICY,
        clock: Callable[[], float] = time.monotonic,
        *,
        track_changes: bool = False,
        record_events: bool = False,
        history_tokens: int = 0,
        leasable_share: float = 0.5,
        cold: ColdIndex | None = None,
        copies_take_time: bool = True,
    ) -> None:
        if not 1 <= block_size <= 65536:
            raise InvalidArgument(f"block_size is {block_size}: it must be from 1 to 65536")
        if history_tokens < 0:
            raise InvalidArgument(f"history_tokens is {history_tokens}: it must be at least 0")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._clock = clock
        self._pool = BlockPool(num_blocks)
        self._changes = ChangeLog() if track_changes else None
        self._events = BlockEventLog(block_size, self._namespace_of) if record_events else None
        self._witness = Witness(history_tokens, clock, self._namespace_of) if history_tokens else None
        observers: list[TreeObserver] = [o for o in (self._changes, self._events) if o is not None]
        if self._witness is not None:
            observers.append(self._witness.cuts)
        self.demoter: Demoter | None = None
        if cold is not None:
            self.demoter = Demoter(cold, self._pool, self._namespace_of, lend=copies_take_time)
            observers.append(self.demoter)
        observer = observers[0] if len(observers) == 1 else Observers(observers)
        policy = policy_named(eviction)
        queues = LeafQueues(policy if cold is None else lapsed_first(policy))
        self._tree = RadixTree(self._pool, block_size, queues, observer)
        self.retention = Retention(self._tree, num_blocks, block_size, clock, leasable_share)
        self._open: set[Sequence] = set()
        self._books = StoreBooks()

    def _namespace_of(self, node: Node) -> Namespace:
        return self._tree.namespace_of(node)

    # The life of a sequence

    def match(self, tokens: ArrayLike, namespace: Namespace = DEFAULT_NAMESPACE, public_tokens: int = 0) -> int:
        """Return how many leading tokens are cached. Changes nothing. `public_tokens`: see `open`.

        Raises:
            InvalidTokens: see `radix.tokens.as_tokens`.
        """
        ids = as_tokens(tokens)
        length = self._tree.match(ids, namespace)
        if public_tokens > length:
            length = max(length, self._tree.match(ids[:public_tokens], replace(namespace, salt=None)))
        return length

    def open(
        self,
        tokens: ArrayLike,
        namespace: Namespace = DEFAULT_NAMESPACE,
        *,
        publish: bool = True,
        public_tokens: int = 0,
        priority: int = 0,
        in_advance: bool = False,
    ) -> Sequence:
        """Open a sequence on the longest cached prefix of `tokens`, at most all but the last token.

        Its blocks are held until it is closed.

        Args:
            tokens: int[n], n >= 1.
            publish: False neither reads the cache nor adds to it.
            public_tokens: so many leading tokens may be shared with every salt of this fingerprint and adapter.
            priority: of the request, for the eviction policy of that name.
            in_advance: of a request that opens them again; this time does not count as a hit.

        Raises:
            InvalidTokens: see `radix.tokens.as_tokens`.
            InvalidArgument: no tokens, or `public_tokens` below 0.
        """
        ids = as_tokens(tokens)
        if len(ids) == 0:
            raise InvalidArgument("tokens is empty: a sequence needs at least one")
        if public_tokens < 0:
            raise InvalidArgument(f"public_tokens is {public_tokens}: it must be at least 0")
        if not publish:
            seq = Sequence(namespace, self.block_size, np.empty(0, dtype=np.int32), 0)
        else:
            seq = self._open_on_match(ids, namespace, 0 if namespace.salt is None else public_tokens)
            now = self._clock()
            for cursor in (seq.cursor, seq.public_cursor):
                self._tree.use(cursor, now, opened=not in_advance, priority=priority)
            if self._witness is not None:
                self._witness.opened(seq, ids[: seq.length])
        self._open.add(seq)
        return seq

    def _open_on_match(self, ids: Ints, namespace: Namespace, public_tokens: int) -> Sequence:
        tree, reusable = self._tree, ids[:-1]
        node, length = tree.find_or_plant(reusable, namespace)
        if not public_tokens:
            seq = Sequence(namespace, self.block_size, tree.table(node, length), length)
            self._pool.pin(seq.table)
            tree.enter(seq.cursor, node, length)
            return seq
        shared = reusable[:public_tokens]
        public_node, public_length = tree.find_or_plant(shared, replace(namespace, salt=None))
        best = (node, length) if length >= public_length else (public_node, public_length)
        seq = Sequence(namespace, self.block_size, tree.table(*best), best[1])
        seq.public_tokens = public_tokens
        self._pool.pin(seq.table)
        tree.enter(seq.cursor, node, length)
        tree.enter(seq.public_cursor, public_node, public_length)
        # Each tree learns what only the other had.
        self._publish(seq, ids, seq.length, output=False)
        return seq

    def _publish(self, seq: Sequence, ids: Ints, end: int, output: bool) -> None:
        """Let both trees hold the tokens up to position `end`; `ids` are those from position 0 on."""
        tree = self._tree
        tree.extend(seq.cursor, seq, ids[seq.cursor.length : end], output)
        if seq.public_tokens:
            public_end = min(end, seq.public_tokens)
            tree.extend(seq.public_cursor, seq, ids[seq.public_cursor.length : public_end], output)

    def reserve(self, seq: Sequence, n: int, *, optional: bool = False) -> list[Copy]:
        """Make room for `n` tokens after the committed ones, evicting what has to go.

        Args:
            optional: not at the price of what `seq` shares with others from here on.

        Returns:
            Copies to carry out before the next forward pass. Their sources are held until the next commit or close.

        Raises:
            OutOfBlocks: there is not that much to be had; nothing was changed, but that evicted blocks may be on their
                way out.
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
        self._make_room(seq, fresh, optional)
        blocks = self._pool.allocate(fresh)
        if not copy:
            seq.append_blocks(blocks)
            return []
        source = seq.drop_last_block()
        seq.copy_sources.append(source)
        seq.append_blocks(blocks)
        tokens = seq.length % self.block_size
        self._books.copied_tokens += tokens
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
        seq.length -= tokens
        for cursor in (seq.cursor, seq.public_cursor):
            self._tree.rewind(cursor, seq.length)
        if self._witness is not None:
            self._witness.rewound(seq)
        seq.matched = min(seq.matched, seq.length)
        self._pool.unpin(np.array([block], dtype=np.int32))
        return tokens

    def commit(self, seq: Sequence, tokens: ArrayLike, *, output: bool = False) -> None:
        """The KV of these tokens is written, at positions `seq.length` and on: others may share it from now on.

        Args:
            output: they were generated, and are part of no prompt yet.

        Raises:
            InvalidArgument: more tokens than were reserved.
            InvalidTokens, SequenceClosed.
        """
        self._check_open(seq)
        ids = as_tokens(tokens)
        if seq.length + len(ids) > seq.capacity:
            room = max(0, seq.capacity - seq.length)
            raise InvalidArgument(f"tokens holds {len(ids)}: {room} are reserved after the {seq.length} committed")
        if len(ids) == 0:
            return
        self._tree.extend(seq.cursor, seq, ids, output)
        if seq.public_cursor.length < seq.public_tokens:
            self._tree.extend(seq.public_cursor, seq, ids[: seq.public_tokens - seq.length], output)
        if self._witness is not None:
            self._witness.committed(seq, ids)
        seq.length += len(ids)
        self._drop_copy_sources(seq)

    def fork(self, seq: Sequence) -> Sequence:
        """Return a second sequence with the same committed tokens.

        No KV is copied now; whoever first has to write in a block that it did not allocate copies then.

        Raises SequenceClosed.
        """
        self._check_open(seq)
        table = seq.table[: -(-seq.length // self.block_size)].copy()
        child = Sequence(seq.namespace, self.block_size, table, seq.length)
        child.public_tokens = seq.public_tokens
        self._pool.pin(table)
        for theirs, ours in ((seq.cursor, child.cursor), (seq.public_cursor, child.public_cursor)):
            if theirs.node is not None:
                self._tree.enter(ours, theirs.node, theirs.length)
        if self._witness is not None:
            self._witness.forked(seq, child)
        self._open.add(child)
        return child

    def close(self, seq: Sequence) -> None:
        """Give back everything that the sequence holds. Closing twice is fine."""
        if seq.closed:
            return
        seq.closed = True
        self._open.discard(seq)
        now = self._clock()
        for cursor in (seq.cursor, seq.public_cursor):
            self._tree.use(cursor, now)
            self._tree.leave(cursor)
        if self._witness is not None:
            self._witness.closed(seq)
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
        found = self._tree.find(as_tokens(tokens), namespace)
        if found is not None:
            cursor = Cursor()
            cursor.node, cursor.length = found
            self._tree.use(cursor, self._clock())

    def continuation(self, seq: Sequence, tokens: ArrayLike, n: int) -> Ints:
        """Return what others of its namespace wrote past `tokens`, where these follow the committed ones of `seq`.

        Changes nothing.

        Returns:
            int32[<= n]; empty where the tree does not hold `tokens` there, or where `seq` publishes nothing.

        Raises:
            InvalidTokens, InvalidArgument, SequenceClosed.
        """
        self._check_open(seq)
        if n < 0:
            raise InvalidArgument(f"n is {n}: it must be at least 0")
        return self._tree.continuation(seq.cursor, as_tokens(tokens), n)

    # Room

    @property
    def free_blocks(self) -> int:
        return self._pool.free

    @property
    def leaving_blocks(self) -> int:
        """Evicted blocks that come free once they are copied out."""
        return self._pool.leaving

    def blocks_of(self, tokens: Ints, namespace: Namespace) -> Ints:
        """Return the blocks that the cached prefix of `tokens` fills. Changes nothing."""
        found = self._tree.find(tokens, namespace)
        return self._tree.table(*found)[: found[1] // self.block_size] if found is not None else tokens[:0]

    def _make_room(self, seq: Sequence, blocks: int, optional: bool) -> None:
        if self._pool.free < blocks:
            available = obtainable_blocks(self._pool, self._tree, self._open, blocks)
            if available < blocks:
                # A tree may hold copies of its own of what the sequence reads, and keep them for its sake. It can do
                # without: then it publishes nothing more.
                if optional or obtainable_blocks(self._pool, self._tree, self._open - {seq}, blocks) < blocks:
                    raise OutOfBlocks(blocks, available, self.num_blocks)
                self._tree.leave(seq.cursor)
                self._tree.leave(seq.public_cursor)
        self.retention.expire()
        excess = self.retention.over_quota(seq.cursor, blocks)
        if excess:
            self._evict(excess, seq.namespace)
        if self._pool.free < blocks:
            self._evict(blocks - self._pool.free - self._pool.leaving, None)
        if self._pool.free < blocks:
            # Copies have still to end; or the books promised more than there was: the request pays for it then, and
            # nobody else does.
            raise OutOfBlocks(blocks, self._pool.free, self.num_blocks, leaving=self._pool.leaving)

    def _evict(self, blocks: int, namespace: Namespace | None) -> int:
        before = self._pool.free + self._pool.leaving
        if self.demoter is not None:
            self.demoter.evicting = True
        self._books.evicted_tokens += self._tree.evict(blocks, namespace)
        if self.demoter is not None:
            self.demoter.evicting = False
        freed = self._pool.free + self._pool.leaving - before
        self._books.evicted_blocks += freed
        return freed

    def evict(self, blocks: int) -> int:
        """Evict until `blocks` more blocks are free, or nothing is left that may go.

        Returns:
            Blocks that came free, or do so once they are copied out.
        """
        self.retention.expire()
        return self._evict(blocks, None)

    def hottest_blocks(self) -> Iterator[tuple[bytes, bytes, bytes, int]]:
        """Yield what the trees hold, see `Demoter.hottest`; nothing without a cold index."""
        return self.demoter.hottest(self._tree) if self.demoter is not None else iter(())

    def flush(self, namespace: Namespace | None = None) -> tuple[int, int]:
        """Forget a namespace, or everything, in every tier. Open sequences go on and publish nothing more.

        Returns:
            Tokens of the trees that were forgotten, and blocks that came free.
        """
        before = self._pool.free
        tokens = sum(self._tree.flush(name) for name in (self.namespaces if namespace is None else [namespace]))
        if self._witness is not None:
            self._witness.flushed(namespace)
        if self.demoter is not None:
            self.demoter.flush(namespace)
        return tokens, self._pool.free - before

    # Inspecting

    def explain(
        self,
        tokens: ArrayLike,
        namespace: Namespace = DEFAULT_NAMESPACE,
        *,
        public_tokens: int = 0,
        in_flight: int = 0,
        across: bool = True,
    ) -> Verdict:
        """Return why each token of a prompt would hit or miss now. Changes nothing.

        Args:
            tokens: int[n], n >= 1.
            in_flight: leading tokens that a running sequence is about to commit.
            across: say so where another namespace holds them.

        Raises:
            InvalidTokens, or InvalidArgument: no tokens, or no history is kept.
        """
        ids = as_tokens(tokens)
        if len(ids) == 0:
            raise InvalidArgument("tokens is empty: there is nothing to explain")
        if self._witness is None:
            raise InvalidArgument("history_tokens is 0: what was evicted is not remembered")
        cached = self.match(ids, namespace, public_tokens)
        return self._witness.explain(self._tree, ids, namespace, cached, in_flight, across)

    def stats(self) -> StoreStats:
        """Count the pool and the tree; amortised O(1), see `StoreStats.max_depth`."""
        return self._books.stats(self._pool, self._tree, self._open, len(self.retention.leases))

    @property
    def namespaces(self) -> list[Namespace]:
        """Those in which something is cached."""
        return list(self._tree.roots)

    def nodes(self, namespace: Namespace | None = None, head_tokens: int = 16) -> Iterator[NodeInfo]:
        """Yield the nodes of one namespace or of all, parents first."""
        return nodes_of(self._tree, self.namespaces if namespace is None else [namespace], head_tokens)

    def changes(self, head_tokens: int = 16) -> tuple[list[NodeInfo], list[int]]:
        """Return the nodes that are new or different since the last call, and the ids of those that went.

        Raises:
            InvalidArgument: the store was made without `track_changes`.
        """
        log = self._changes
        if log is None:
            raise InvalidArgument("track_changes is off: changes are not recorded")
        upserted = [node_info(node, self._tree.namespace_of(node), head_tokens) for node in log.touched.values()]
        removed = log.gone.copy()
        log.touched.clear()
        log.gone.clear()
        return upserted, removed

    def events(self) -> list[BlockEvent]:
        """Return which full blocks came and went since the last call, in order.

        Raises:
            InvalidArgument: the store was made without `record_events`.
        """
        return self._event_log().take()

    def event_snapshot(self) -> list[BlockStored]:
        """Return events that rebuild what is cached now. Take `events` first: it is as of the same moment.

        Raises:
            InvalidArgument: the store was made without `record_events`.
        """
        nodes = [node for root in self._tree.roots.values() for node in self._tree.below(root)]
        return self._event_log().snapshot(nodes)

    def _event_log(self) -> BlockEventLog:
        if self._events is None:
            raise InvalidArgument("record_events is off: events are not recorded")
        return self._events

    def check(self) -> None:
        """Recompute every invariant of pool and tree. Raises AssertionError on the first that does not hold."""
        check_store(self._pool, self._tree, self._open)
