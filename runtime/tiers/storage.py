"""Carries out copies between the pool and the tiers, on whatever thread. Nothing here decides anything."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from radix.cold import Entry
from runtime.kv_pool import KVPool
from runtime.tiers.checksum import checksum
from runtime.tiers.host_slots import BadBlock, HostSlots
from runtime.tiers.slot_file import SlotFile


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One block of the pool and one slot of a tier."""

    entry: Entry
    block: int
    slot: int


class Storage:
    """The pool, and what lies behind each tier of the index.

    Methods raise nothing for a block that fails: they return which copies are good, and why others are not.
    """

    def __init__(self, pool: KVPool, tiers: Sequence[HostSlots | SlotFile]) -> None:
        self.pool = pool
        self.tiers = tuple(tiers)
        self._accelerated = pool.device.type == "cuda"

    def staging(self, blocks: int) -> torch.Tensor:
        return torch.empty((blocks, self.pool.block_bytes), dtype=torch.uint8, pin_memory=self._accelerated)

    def ready(self) -> torch.cuda.Event | None:
        """On an accelerator, a mark in the engine's work that a copy asked for now must not overtake."""
        if not self._accelerated:
            return None
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    @contextlib.contextmanager
    def _beside(self, ready: torch.cuda.Event | None) -> Iterator[None]:
        if ready is None:
            yield
            return
        stream = torch.cuda.Stream(self.pool.device)  # type: ignore[no-untyped-call]
        stream.wait_event(ready)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()

    def copy_out(
        self, copies: Sequence[BlockCopy], tier: int, ready: torch.cuda.Event | None, stamp: int | None = None
    ) -> tuple[list[bool], Exception | None]:
        """Copy blocks from the device to a tier.

        stamp: how lately the first was used, those after it less; None is now.
        """
        behind = self.tiers[tier]
        rows = self.staging(len(copies))
        with self._beside(ready):
            self.pool.export_blocks([copy.block for copy in copies], rows)
        if isinstance(behind, HostSlots):
            for copy, row in zip(copies, rows, strict=True):
                behind.rows[copy.slot].copy_(row)
                behind.seal(copy.slot)
            return [True] * len(copies), None
        good: list[bool] = []
        for i, (copy, row) in enumerate(zip(copies, rows.numpy(), strict=True)):
            try:
                used = time.time_ns() if stamp is None else stamp - i
                behind.write(copy.slot, copy.entry, row, checksum(row), used)
            except OSError as error:
                return good + [False] * (len(copies) - len(good)), error
            good.append(True)
        return good, None

    def copy_in(
        self, copies: Sequence[BlockCopy], tier: int, ready: torch.cuda.Event | None
    ) -> tuple[list[bool], Exception | None]:
        """Copy blocks from a tier to the device, up to the first that is not as it was written."""
        behind = self.tiers[tier]
        rows = self.staging(len(copies))
        n, fault = 0, None
        try:
            for copy in copies:
                if isinstance(behind, HostSlots):
                    behind.verify(copy.slot)
                    rows[n].copy_(behind.rows[copy.slot])
                else:
                    behind.read(copy.slot, copy.entry, rows[n].numpy())
                n += 1
        except (BadBlock, OSError) as error:
            fault = error
        if n:
            with self._beside(ready):
                self.pool.import_blocks([copy.block for copy in copies[:n]], rows[:n])
        return [True] * n + [False] * (len(copies) - n), fault

    def copy_down(self, entry: Entry, source: int, source_slot: int, target: int, target_slot: int) -> Exception | None:
        """Copy a block from memory to a file; what went wrong, if anything."""
        memory, file = self.tiers[source], self.tiers[target]
        assert isinstance(memory, HostSlots)
        assert isinstance(file, SlotFile)
        try:
            # Under the checksum of when it left the device: what went bad in memory is found when it is read back.
            file.write(target_slot, entry, memory.row(source_slot), memory.sum_of(source_slot), time.time_ns())
        except OSError as error:
            return error
        return None

    def close(self) -> None:
        for behind in self.tiers:
            if isinstance(behind, SlotFile):
                behind.close()
