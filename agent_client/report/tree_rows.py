"""Which nodes of a tree a page has room for, and where each of them stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .prefix_tree import TreeNode

LEAVES_SHOWN = 40


@dataclass(frozen=True)
class Cell:
    """A node on rows `row` to `row + rows - 1`. Without a node it stands for `hidden` branches, `size` tokens long."""

    row: int
    rows: int
    start: int
    size: int
    depth: int
    node: TreeNode | None = None
    hidden: int = 0


def shown_nodes(tops: Sequence[TreeNode]) -> list[TreeNode]:
    """The longest branches and what leads to them, parents first."""
    kept = _kept(tops)
    return [node for top in tops for node in top.walk() if id(node) in kept]


def cells(tops: Sequence[TreeNode]) -> list[Cell]:
    """The shown nodes, parents first; each covers the rows of all its branches."""
    kept = _kept(tops)
    placed: list[Cell] = []
    row = 0
    # A node is left after its branches: only then is known how many rows it covers.
    stack: list[tuple[TreeNode, int, int | None]] = [(top, 0, None) for top in reversed(tops) if id(top) in kept]
    while stack:
        node, depth, began = stack.pop()
        if began is not None:
            hidden = [child for child in node.children if id(child) not in kept]
            if hidden:
                tokens = sum(below.size for child in hidden for below in child.walk())
                leaves = sum(not below.children for child in hidden for below in child.walk())
                placed.append(Cell(row, 1, node.end, tokens, depth + 1, hidden=leaves))
                row += 1
            row = max(row, began + 1)
            placed.append(Cell(began, row - began, node.start, node.size, depth, node))
            continue
        stack.append((node, depth, row))
        stack.extend((child, depth + 1, None) for child in reversed(node.children) if id(child) in kept)
    left = [top for top in tops if id(top) not in kept]
    if left:
        tokens = sum(below.size for top in left for below in top.walk())
        placed.append(Cell(row, 1, 0, tokens, 0, hidden=sum(not below.children for t in left for below in t.walk())))
    return sorted(placed, key=lambda cell: (cell.row, cell.depth))


def _kept(tops: Sequence[TreeNode]) -> set[int]:
    leaves = [node for top in tops for node in top.walk() if not node.children]
    leaves.sort(key=lambda leaf: -leaf.end)
    kept: set[int] = set()
    for leaf in leaves[:LEAVES_SHOWN]:
        node: TreeNode | None = leaf
        while node is not None and id(node) not in kept:
            kept.add(id(node))
            node = node.parent
    return kept
