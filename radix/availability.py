"""How many blocks could be had if everything evictable went: the promise behind "raises, changing nothing"."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from radix.cursor import Cursor
from radix.node import Node
from radix.pool import BlockPool
from radix.sequence import Sequence
from radix.tree import RadixTree


def obtainable_blocks(pool: BlockPool, tree: RadixTree, open_sequences: Iterable[Sequence], needed: int) -> int:
    """Return how many blocks are free or could be made so by eviction, exactly when that decides about `needed`.

    Blocks that no open sequence holds bound it from above, in O(1). Short of that bound fall only blocks that a node
    in use holds beside its child's copy or beside a reader's own: at most one a branch point and one a sequence, and
    of a sequence that stands in two trees all that one of them holds for itself. Only inside that margin are the paths
    walked.
    """
    readers = []
    margin = tree.nodes - len(tree.queues)
    for seq in open_sequences:
        for cursor in (seq.cursor, seq.public_cursor):
            if cursor.node is not None:
                readers.append(cursor)
                margin += 1 if not seq.public_tokens else -(-cursor.length // tree.block_size)
    upper = pool.num_blocks - pool.pinned
    if needed > upper or needed <= upper - margin:
        return upper
    return pool.num_blocks - _stuck(pool, tree, readers)


def _stuck(pool: BlockPool, tree: RadixTree, readers: list[Cursor]) -> int:
    stuck = pool.seq_refs > 0
    live_children: dict[Node, set[Node]] = {}
    for cursor in readers:
        node = cursor.node
        while node is not None and node.parent is not None:
            live_children.setdefault(node, set())
            # From a parent that is known the rest of the way was walked before.
            walked = node.parent in live_children
            live_children.setdefault(node.parent, set()).add(node)
            if walked:
                break
            node = node.parent
    for node, children in live_children.items():
        if node.parent is None:
            continue
        blocks = node.blocks.view
        if not children:
            first = node.start // tree.block_size
            blocks = blocks[: -(-node.read_to() // tree.block_size) - first]
        elif len(children) == 1 and node.end % tree.block_size and not node.read_into_end(tree.block_size):
            # The other children can go; the node then merges with the one that stays and lets this block go.
            blocks = blocks[:-1]
        stuck[blocks] = True
    return int(np.count_nonzero(stuck))
