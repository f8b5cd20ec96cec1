"""Carries out copies between the pool and the tiers, on whatever thread. Nothing here decides anything."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from radix.cold import Entry
from runtime.tiers.checksum import checksum
from runtime.tiers.host_slots import BadBlock, HostSlots
from runtime.tiers.job import Job
from runtime.tiers.narrow import BlockStore, NarrowPool
from runtime.tiers.slot_file import SlotFile

# The copier's thread for what touches no file.
MEMORY = 0


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

    def __init__(self, pool: BlockStore, tiers: Sequence[HostSlots | SlotFile]) -> None:
        self.pool = pool
        self.tiers = tuple(tiers)
        self._accelerated = pool.device.type == "cuda"
        self._threads = threading.local()
        # Of what is kept, where that is not the pool's own.
        self.kv_dtype = pool.kept.name if isinstance(pool, NarrowPool) else ""
        self.files = {t: behind for t, behind in enumerate(tiers) if isinstance(behind, SlotFile)}
        # Which thread of the copier serves each tier.
        self.lanes = [1 + list(self.files).index(t) if t in self.files else MEMORY for t in range(len(tiers))]

    def staging(self, blocks: int) -> torch.Tensor:
        return torch.empty((blocks, self.pool.block_bytes), dtype=torch.uint8, pin_memory=self._accelerated)

    def ready(self) -> torch.cuda.Event | None:
        """On an accelerator, a mark in the engine's work that a copy asked for now must not overtake."""
        if not self._accelerated:
            return None
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # The pool's device need not be the thread's current one.
        event.record(torch.cuda.current_stream(self.pool.device))
        return event

    @contextlib.contextmanager
    def _beside(self, ready: torch.cuda.Event | None) -> Iterator[None]:
        if ready is None:
            yield
            return
        # One for each thread: of what was freed torch keeps some for every stream that ever used memory.
        stream: torch.cuda.Stream | None = getattr(self._threads, "stream", None)
        if stream is None:
            stream = self._threads.stream = torch.cuda.Stream(self.pool.device)  # type: ignore[no-untyped-call]
        stream.wait_event(ready)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            # Also where only some of it was asked for: the blocks are about to be anybody's.
            stream.synchronize()

    def export(self, job: Job, blocks: Sequence[int], ready: torch.cuda.Event | None) -> torch.Tensor:
        """Read blocks of the device: uint8 `[len(blocks), block_bytes]` in memory. Raises GivenUp."""
        rows = self.staging(len(blocks))
        with job.pool(), self._beside(ready):
            if self._accelerated:
                # Joined on the device, a block's layers cross in one copy of pinned memory; one by one, each is small
                # and lands in strides, which takes memory that is not pinned in between.
                joined = torch.empty_like(rows, device=self.pool.device)
                self.pool.export_blocks(blocks, joined)
                rows.copy_(joined)
            else:
                self.pool.export_blocks(blocks, rows)
        return rows

    def keep(self, tier: int, slots: Sequence[int], rows: torch.Tensor) -> None:
        """Put rows into slots of a tier that is memory."""
        memory = self.tiers[tier]
        assert isinstance(memory, HostSlots)
        for slot, row in zip(slots, rows, strict=True):
            memory.rows[slot].copy_(row)
            memory.seal(slot)

    def write(
        self, tier: int, copies: Sequence[BlockCopy], rows: torch.Tensor, stamp: int | None = None
    ) -> tuple[list[bool], Exception | None]:
        """Put rows into slots of a tier that is a file.

        stamp: how lately the first was used, those after it less; None is now.
        """
        good: list[bool] = []
        for i, (copy, row) in enumerate(zip(copies, rows.numpy(), strict=True)):
            if copy.entry.dead:
                # Flushed a moment ago, and its records erased.
                good.append(False)
                continue
            try:
                used = time.time_ns() if stamp is None else stamp - i
                self.files[tier].write(copy.slot, copy.entry, row, checksum(row), used)
            except OSError as error:
                return good + [False] * (len(copies) - len(good)), error
            good.append(True)
        return good, None

    def copy_in(
        self, job: Job, copies: Sequence[BlockCopy], tier: int, ready: torch.cuda.Event | None
    ) -> tuple[list[bool], Exception | None]:
        """Copy blocks from a tier to the device, up to the first that is not as it was written. Raises GivenUp.

        What was flushed since it was asked for is no good, and no fault: its record may be erased by now.
        """
        behind = self.tiers[tier]
        rows = self.staging(len(copies))
        n, fault = 0, None
        try:
            for copy in copies:
                if copy.entry.dead:
                    break
                if isinstance(behind, HostSlots):
                    behind.verify(copy.slot)
                    rows[n].copy_(behind.rows[copy.slot])
                else:
                    behind.read(copy.slot, copy.entry, rows[n].numpy())
                n += 1
        except (BadBlock, OSError) as error:
            fault = error
        if n:
            with job.pool(), self._beside(ready):
                self.pool.import_blocks([copy.block for copy in copies[:n]], rows[:n].to(self.pool.device))
        return [True] * n + [False] * (len(copies) - n), fault

    def copy_down(
        self, entry: Entry, source: int, source_slot: int, target: int, target_slot: int
    ) -> tuple[bool, Exception | None]:
        """Copy a block from memory to a file; whether that went well, and what did not."""
        memory, file = self.tiers[source], self.tiers[target]
        assert isinstance(memory, HostSlots)
        assert isinstance(file, SlotFile)
        if entry.dead:
            return False, None
        try:
            # Under the checksum of when it left the device: what went bad in memory is found when it is read back.
            file.write(target_slot, entry, memory.row(source_slot), memory.sum_of(source_slot), time.time_ns())
        except OSError as error:
            return False, error
        return True, None

    def close(self, tier: int) -> None:
        if tier in self.files:
            self.files[tier].close()
