"""The host tier's memory."""

from __future__ import annotations

import numpy as np
import torch

from runtime.errors import InvalidRequest
from runtime.tiers.checksum import checksum


class BadBlock(Exception):
    """A stored block cannot be used: its bytes are not those that were written, or cannot be read."""


class HostSlots:
    """Rows of one block each; pages are taken from the system as they are first written.

    They are not pinned: copies to a device go through a staging buffer, and torch would round pinned memory of this
    size up to a power of two.

    rows: uint8 `[slots, block_bytes]`. A slot is used by one copy at a time, whoever carries it out.
    """

    def __init__(self, slots: int, block_bytes: int) -> None:
        try:
            self.rows = torch.empty((slots, block_bytes), dtype=torch.uint8)
        except (RuntimeError, MemoryError) as error:
            gib = slots * block_bytes / 2**30
            raise InvalidRequest("host_cache", f"{gib:.1f} GiB", "more than there is memory") from error
        self._sums = np.zeros(slots, dtype=np.uint64)

    def row(self, slot: int) -> np.ndarray:
        """The bytes of a slot, uint8[block_bytes]."""
        return self.rows[slot].numpy()

    def seal(self, slot: int) -> None:
        """What was written to a slot is complete."""
        self._sums[slot] = checksum(self.row(slot))

    def sum_of(self, slot: int) -> int:
        return int(self._sums[slot])

    def verify(self, slot: int) -> None:
        """Raise BadBlock where a slot does not hold what was sealed."""
        if checksum(self.row(slot)) != self.sum_of(slot):
            raise BadBlock(f"slot {slot} of host memory changed under its checksum")
