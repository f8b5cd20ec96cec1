"""Every invariant of the store, recomputed from scratch. For tests and for debugging a live store."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

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
    _equal("queued leaves", len(tree.queued), sum(node.ticket > 0 for node in nodes))
    for seq in open_sequences:
        _check_sequence(seq)
    marked = sum(len(node.users) for node in [*nodes, *tree.roots.values()])
    _equal("marks in the tree", marked, sum(seq.node is not None for seq in open_sequences))
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
    if len(node.children) == 1:
        raise AssertionError(f"{where} has one child and was not merged with it")
    for key, child in node.children.items():
        _equal(f"{where}: key of a child", key, child.tokens[0])
    if node.ticket and node.children:
        raise AssertionError(f"{where} is queued and has children")
    if node.is_leaf and not node.ticket and not node.users:
        raise AssertionError(f"{where} is a leaf that nobody reads and that is not queued")
    if parent.parent is not None and parent.last_used < node.last_used:
        raise AssertionError(f"{where} was used later than its parent")


def _check_sequence(seq: Sequence) -> None:
    if seq.closed:
        raise AssertionError("a closed sequence is among the open ones")
    if len(seq.table) * seq.block_size < seq.length:
        raise AssertionError(f"{seq.length} tokens are committed in {len(seq.table)} blocks")
    node = seq.node
    if node is None:
        return
    if seq not in node.users:
        raise AssertionError("a sequence's node does not know it")
    if node.parent is not None and not node.start < seq.length <= node.end:
        raise AssertionError(f"a sequence of {seq.length} tokens marks a node from {node.start} to {node.end}")


def _equal(what: str, counted: int, found: int) -> None:
    if counted != found:
        raise AssertionError(f"{what}: {counted} on the books, {found} found")
