"""Every invariant of the store, recomputed from scratch. For tests and for debugging a live store."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from radix.cursor import Cursor
from radix.marks import Mark
from radix.node import Node
from radix.pool import BlockPool
from radix.sequence import Sequence
from radix.tree import RadixTree


def check_store(pool: BlockPool, tree: RadixTree, open_sequences: Collection[Sequence]) -> None:
    """Raise AssertionError on the first invariant that does not hold."""
    nodes = [node for root in tree.roots.values() for node in tree.below(root)]
    for node in nodes:
        _check_node(node, tree)
    _equal("tokens in the tree", tree.tokens, sum(len(node.tokens) for node in nodes))
    _equal("nodes in the tree", tree.nodes, len(nodes))
    _equal("queued leaves", len(tree.queues), sum(node.ticket > 0 for node in nodes))
    for seq in open_sequences:
        _check_sequence(seq)
    cursors = [c for seq in open_sequences for c in (seq.cursor, seq.public_cursor) if c.node is not None]
    marked = sum(len(node.users) for node in [*nodes, *tree.roots.values()])
    _equal("cursors in the tree", marked, len(cursors))
    for cursor in cursors:
        _check_cursor(cursor)
    leased = sum(end - start for node in nodes for start, end, mark in _stretches(node) if mark.leases)
    _equal("leased tokens", tree.leased_tokens, leased)
    seq_holds = [seq.table for seq in open_sequences]
    seq_holds += [np.array(seq.copy_sources, dtype=np.int32) for seq in open_sequences if seq.copy_sources]
    pool.check([node.blocks.view for node in nodes], seq_holds)


def _check_node(node: Node, tree: RadixTree) -> None:
    size = tree.block_size
    parent = node.parent
    assert parent is not None
    where = f"node {node.id}"
    if len(node.tokens) == 0:
        raise AssertionError(f"{where} is empty")
    _equal(f"{where}: start", node.start, parent.end)
    _equal(f"{where}: blocks", len(node.blocks), -(-node.end // size) - node.start // size)
    if len(node.children) == 1 and not node.read_into_end(size):
        raise AssertionError(f"{where} has one child and was not merged with it")
    for key, child in node.children.items():
        _equal(f"{where}: key of a child", key, child.tokens[0])
    if node.ticket and node.children:
        raise AssertionError(f"{where} is queued and has children")
    if node.is_leaf and not node.ticket and not node.users:
        raise AssertionError(f"{where} is a leaf that nobody reads and that is not queued")
    _equal(f"{where}: end of the last mark", node.marks[-1].end, node.end)
    ends = [node.start, *(mark.end for mark in node.marks)]
    if ends != sorted(set(ends)):
        raise AssertionError(f"{where} has marks that end at {ends[1:]}")
    used = [*(mark.last_used for mark in parent.marks[-1:]), *(mark.last_used for mark in node.marks)]
    if used != sorted(used, reverse=True):
        raise AssertionError(f"{where} has stretches that were used later than what comes before them: {used}")


def _stretches(node: Node) -> Iterator[tuple[int, int, Mark]]:
    start = node.start
    for mark in node.marks:
        yield start, mark.end, mark
        start = mark.end


def _check_sequence(seq: Sequence) -> None:
    if seq.closed:
        raise AssertionError("a closed sequence is among the open ones")
    if len(seq.table) * seq.block_size < seq.length:
        raise AssertionError(f"{seq.length} tokens are committed in {len(seq.table)} blocks")
    for cursor in (seq.cursor, seq.public_cursor):
        if cursor.node is not None and cursor.length > seq.length:
            raise AssertionError(f"a cursor stands at {cursor.length} of {seq.length} tokens")


def _check_cursor(cursor: Cursor) -> None:
    node = cursor.node
    assert node is not None
    if cursor not in node.users:
        raise AssertionError("a cursor's node does not know it")
    if node.parent is not None and not node.start < cursor.length <= node.end:
        raise AssertionError(f"a cursor at {cursor.length} marks a node from {node.start} to {node.end}")


def _equal(what: str, counted: int, found: int) -> None:
    if counted != found:
        raise AssertionError(f"{what}: {counted} on the books, {found} found")
