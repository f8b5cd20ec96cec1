"""The block pool: who holds which block, and which are free."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from radix.errors import InvalidArgument
from radix.tokens import Ints


class BlockPool:
    """Ref-counted blocks. A block is free when neither a tree node, an open sequence nor a copy holds it, and at no
    other time.

    The kinds of holder are counted apart, because a block that only the tree holds can be evicted, one that an open
    sequence holds cannot, and one that only a copy to or from another tier holds comes free by itself. Methods take
    int32[n] of distinct block ids.
    """

    def __init__(self, num_blocks: int) -> None:
        if not 1 <= num_blocks < 2**31:
            raise InvalidArgument(f"num_blocks is {num_blocks}: it must be from 1 to {2**31 - 1}")
        self.num_blocks = num_blocks
        self.tree_refs = np.zeros(num_blocks, dtype=np.int32)
        self.seq_refs = np.zeros(num_blocks, dtype=np.int32)
        # A stack whose top is its end: the lowest ids come first, so a fresh pool hands out contiguous runs.
        self._stack: Ints = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)
        self.free = num_blocks
        self.pinned = 0
        # Holds of open sequences, over all blocks.
        self.seq_holds = 0
        # Holds of copies under way, by block.
        self.loans: dict[int, int] = {}
        # Blocks that nothing but a copy holds.
        self.leaving = 0

    def allocate(self, n: int) -> Ints:
        """Take `n` free blocks for an open sequence. The caller has made sure that there are as many."""
        blocks = self._stack[self.free - n : self.free][::-1].copy()
        self.free -= n
        self.seq_refs[blocks] = 1
        self.pinned += n
        self.seq_holds += n
        return blocks

    def pin(self, blocks: Ints) -> None:
        """An open sequence holds these blocks from now on."""
        refs = self.seq_refs[blocks]
        self.pinned += len(refs) - int(np.count_nonzero(refs))
        self.seq_refs[blocks] = refs + 1
        self.seq_holds += len(blocks)

    def unpin(self, blocks: Ints) -> None:
        refs = self.seq_refs[blocks] - 1
        self.seq_refs[blocks] = refs
        self.seq_holds -= len(blocks)
        let_go = blocks[refs == 0]
        self.pinned -= len(let_go)
        self._reclaim(let_go, self.tree_refs)

    def hold(self, blocks: Ints) -> None:
        """A tree node holds these blocks from now on."""
        self.tree_refs[blocks] += 1

    def release(self, blocks: Ints) -> None:
        if len(blocks) == 1:
            self._release_one(int(blocks[0]))
            return
        refs = self.tree_refs[blocks] - 1
        self.tree_refs[blocks] = refs
        self._reclaim(blocks[refs == 0], self.seq_refs)

    def _release_one(self, block: int) -> None:
        # Eviction comes block by block; on arrays of one the rest of this class takes five times as long.
        refs = self.tree_refs.item(block) - 1
        self.tree_refs[block] = refs
        if refs == 0 and self.seq_refs.item(block) == 0:
            if self.loans and block in self.loans:
                self.leaving += 1
                return
            self._stack[self.free] = block
            self.free += 1

    def lend(self, blocks: Ints) -> None:
        """A copy reads or writes these blocks, which somebody holds, until `give_back`."""
        for block in blocks.tolist():
            self.loans[block] = self.loans.get(block, 0) + 1

    def give_back(self, block: int) -> None:
        """A copy of this block ended."""
        self.loans[block] -= 1
        if self.loans[block]:
            return
        del self.loans[block]
        if self.tree_refs.item(block) == 0 and self.seq_refs.item(block) == 0:
            self.leaving -= 1
            self._stack[self.free] = block
            self.free += 1

    def _reclaim(self, let_go: Ints, other_refs: NDArray[np.int32]) -> None:
        if len(let_go) == 0:
            return
        freed = let_go[other_refs[let_go] == 0]
        if self.loans:
            lent = np.array([block in self.loans for block in freed.tolist()], dtype=bool)
            self.leaving += int(np.count_nonzero(lent))
            freed = freed[~lent]
        n = len(freed)
        # Reversed, so that a run given back comes out in its old order.
        self._stack[self.free : self.free + n] = freed[::-1]
        self.free += n

    @property
    def held(self) -> int:
        return self.num_blocks - self.free

    def check(self, tree_holds: Iterable[Ints], seq_holds: Iterable[Ints]) -> None:
        """Count every hold again and compare. Raises AssertionError on the first difference."""
        for name, counted, holds in (("tree", self.tree_refs, tree_holds), ("sequence", self.seq_refs, seq_holds)):
            expected = np.zeros(self.num_blocks, dtype=np.int32)
            for blocks in holds:
                np.add.at(expected, blocks, 1)
            wrong = np.flatnonzero(expected != counted)
            if len(wrong):
                block = int(wrong[0])
                raise AssertionError(
                    f"block {block}: {counted[block]} {name} holds on the books, {expected[block]} found"
                )
        held = (self.tree_refs > 0) | (self.seq_refs > 0)
        lent = np.fromiter(self.loans, dtype=np.int32, count=len(self.loans))
        leaving = int(np.count_nonzero(~held[lent]))
        if leaving != self.leaving:
            raise AssertionError(f"{self.leaving} blocks are leaving on the books, {leaving} found")
        held[lent] = True
        free = self._stack[: self.free]
        if len(np.unique(free)) != self.free or held[free].any() or int(held.sum()) + self.free != self.num_blocks:
            raise AssertionError(f"free {self.free} + held {int(held.sum())} != total {self.num_blocks}")
        if self.pinned != int(np.count_nonzero(self.seq_refs)):
            raise AssertionError(f"{self.pinned} pinned on the books, {np.count_nonzero(self.seq_refs)} found")
        if self.seq_holds != int(self.seq_refs.sum()):
            raise AssertionError(f"{self.seq_holds} holds of sequences on the books, {self.seq_refs.sum()} found")
