"""What the cache once held: the memory that tells a token that was evicted from one that was never seen."""

from __future__ import annotations

from itertools import count, islice

import numpy as np

from radix.cursor import Cursor
from radix.eviction import lru
from radix.leaf_queues import LeafQueues
from radix.namespace import Namespace
from radix.observers import TreeObserver
from radix.pool import BlockPool
from radix.sequence import Sequence
from radix.tokens import Ints
from radix.tree import RadixTree

# One block for any sequence: the history holds tokens and no KV.
_BOUNDLESS = 2**30
# Thousands of branches leave a system prompt, and a verdict is made at every admission.
_BRANCHES_TOLD = 8


class History:
    """A second tree, of tokens alone, that forgets whole leaves, least recently used first, beyond a bound.

    Its cost for the store is one more walk a sequence and one more append a commit.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._queues = LeafQueues(lru)
        pool = BlockPool(1)
        # Held for good: what the tree releases never comes free.
        pool.allocate(1)
        self._tree = RadixTree(pool, _BOUNDLESS, self._queues, TreeObserver())
        self._ticks = count(1)

    def open(self, tokens: Ints, namespace: Namespace) -> Trail:
        """Follow a sequence whose committed tokens are `tokens`."""
        trail = Trail(namespace)
        node, length = self._tree.find_or_plant(tokens, namespace)
        self._tree.enter(trail.cursor, node, length)
        self.commit(trail, tokens[length:])
        return trail

    def commit(self, trail: Trail, tokens: Ints) -> None:
        self._tree.extend(trail.cursor, trail.shadow, tokens, False)

    def fork(self, trail: Trail) -> Trail:
        child = Trail(trail.shadow.namespace)
        if trail.cursor.node is not None:
            self._tree.enter(child.cursor, trail.cursor.node, trail.cursor.length)
        return child

    def rewind(self, trail: Trail, length: int) -> None:
        self._tree.rewind(trail.cursor, length)

    def close(self, trail: Trail) -> None:
        self._tree.use(trail.cursor, next(self._ticks))
        self._tree.leave(trail.cursor)
        while self._tree.tokens > self._max_tokens:
            leaf = self._queues.pop()
            if leaf is None:
                return
            if not leaf.users:
                self._tree.remove_leaf(leaf)

    def flush(self, namespace: Namespace | None) -> None:
        for name in list(self._tree.roots) if namespace is None else [namespace]:
            self._tree.flush(name)

    def lookup(self, tokens: Ints, namespace: Namespace, head: int) -> tuple[int, list[Ints]]:
        """Return how far `tokens` were ever stored, and the heads of what was stored beside them from there on.

        Of many branches those that came last are told.
        """
        found = self._tree.find(tokens, namespace)
        if found is None:
            return 0, []
        node, length = found
        if length < node.end:
            return length, [node.tokens.view[length - node.start :][:head].copy()]
        last = islice(reversed(node.children.values()), _BRANCHES_TOLD)
        return length, [child.tokens.view[:head].copy() for child in last]


class Trail:
    """A sequence's place in the history."""

    __slots__ = ("cursor", "shadow")

    def __init__(self, namespace: Namespace) -> None:
        self.cursor = Cursor()
        self.shadow = Sequence(namespace, _BOUNDLESS, np.zeros(1, dtype=np.int32), 0)
