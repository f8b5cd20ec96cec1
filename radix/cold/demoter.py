"""Turns what eviction takes from the tree into entries of the cold index, block by block.

A block that is copied out is on loan until the copy has ended: neither free nor anybody's to evict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from radix.block_events import tokens_of_path
from radix.cold.digests import TOKEN_BYTES, PathDigests, scope_of, token_bytes
from radix.cold.entry import Entry
from radix.cold.index import ColdIndex
from radix.namespace import Namespace
from radix.node import Node
from radix.pool import BlockPool
from radix.tokens import Ints
from radix.tree import RadixTree


@dataclass(frozen=True, slots=True)
class Demotion:
    """Copy the first slots of device block `block`, one for each of the entry's tokens, to its slot in tier `tier`.

    Attributes:
        first: nobody is going to miss it.
        spare: the device keeps it too.
    """

    entry: Entry
    block: int
    tier: int
    first: bool = False
    spare: bool = False


class Demoter(PathDigests):
    """Watches a tree while it evicts.

    Args:
        lend: False where copies take no time, in a simulation: then nothing is on loan.
    """

    def __init__(
        self,
        index: ColdIndex,
        pool: BlockPool,
        namespace_of: Callable[[Node], Namespace],
        *,
        lend: bool = True,
    ) -> None:
        super().__init__(index.block_size)
        self._index = index
        self._pool = pool
        self._namespace_of = namespace_of
        self._lend = lend
        # Whether what is trimmed now is evicted; what is flushed is forgotten.
        self.evicting = False
        # Of which blocks went down, or were asked for: a file may hold some of each.
        self.namespaces: dict[Namespace, None] = {}
        self._out: list[Demotion] = []

    def take(self) -> list[Demotion]:
        """Return the copies that eviction asked for since the last call; `done` is owed for each."""
        out, self._out = self._out, []
        return out

    def done(self, demotion: Demotion, *, ok: bool = True) -> None:
        """A copy ended: its block is free, unless somebody else holds it."""
        if self._lend:
            self._pool.give_back(demotion.block)
        self._index.landed(demotion.entry, demotion.tier, ok=ok, spare=demotion.spare, first=demotion.first)

    def lend(self, blocks: Ints) -> None:
        """A copy reads or writes these blocks, which somebody holds: they stay theirs until `give_back` for each."""
        self._pool.lend(blocks)

    def give_back(self, block: int) -> None:
        self._pool.give_back(block)

    def flush(self, namespace: Namespace | None) -> None:
        """Forget what was taken from a namespace, or everything."""
        self._index.flush(namespace)

    def set_quota(self, namespace: Namespace, share: float | None) -> None:
        """Limit a namespace's share of every tier."""
        self._index.set_quota(namespace, share)

    def trimming(self, node: Node, end: int) -> None:
        if self.evicting and self._index.first >= 0:
            self._demote(node, end)
        super().trimming(node, end)

    def _demote(self, node: Node, end: int) -> None:
        size = self._size
        # A block that is cut inside stays with fewer tokens, and so goes down with all of them now.
        first, last = end // size, -(-node.end // size)
        namespace = self._namespace_of(node)
        self.namespaces[namespace] = None
        scope = scope_of(namespace)
        digests = self.before(node, scope, first, last)
        tokens = token_bytes(tokens_of_path(node, first * size, node.end))
        step = size * TOKEN_BYTES
        blocks = node.blocks.view[first - node.start // size :]
        marks = iter(node.marks)
        mark = next(marks)
        # Deepest last, and so given up first: a block is of no use without those before it.
        found: list[Demotion] = []
        for i, digest in enumerate(digests):
            while mark.end <= max(end, (first + i) * size):
                mark = next(marks)
            keep_until = max((lease.expires for lease in mark.leases), default=0.0)
            entry = self._index.store(
                digest, scope, tokens[i * step : (i + 1) * step], tier=self._index.first, keep_until=keep_until
            )
            if entry is not None:
                found.append(Demotion(entry, int(blocks[i]), self._index.first, first=mark.superseded))
        if self._lend and found:
            self._pool.lend(np.array([demotion.block for demotion in found], dtype=np.int32))
        self._out += reversed(found)

    def hottest(self, tree: RadixTree) -> Iterator[tuple[bytes, bytes, bytes, int]]:
        """Yield the blocks of a tree, the most recently used first and none before what it follows.

        Yields the digest before the block, the scope, the block's tokens and its number in the pool.
        """
        size = self._size
        stretches: list[tuple[float, int, Node, int]] = []
        for root in tree.roots.values():
            for node in tree.below(root):
                start = node.start
                for mark in node.marks:
                    stretches.append((-mark.last_used, start, node, mark.end))
                    start = mark.end
        stretches.sort(key=lambda stretch: stretch[:2])
        for _, start, node, end in stretches:
            # A block belongs to the stretch in which it begins, or to the node's first. Where a node has children,
            # theirs hold the tokens of its last block too.
            first = start // size if start == node.start else -(-start // size)
            last = node.end // size if end == node.end and node.children else -(-end // size)
            if first >= last:
                continue
            scope = scope_of(self._namespace_of(node))
            tokens = token_bytes(tokens_of_path(node, first * size, min(node.end, last * size)))
            step = size * TOKEN_BYTES
            for i, parent in enumerate(self.before(node, scope, first, last)):
                block = node.blocks[first + i - node.start // size]
                yield parent, scope, tokens[i * step : (i + 1) * step], block
