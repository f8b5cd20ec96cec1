"""Marks: where along a node's run the reasons to keep it change.

A run may hold a system prompt, a history and a reply that nobody has sent back yet. Each stretch between two marks is
worth keeping for reasons of its own: eviction looks at the last one, takes it first, and stops at its beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radix.leases import Lease


class Mark:
    """What is known about the tokens from the previous mark's end up to `end`.

    Attributes:
        end: position after the last token.
        last_used: on the store's clock.
        hits: sequences that opened on these tokens.
        output: generated, and not part of any prompt yet.
        priority: of the request that used it last; higher is kept longer under the policy of that name.
        superseded: on a branch that its session left, or that belongs to a session which closed.
        lease_lapsed: a lease covered it and ended; until it is used again.
        leases: those that cover it and have not ended.
    """

    __slots__ = ("end", "hits", "last_used", "lease_lapsed", "leases", "output", "priority", "superseded")

    def __init__(self, end: int, last_used: float, output: bool) -> None:
        self.end = end
        self.last_used = last_used
        self.hits = 0
        self.output = output
        self.priority = 0
        self.superseded = False
        self.lease_lapsed = False
        self.leases: tuple[Lease, ...] = ()

    def cut(self, end: int) -> Mark:
        """Return a mark with the same reasons that ends at `end`."""
        front = Mark(end, self.last_used, self.output)
        front.hits = self.hits
        front.priority = self.priority
        front.superseded = self.superseded
        front.lease_lapsed = self.lease_lapsed
        front.leases = self.leases
        return front

    def keeps_like(self, other: Mark) -> bool:
        """Whether both stretches would be kept for the same reasons.

        Hits are compared by their magnitude: a chain of n turns then keeps O(log n) marks.
        """
        return (
            self.last_used == other.last_used
            and self.hits.bit_length() == other.hits.bit_length()
            and self.output == other.output
            and self.priority == other.priority
            and self.superseded == other.superseded
            and self.lease_lapsed == other.lease_lapsed
            and self.leases == other.leases
        )


def split_marks(marks: list[Mark], pos: int) -> tuple[list[Mark], list[Mark]]:
    """Part `marks` at `pos`, which lies inside their run: those that end there, and those that begin there."""
    at = next(i for i, mark in enumerate(marks) if mark.end >= pos)
    if marks[at].end == pos:
        return marks[: at + 1], marks[at + 1 :]
    return [*marks[:at], marks[at].cut(pos)], marks[at:]


def join_marks(front: list[Mark], back: list[Mark]) -> list[Mark]:
    """Put two neighbouring runs' marks together, as few as tell the same."""
    joined: list[Mark] = []
    for mark in (*front, *back):
        if joined and joined[-1].keeps_like(mark):
            mark.hits = min(mark.hits, joined[-1].hits)
            joined.pop()
        joined.append(mark)
    return joined
