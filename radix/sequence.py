"""An open sequence: a block table and the place in the tree that it reads to."""

from __future__ import annotations

import numpy as np

from radix.cursor import Cursor
from radix.namespace import Namespace
from radix.tokens import Ints


class Sequence:
    """Handle of one sequence. Read its attributes; only the store changes them.

    Attributes:
        namespace: whose prefixes it shares.
        length: committed tokens.
        matched: tokens found in the cache when it was opened, less what `drop_partial` gave up of them.
    """

    __slots__ = (
        "_blocks",
        "_table",
        "block_size",
        "closed",
        "copy_sources",
        "cursor",
        "length",
        "matched",
        "namespace",
        "owned_from",
        "public_cursor",
        "public_tokens",
    )

    def __init__(self, namespace: Namespace, block_size: int, table: Ints, length: int) -> None:
        self.namespace = namespace
        self.block_size = block_size
        self.length = length
        self.matched = length
        self.closed = False
        # Where it stands in its namespace's tree.
        self.cursor = Cursor()
        # And, for its first `public_tokens`, in the tree that its whole model shares.
        self.public_cursor = Cursor()
        self.public_tokens = 0
        self._table = table
        self._blocks = len(table)
        # Table indices from here on were allocated by this sequence: only these blocks may be written.
        self.owned_from = len(table)
        # Blocks that a pending copy still reads.
        self.copy_sources: list[int] = []

    @property
    def table(self) -> Ints:
        """int32[blocks]: position p lives in block `table[p // block_size]`, slot `p % block_size`."""
        return self._table[: self._blocks]

    @property
    def capacity(self) -> int:
        """Tokens that the table has writable room for, the committed ones included."""
        return self._blocks * self.block_size if self.owned_from < self._blocks else self.length

    @property
    def reads_partial_block(self) -> bool:
        """Whether the committed tokens end inside a block that this sequence must not write."""
        return self.length % self.block_size != 0 and self.owned_from >= self._blocks

    def append_blocks(self, blocks: Ints) -> None:
        size = self._blocks + len(blocks)
        if size > len(self._table):
            grown = np.empty(size + (size >> 3) + 4, dtype=np.int32)
            grown[: self._blocks] = self._table[: self._blocks]
            self._table = grown
        self._table[self._blocks : size] = blocks
        self._blocks = size

    def drop_last_block(self) -> int:
        """Remove the last block from the table and return it."""
        self._blocks -= 1
        self.owned_from = min(self.owned_from, self._blocks)
        return int(self._table[self._blocks])
