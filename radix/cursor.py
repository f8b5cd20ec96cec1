"""Where in a tree an open sequence stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radix.node import Node


class Cursor:
    """The end of a sequence's committed tokens in one tree.

    Attributes:
        node: whose run holds the last of them, the root when there are none; None when nothing is published (any more).
        length: how many there are. Eviction trims no further.
        used: when the path was last touched on behalf of the sequence, on the store's clock.
    """

    __slots__ = ("length", "node", "used")

    def __init__(self) -> None:
        self.node: Node | None = None
        self.length = 0
        self.used = 0.0
