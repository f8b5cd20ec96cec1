"""The radix tree: token runs, and the blocks that they hold in the pool.

Structure, after PATRICIA (Morrison 1968): children are keyed by their first token, a node with one child is merged
with it, so that depth counts branch points. Appending to a leaf extends it in place.

A merge waits while a sequence reads the block in which the two nodes meet. Merged, the node would hold the child's copy
of that block, which nobody could trim away under the reader, who has the node's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from radix.cursor import Cursor
from radix.leaf_queues import LeafQueues
from radix.marks import Mark, join_marks, split_marks
from radix.namespace import Namespace
from radix.node import Node
from radix.observers import TreeObserver
from radix.pool import BlockPool
from radix.sequence import Sequence
from radix.tokens import Ints, common_prefix


class RadixTree:
    """One tree a namespace over one block pool. `match` and `find` change nothing."""

    def __init__(self, pool: BlockPool, block_size: int, queues: LeafQueues, observer: TreeObserver) -> None:
        self.pool = pool
        self.block_size = block_size
        self.queues = queues
        self._observer = observer
        self._ids = count(1)
        self.roots: dict[Namespace, Node] = {}
        self._names: dict[Node, Namespace] = {}
        self.tokens = 0
        self.leased_tokens = 0
        self.nodes = 0
        # Nodes that came or went, ever.
        self.reshaped = 0

    # Reading

    def match(self, tokens: Ints, namespace: Namespace) -> int:
        """Return the length of the longest cached prefix of `tokens`."""
        root = self.roots.get(namespace)
        return self._walk(root, tokens)[1] if root else 0

    def find(self, tokens: Ints, namespace: Namespace) -> tuple[Node, int] | None:
        """Return where the longest cached prefix ends, as node and length; None when the namespace has no tree."""
        root = self.roots.get(namespace)
        return self._walk(root, tokens) if root else None

    def find_or_plant(self, tokens: Ints, namespace: Namespace) -> tuple[Node, int]:
        """`find`, with a root made for a namespace that has none."""
        root = self.roots.get(namespace)
        if root is None:
            root = Node(0, None, 0, _NONE, _NONE)
            self.roots[namespace] = root
            self._names[root] = namespace
            self.queues.planted(root, namespace)
        return self._walk(root, tokens)

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

    def continuation(self, cursor: Cursor, tokens: Ints, n: int) -> Ints:
        """Return int32[<= n]: what the tree holds below the cursor, past `tokens`. Where it branches, the latest used.

        Nothing, where the tree does not hold `tokens` there. Past `_CROWD` children no guess is made.
        """
        node, pos, passed = cursor.node, cursor.length, 0
        parts: list[Ints] = []
        while node is not None and n > 0:
            run = node.tokens.view[pos - node.start :]
            ahead = tokens[passed : passed + len(run)]
            if not np.array_equal(run[: len(ahead)], ahead):
                break
            passed += len(ahead)
            new = run[len(ahead) : len(ahead) + n]
            if len(new):
                parts.append(new)
                n -= len(new)
            pos = node.end
            if passed < len(tokens):
                node = node.children.get(int(tokens[passed]))
            else:
                node = _latest(node.children) if len(node.children) <= _CROWD else None
        return np.concatenate(parts) if parts else _NONE

    def table(self, node: Node, length: int) -> Ints:
        """Return the block table, int32[blocks], of the first `length` tokens of the path that ends in `node`."""
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

    def extend(self, cursor: Cursor, seq: Sequence, tokens: Ints, output: bool) -> None:
        """Publish `tokens`, which `seq` has written from `cursor` on, and move the cursor to their end."""
        node = cursor.node
        if node is None:
            return
        pos, i, n = cursor.length, 0, len(tokens)
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
                self._extend_leaf(node, tokens[i:], seq.table, Mark(pos + n - i, cursor.used, output))
            else:
                node = self._add_leaf(node, pos, tokens[i:], seq.table, Mark(pos + n - i, cursor.used, output))
            break
        self.move(cursor, node, cursor.length + n)

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
            self.pool.pin(kept[differs])
            seq.table[low:high] = kept
            self.pool.unpin(given_up)
        seq.owned_from = max(seq.owned_from, high)

    def _extend_leaf(self, node: Node, tokens: Ints, table: Ints, mark: Mark) -> None:
        pos = node.end
        index = pos // self.block_size
        end = -(-(pos + len(tokens)) // self.block_size)
        if pos % self.block_size:
            ours = int(table[index])
            theirs = node.blocks[-1]
            if ours != theirs:
                # The writer's block holds the earlier tokens too (it was copied), so one hold is enough.
                self._hold(node, table[index : index + 1])
                node.blocks.set(len(node.blocks) - 1, ours)
                self._release(node, np.array([theirs], dtype=np.int32))
            index += 1
        if index < end:
            self._hold(node, table[index:end])
            node.blocks.extend(table[index:end])
        node.tokens.extend(tokens)
        self.tokens += len(tokens)
        # Another sequence may have written the run that this one found and extends, and have opened before it.
        mark.last_used = min(mark.last_used, node.marks[-1].last_used)
        node.marks = join_marks(node.marks, [mark])
        self.queues.requeue_if_lower(node)
        self._observer.stored(node, pos)

    def _add_leaf(self, parent: Node, pos: int, tokens: Ints, table: Ints, mark: Mark) -> Node:
        blocks = table[pos // self.block_size : -(-(pos + len(tokens)) // self.block_size)]
        node = Node(next(self._ids), parent, pos, tokens, blocks)
        self._hold(node, blocks)
        if parent.marks:
            mark.last_used = min(mark.last_used, parent.marks[-1].last_used)
        node.marks = [mark]
        parent.children[int(tokens[0])] = node
        self.nodes += 1
        self.reshaped += 1
        self.tokens += len(tokens)
        self.queues.push(node)
        self._observer.stored(node, pos)
        self._observer.changed(parent)
        return node

    def _split(self, node: Node, pos: int) -> None:
        """Cut `node` at `pos`: it keeps the tokens before, a new child takes those from there on."""
        keep = pos - node.start
        tail = node.tokens.view[keep:]
        low = node.start // self.block_size
        blocks = node.blocks.view[pos // self.block_size - low :]
        child = Node(next(self._ids), node, pos, tail, blocks)
        if pos % self.block_size:
            self._hold(node, blocks[:1])
        node.tokens.truncate(keep)
        node.blocks.truncate(-(-pos // self.block_size) - low)
        node.marks, child.marks = split_marks(node.marks, pos)
        child.children = node.children
        for grandchild in child.children.values():
            grandchild.parent = child
            self._observer.changed(grandchild)
        node.children = {int(tail[0]): child}
        child.users = {user for user in node.users if user.length > pos}
        node.users -= child.users
        for user in child.users:
            user.node = child
        self.nodes += 1
        self.reshaped += 1
        self.queues.discard(node)
        if child.is_leaf:
            self.queues.push(child)
        self._observer.split(node, child)
        self._merge_if_due(child)

    # Using and leaving

    def use(self, cursor: Cursor, now: float, *, opened: bool = False, priority: int = 0) -> None:
        """Move the recency of the path up to the cursor. `opened`: by a sequence for which it is prompt from now on."""
        node, upto = cursor.node, cursor.length
        cursor.used = now
        while node is not None and node.parent is not None:
            if upto < node.end:
                used, rest = split_marks(node.marks, upto)
            else:
                used, rest = node.marks, []
            for mark in used:
                mark.last_used = now
                if opened:
                    mark.hits += 1
                    mark.priority = priority
                    mark.output = mark.superseded = mark.lease_lapsed = False
            if rest or len(used) > 1:
                node.marks = join_marks(used, rest)
            self._observer.changed(node)
            node = node.parent

    def enter(self, cursor: Cursor, node: Node, length: int) -> None:
        """Put a cursor on the tree."""
        cursor.node, cursor.length = node, length
        node.users.add(cursor)
        self._observer.changed(node)

    def move(self, cursor: Cursor, node: Node, length: int) -> None:
        left = cursor.node
        assert left is not None
        if node is not left:
            self.enter(cursor, node, length)
            self._left(left, cursor)
        elif length != cursor.length:
            cursor.length = length
            self._merge_if_due(node)

    def rewind(self, cursor: Cursor, length: int) -> None:
        """Move a cursor up its path to `length`."""
        node = cursor.node
        if node is None or length >= cursor.length:
            return
        while node.parent is not None and node.start >= length:
            node = node.parent
        self.move(cursor, node, length)
        if node.is_leaf and not node.ticket:
            # It was read to its end, where there is something to trim from now on.
            self.queues.push(node)

    def leave(self, cursor: Cursor) -> None:
        """Take a cursor off the tree."""
        node, cursor.node = cursor.node, None
        if node is not None:
            self._left(node, cursor)

    def _left(self, node: Node, cursor: Cursor) -> None:
        node.users.discard(cursor)
        if node.is_root:
            self._prune_root(node)
        elif not node.is_leaf:
            self._merge_if_due(node)
        elif not node.ticket:
            self.queues.push(node)
        self._observer.changed(node)

    def _prune_root(self, root: Node) -> None:
        if not root.children and not root.users:
            self.roots.pop(self._names.pop(root))
            self.queues.uprooted(root)

    # Shrinking

    def evict(self, need: int, namespace: Namespace | None = None) -> int:
        """Trim leaves by whole blocks, in the policy's order, until `need` blocks came free or nothing is left to trim.

        A block that only a copy holds from then on counts as free.

        Args:
            namespace: take from this one only.

        Returns:
            Tokens forgotten.
        """
        root = self.roots.get(namespace) if namespace is not None else None
        if namespace is not None and root is None:
            return 0
        pool = self.pool
        before, goal = self.tokens, pool.free + pool.leaving + need
        while (missing := goal - pool.free - pool.leaving) > 0:
            node = self.queues.pop(root)
            if node is None:
                break
            self._trim(node, missing)
        return before - self.tokens

    def _trim(self, node: Node, blocks: int) -> None:
        """Take up to `blocks` blocks off the end of a leaf, within its last mark and beyond what is read."""
        size, first = self.block_size, node.start // self.block_size
        read_to = node.read_to()
        stretch = node.marks[-2].end if len(node.marks) > 1 else node.start
        # A reader holds the rest of its last block anyway.
        floor = max(stretch, min(node.end, -(-read_to // size) * size if read_to > node.start else node.start))
        length = max(floor, (first + max(0, len(node.blocks) - blocks)) * size, node.start)
        if length >= node.end:
            if floor >= node.end:
                # Read to its end. It is queued again when its last reader leaves.
                return
            length = floor
        if length == node.start:
            self.remove_leaf(node)
            return
        keep = -(-length // size) - first
        cut = node.blocks.view[keep:].copy()
        self._forget_tail(node, length)
        node.blocks.truncate(keep)
        self._release(node, cut)
        self.queues.push(node)

    def _forget_tail(self, node: Node, end: int) -> None:
        self._observer.trimming(node, end)
        kept, gone = split_marks(node.marks, end)
        self._uncharge(gone, end)
        node.marks = kept
        self.tokens -= node.end - end
        node.tokens.truncate(end - node.start)
        self._observer.changed(node)

    def _uncharge(self, marks: list[Mark], start: int) -> None:
        for mark in marks:
            if mark.leases:
                self.leased_tokens -= mark.end - start
            start = mark.end

    def remove_leaf(self, node: Node) -> None:
        """Forget a leaf, and let its parent become one or merge with the child that stays."""
        parent = node.parent
        assert parent is not None
        self._observer.trimming(node, node.start)
        del parent.children[node.tokens[0]]
        self._forget(node)
        self._observer.changed(parent)
        if parent.is_root:
            self._prune_root(parent)
        elif not parent.children:
            self.queues.push(parent)
        else:
            self._merge_if_due(parent)

    def _forget(self, node: Node) -> None:
        self._uncharge(node.marks, node.start)
        self.tokens -= len(node.tokens)
        self.nodes -= 1
        self.reshaped += 1
        self._release(node, node.blocks.view)
        self.queues.discard(node)
        self._observer.removed(node)

    def _merge_if_due(self, node: Node) -> None:
        if len(node.children) == 1 and not node.is_root and not node.read_into_end(self.block_size):
            self._absorb_only_child(node)

    def _absorb_only_child(self, node: Node) -> None:
        (child,) = node.children.values()
        if child.start % self.block_size:
            # Both touch this block; the child's copy serves both, the parent's hold goes.
            doubled = node.blocks.view[-1:].copy()
            node.blocks.truncate(len(node.blocks) - 1)
            self._release(node, doubled)
        node.blocks.extend(child.blocks.view)
        node.tokens.extend(child.tokens.view)
        node.marks = join_marks(node.marks, child.marks)
        node.children = child.children
        for grandchild in node.children.values():
            grandchild.parent = node
            self._observer.changed(grandchild)
        for user in child.users:
            user.node = node
        node.users |= child.users
        self.nodes -= 1
        self.reshaped += 1
        queued = bool(child.ticket)
        self.queues.discard(child)
        if queued:
            self.queues.push(node)
        self._observer.merged(node, child)

    def flush(self, namespace: Namespace) -> int:
        """Forget a namespace. Sequences that are open in it keep their blocks and publish nothing more there.

        Returns:
            Tokens forgotten.
        """
        root = self.roots.get(namespace)
        if root is None:
            return 0
        before = self.tokens
        for node in [root, *self.below(root)]:
            for user in node.users:
                user.node = None
            if node is not root:
                self._observer.trimming(node, node.start)
                self._forget(node)
        del self.roots[self._names.pop(root)]
        self.queues.uprooted(root)
        return before - self.tokens

    def _hold(self, node: Node, blocks: Ints) -> None:
        self.pool.hold(blocks)
        self.queues.held(node, len(blocks))

    def _release(self, node: Node, blocks: Ints) -> None:
        self.pool.release(blocks)
        self.queues.held(node, -len(blocks))

    # Inspecting

    def namespace_of(self, node: Node) -> Namespace:
        return self._names[node.root]

    def depth(self) -> int:
        """Return the number of nodes on the longest path; O(nodes)."""
        deepest = 0
        stack = [(root, 0) for root in self.roots.values()]
        while stack:
            node, depth = stack.pop()
            deepest = max(deepest, depth)
            stack.extend((child, depth + 1) for child in node.children.values())
        return deepest

    @staticmethod
    def below(root: Node) -> Iterator[Node]:
        """Yield every node under `root`, parents first."""
        stack = list(root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def _latest(children: dict[int, Node]) -> Node | None:
    return max(children.values(), key=lambda child: child.marks[0].last_used, default=None)


_NONE: Ints = np.empty(0, dtype=np.int32)
_CROWD = 16
