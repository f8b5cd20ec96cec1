"""A node of the radix tree: a run of tokens and the blocks that hold their KV."""

from __future__ import annotations

from typing import Any

from radix.buffer import IntBuffer
from radix.cursor import Cursor
from radix.marks import Mark
from radix.tokens import Ints


class Node:
    """Tokens at positions `start` .. `end - 1` of every sequence that passes here.

    `blocks` are the blocks that the run touches: indices `start // block_size` .. `(end - 1) // block_size` of the
    sequence's block table. A first block that begins before `start` holds the KV of those earlier tokens too, so that
    the deeper node's block serves whenever parent and child both touch it.

    `marks` part the run into stretches, see `radix.marks`; the last one ends where the run does. A root has none.
    """

    __slots__ = ("blocks", "children", "id", "key", "marks", "parent", "start", "ticket", "tokens", "users")

    def __init__(self, node_id: int, parent: Node | None, start: int, tokens: Ints, blocks: Ints) -> None:
        self.id = node_id
        self.parent = parent
        self.start = start
        self.tokens = IntBuffer(tokens)
        self.blocks = IntBuffer(blocks)
        self.marks: list[Mark] = []
        self.children: dict[int, Node] = {}
        # Open sequences whose committed tokens end in this run; eviction trims no further than they read.
        self.users: set[Cursor] = set()
        # The node's valid entry in an eviction queue, 0 when it has none, and the key that it was queued under.
        self.ticket = 0
        self.key: Any = None

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def is_leaf(self) -> bool:
        return not self.children and self.parent is not None

    @property
    def root(self) -> Node:
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def read_to(self) -> int:
        """Return the position up to which open sequences read this run; `start` when none does."""
        return max(user.length for user in self.users) if self.users else self.start

    def read_into_end(self, block_size: int) -> bool:
        """Whether an open sequence reads the last block, where it is one that the children's runs touch too."""
        begins = self.end // block_size * block_size
        return self.end > begins and any(user.length > begins for user in self.users)
