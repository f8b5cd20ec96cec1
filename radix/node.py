"""A node of the radix tree: a run of tokens and the blocks that hold their KV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radix.buffer import IntBuffer
from radix.tokens import Ints

if TYPE_CHECKING:
    from radix.sequence import Sequence


class Node:
    """Tokens at positions `start` .. `end - 1` of every sequence that passes here.

    `blocks` are the blocks that the run touches: indices `start // block_size` .. `(end - 1) // block_size` of the
    sequence's block table. A first block that begins before `start` holds the KV of those earlier tokens too, so that
    the deeper node's block serves whenever parent and child both touch it.
    """

    __slots__ = (
        "blocks",
        "children",
        "hits",
        "id",
        "last_used",
        "parent",
        "start",
        "ticket",
        "tokens",
        "users",
    )

    def __init__(self, node_id: int, parent: Node | None, start: int, tokens: Ints, blocks: Ints, now: float) -> None:
        self.id = node_id
        self.parent = parent
        self.start = start
        self.tokens = IntBuffer(tokens)
        self.blocks = IntBuffer(blocks)
        self.children: dict[int, Node] = {}
        # Open sequences whose committed tokens end in this run; eviction trims no further than they read.
        self.users: set[Sequence] = set()
        self.last_used = now
        self.hits = 0
        # The node's valid entry in the eviction queue; 0 when it has none.
        self.ticket = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def is_leaf(self) -> bool:
        return not self.children and self.parent is not None

    def read_to(self) -> int:
        """Return the position up to which open sequences read this run; `start` when none does."""
        return max((user.length for user in self.users), default=self.start)
