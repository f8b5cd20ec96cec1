"""The radix tree: token runs, and the blocks that they hold in the pool.

Structure, after PATRICIA (Morrison 1968): children are keyed by their first token, a node with one child is merged
with it, so that depth counts branch points. Appending to a leaf extends it in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from radix.eviction import EvictionQueue, Policy
from radix.namespace import Namespace
from radix.node import Node
from radix.pool import BlockPool
from radix.sequence import Sequence
from radix.tokens import Ints, common_prefix


class RadixTree:
    """One tree a namespace over one block pool. `match` and `path` change nothing."""

    def __init__(self, pool: BlockPool, block_size: int, policy: Policy, track_changes: bool) -> None:
        self._pool = pool
        self.block_size = block_size
        self.queued = EvictionQueue(policy)
        self._ids = count(1)
        self.roots: dict[Namespace, Node] = {}
        self._names: dict[Node, Namespace] = {}
        self.tokens = 0
        self.nodes = 0
        self.track_changes = track_changes
        self.touched: dict[int, Node] = {}
        self.removed: list[int] = []

    # Reading

    def match(self, tokens: Ints, namespace: Namespace) -> int:
        """Return the length of the longest cached prefix of `tokens`."""
        root = self.roots.get(namespace)
        return self._walk(root, tokens)[1] if root else 0

    def path(self, tokens: Ints, namespace: Namespace) -> tuple[Node, int, Ints]:
        """Return where the longest cached prefix ends: the node, the length, and its int32 block table.

        The root of a namespace that has none yet is made.
        """
        root = self.roots.get(namespace)
        if root is None:
            root = Node(0, None, 0, _NONE, _NONE, 0.0)
            self.roots[namespace] = root
            self._names[root] = namespace
        node, length = self._walk(root, tokens)
        return node, length, self._table(node, length)

    @staticmethod
    def _walk(root: Node, tokens: Ints) -> tuple[Node, int]:
        node, pos, n = root, 0, len(tokens)
        while pos < n:
            child = node.children.get(int(tokens[pos]))
            if child is None:
                break
            run = child.tokens.view
            same = common_prefix(run, tokens[pos : pos + len(run)])
            node, pos = child, pos + same
            if same < len(run):
                break
        return node, pos

    def _table(self, node: Node, length: int) -> Ints:
        table = np.empty(-(-length // self.block_size), dtype=np.int32)
        end = len(table)
        at: Node | None = node
        while at is not None and end:
            # Deeper blocks come first: where parent and child both touch a block, the child's holds both runs.
            first = at.start // self.block_size
            if first < end:
                table[first:end] = at.blocks.view[: end - first]
                end = first
            at = at.parent
        return table

    # Growing

    def extend(self, seq: Sequence, tokens: Ints) -> None:
        """Publish `tokens`, which `seq` has written from position `seq.length` on, and move its mark to their end."""
        node = seq.node
        assert node is not None
        pos, i, n = seq.length, 0, len(tokens)
        while i < n:
            if pos < node.end:
                same = common_prefix(node.tokens.view[pos - node.start :], tokens[i:])
                self._share(seq, node, pos, pos + same)
                pos, i = pos + same, i + same
                if i == n:
                    break
                if pos < node.end:
                    self._split(node, pos)
            child = node.children.get(int(tokens[i]))
            if child is not None:
                node = child
                continue
            if node.is_leaf:
                self._extend_leaf(node, tokens[i:], seq.table)
            else:
                node = self._add_leaf(node, pos, tokens[i:], seq.table)
            break
        if node is not seq.node:
            self.leave(seq)
            self.enter(seq, node)

    def _share(self, seq: Sequence, node: Node, start: int, end: int) -> None:
        """Let `seq` hold the tree's blocks in place of its own copies, as far as they are full."""
        low, high = start // self.block_size, end // self.block_size
        if high <= low:
            return
        offset = node.start // self.block_size
        kept = node.blocks.view[low - offset : high - offset]
        own = seq.table[low:high]
        differs = kept != own
        if differs.any():
            given_up = own[differs]
            self._pool.pin(kept[differs])
            seq.table[low:high] = kept
            self._pool.unpin(given_up)
        seq.owned_from = max(seq.owned_from, high)

    def _extend_leaf(self, node: Node, tokens: Ints, table: Ints) -> None:
        pos = node.end
        index = pos // self.block_size
        end = -(-(pos + len(tokens)) // self.block_size)
        if pos % self.block_size:
            ours = int(table[index])
            theirs = node.blocks[-1]
            if ours != theirs:
                # The writer's block holds the earlier tokens too (it was copied), so one hold is enough.
                self._pool.hold(table[index : index + 1])
                node.blocks.set(len(node.blocks) - 1, ours)
                self._pool.release(np.array([theirs], dtype=np.int32))
            index += 1
        if index < end:
            self._pool.hold(table[index:end])
            node.blocks.extend(table[index:end])
        node.tokens.extend(tokens)
        self.tokens += len(tokens)
        self._touch(node)

    def _add_leaf(self, parent: Node, pos: int, tokens: Ints, table: Ints) -> Node:
        blocks = table[pos // self.block_size : -(-(pos + len(tokens)) // self.block_size)]
        self._pool.hold(blocks)
        node = Node(next(self._ids), parent, pos, tokens, blocks, parent.last_used)
        parent.children[int(tokens[0])] = node
        self.nodes += 1
        self.tokens += len(tokens)
        self.queued.push(node)
        self._touch(node)
        self._touch(parent)
        return node

    def _split(self, node: Node, pos: int) -> None:
        """Cut `node` at `pos`: it keeps the tokens before, a new child takes those from there on."""
        keep = pos - node.start
        tail = node.tokens.view[keep:]
        low = node.start // self.block_size
        blocks = node.blocks.view[pos // self.block_size - low :]
        child = Node(next(self._ids), node, pos, tail, blocks, node.last_used)
        if pos % self.block_size:
            self._pool.hold(blocks[:1])
        node.tokens.truncate(keep)
        node.blocks.truncate(-(-pos // self.block_size) - low)
        child.hits = node.hits
        child.children = node.children
        for grandchild in child.children.values():
            grandchild.parent = child
            self._touch(grandchild)
        node.children = {int(tail[0]): child}
        child.users = {user for user in node.users if user.length > pos}
        node.users -= child.users
        for user in child.users:
            user.node = child
        self.nodes += 1
        if node.ticket:
            self.queued.discard(node)
        if child.is_leaf:
            self.queued.push(child)
        self._touch(child)
        self._touch(node)

    # Using and leaving

    def use(self, node: Node, now: float, hit: bool) -> None:
        """Move the recency of the whole path that ends in `node`."""
        at = node
        while at.parent is not None:
            at.last_used = now
            at.hits += hit
            self._touch(at)
            at = at.parent

    def refresh(self, tokens: Ints, namespace: Namespace, now: float) -> None:
        root = self.roots.get(namespace)
        if root is not None:
            self.use(self._walk(root, tokens)[0], now, hit=False)

    def enter(self, seq: Sequence, node: Node) -> None:
        """Mark `node` as read by `seq` up to its length."""
        seq.node = node
        node.users.add(seq)
        self._touch(node)

    def leave(self, seq: Sequence) -> None:
        """Take the mark of `seq` off the tree."""
        node = seq.node
        if node is None:
            return
        node.users.discard(seq)
        if node.is_root:
            self._prune_root(node)
        elif node.is_leaf and not node.ticket:
            self.queued.push(node)
        self._touch(node)

    def rewind(self, seq: Sequence, length: int) -> None:
        """Move the mark of `seq` up to `length`."""
        node = seq.node
        self.leave(seq)
        seq.length = length
        while node is not None and node.parent is not None and node.start >= length:
            node = node.parent
        if node is not None:
            self.enter(seq, node)

    def _prune_root(self, root: Node) -> None:
        if not root.children and not root.users:
            self.roots.pop(self._names.pop(root))

    # Shrinking

    def evict(self, need: int) -> int:
        """Trim leaves by whole blocks, in the policy's order, until `need` blocks came free or nothing is left to trim.

        Returns:
            Tokens forgotten.
        """
        before, goal = self.tokens, self._pool.free + need
        while self._pool.free < goal:
            node = self.queued.pop()
            if node is None:
                break
            self._trim(node, goal - self._pool.free)
        return before - self.tokens

    def _trim(self, node: Node, blocks: int) -> None:
        read_to = node.read_to()
        first = node.start // self.block_size
        floor = -(-read_to // self.block_size) - first if read_to > node.start else 0
        have = len(node.blocks)
        keep = max(floor, have - blocks)
        if keep == have:
            # Read to its end. It is queued again when its last reader leaves.
            return
        if keep == 0:
            self._remove_leaf(node)
            return
        cut = node.blocks.view[keep:].copy()
        length = (first + keep) * self.block_size - node.start
        self.tokens -= len(node.tokens) - length
        node.tokens.truncate(length)
        node.blocks.truncate(keep)
        self._pool.release(cut)
        self.queued.push(node)
        self._touch(node)

    def _remove_leaf(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens[0]]
        self._forget(node)
        self._touch(parent)
        if parent.is_root:
            self._prune_root(parent)
        elif not parent.children:
            self.queued.push(parent)
        elif len(parent.children) == 1:
            self._absorb_only_child(parent)

    def _forget(self, node: Node) -> None:
        self.tokens -= len(node.tokens)
        self.nodes -= 1
        self._pool.release(node.blocks.view)
        self.queued.discard(node)
        if self.track_changes:
            self.touched.pop(node.id, None)
            self.removed.append(node.id)

    def _absorb_only_child(self, node: Node) -> None:
        (child,) = node.children.values()
        if child.start % self.block_size:
            # Both touch this block; the child's copy serves both, the parent's hold goes.
            doubled = node.blocks.view[-1:].copy()
            node.blocks.truncate(len(node.blocks) - 1)
            self._pool.release(doubled)
        node.blocks.extend(child.blocks.view)
        node.tokens.extend(child.tokens.view)
        node.children = child.children
        for grandchild in node.children.values():
            grandchild.parent = node
            self._touch(grandchild)
        node.last_used = max(node.last_used, child.last_used)
        for user in child.users:
            user.node = node
        node.users |= child.users
        self.nodes -= 1
        queued = bool(child.ticket)
        self.queued.discard(child)
        if queued:
            self.queued.push(node)
        if self.track_changes:
            self.touched.pop(child.id, None)
            self.removed.append(child.id)
        self._touch(node)

    def flush(self, namespace: Namespace) -> int:
        """Forget a namespace. Sequences that are open in it keep their blocks and publish nothing more.

        Returns:
            Tokens forgotten.
        """
        root = self.roots.pop(namespace, None)
        if root is None:
            return 0
        del self._names[root]
        before = self.tokens
        for node in [root, *self.below(root)]:
            for user in node.users:
                user.node = None
            if node is not root:
                self._forget(node)
        return before - self.tokens

    # Inspecting

    def namespace_of(self, node: Node) -> Namespace:
        while node.parent is not None:
            node = node.parent
        return self._names[node]

    @staticmethod
    def below(root: Node) -> Iterator[Node]:
        """Yield every node under `root`, parents first."""
        stack = list(root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _touch(self, node: Node) -> None:
        if self.track_changes and node.parent is not None:
            self.touched[node.id] = node


_NONE: Ints = np.empty(0, dtype=np.int32)
