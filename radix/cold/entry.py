"""A block that is known by its content, and where its KV lies."""

from __future__ import annotations


class Entry:
    """The KV of one block's tokens behind one prefix.

    Attributes:
        parent: digest of all tokens before the block.
        scope: of its namespace, see `radix.cold.digests.scope_of`.
        tokens: the block's own, little-endian int32; compared in full, whatever the digest says.
        slots: where it lies in each tier, -1 where it does not.
        ready: bit t is set where the slot of tier t is written.
        busy: copies that read or write the slot of each tier now.
        keep_until: a lease covers it until then, on the store's clock.
        dead: forgotten while a copy was under way; nobody finds it.
    """

    __slots__ = ("busy", "dead", "keep_until", "parent", "ready", "scope", "slots", "tokens")

    def __init__(self, parent: bytes, scope: bytes, tokens: bytes, tiers: int, keep_until: float = 0.0) -> None:
        self.parent = parent
        self.scope = scope
        self.tokens = tokens
        self.slots = [-1] * tiers
        self.ready = 0
        self.busy = [0] * tiers
        self.keep_until = keep_until
        self.dead = False

    def is_ready(self, tier: int) -> bool:
        return bool(self.ready >> tier & 1)

    @property
    def fastest(self) -> int:
        """The first tier that can be read, -1 where none can."""
        return (self.ready & -self.ready).bit_length() - 1

    @property
    def nowhere(self) -> bool:
        return max(self.slots) < 0
