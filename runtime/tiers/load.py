"""Blocks on their way from tiers to the pool, for one run that waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from radix import Sequence
from radix.cold import Hit
from runtime.request import Run


@dataclass(eq=False)
class Load:
    """A sequence of its own takes the blocks in, and keeps what has come until the run is admitted.

    Attributes:
        seq: None once it was let go.
        hits: in order; `tiers` tells where each is read from, `state` whether it arrived well, None while it has not.
        memory: the tiers that are no files.
        unsettled: which arrived, and the index was not told yet what became of them.
        committed: so many of the hits are in the tree.
        outstanding: copies under way.
        tokens_from: committed tokens by tier.
    """

    run: Run
    seq: Sequence | None
    hits: list[Hit]
    tiers: list[int]
    state: list[bool | None]
    memory: frozenset[int]
    unsettled: list[int] = field(default_factory=list)
    committed: int = 0
    outstanding: int = 0
    stopped: bool = False
    tokens_from: dict[int, int] = field(default_factory=dict)

    def tokens_by_kind(self, most: int) -> tuple[int, int]:
        """Return how many committed tokens came from memory and from disk, of `most` that are of use."""
        from_memory = sum(n for tier, n in self.tokens_from.items() if tier in self.memory)
        from_disk = min(most, sum(self.tokens_from.values()) - from_memory)
        return min(most - from_disk, from_memory), from_disk

    @property
    def ended(self) -> bool:
        """Whether no copy writes to its blocks any more."""
        return self.outstanding == 0
