"""Saves what is hottest when a runtime stops: of the tree first, then of what memory holds."""

from __future__ import annotations

import logging
import time

from radix import PrefixStore
from radix.cold import ColdIndex, Demotion
from runtime.tiers.host_slots import HostSlots
from runtime.tiers.job import Job
from runtime.tiers.slot_file import SlotFile
from runtime.tiers.storage import BlockCopy, Storage

log = logging.getLogger(__name__)
_CHUNK = 16


def save(job: Job, store: PrefixStore, index: ColdIndex, storage: Storage, tier: int, limit_s: float) -> int:
    """Write blocks to a tier, the most recently used first, until time or room is over; return how many are there."""
    began = time.monotonic()
    deadline = began + limit_s
    file = storage.tiers[tier]
    assert isinstance(file, SlotFile)
    assert store.demoter is not None
    # What was used last is to be the last that is given up after the restart.
    stamp = time.time_ns()
    room = index.tiers[tier].capacity
    kept = wrote = 0
    try:
        chunk: list[Demotion] = []
        for parent, scope, tokens, block in store.hottest_blocks():
            if kept + len(chunk) >= room or time.monotonic() > deadline:
                break
            entry = index.store(parent, scope, tokens, tier=tier)
            if entry is None:
                known = index.held(parent, tokens, tier)
                if known is not None:
                    # It is there from an earlier save, and was used since.
                    file.restamp(known.slots[tier], stamp - kept)
                    kept += 1
                continue
            chunk.append(Demotion(entry, block, tier))
            if len(chunk) == _CHUNK:
                wrote += _write(job, index, storage, chunk, stamp - kept)
                kept += len(chunk)
                chunk = []
        if chunk:
            wrote += _write(job, index, storage, chunk, stamp - kept)
            kept += len(chunk)
        wrote += _write_host(index, storage, tier, file, room - kept, stamp - kept, deadline)
        file.sync()
    except OSError as error:
        log.warning("what was cached could not be saved: %s", error)
    log.info("saved %d blocks to %s in %.1f s", wrote, file.path, time.monotonic() - began)
    return kept


def _write(job: Job, index: ColdIndex, storage: Storage, chunk: list[Demotion], stamp: int) -> int:
    tier = chunk[0].tier
    copies = [BlockCopy(d.entry, d.block, d.entry.slots[tier]) for d in chunk]
    rows = storage.export(job, [copy.block for copy in copies], storage.ready())
    good, fault = storage.write(tier, copies, rows, stamp)
    for demotion, ok in zip(chunk, good, strict=True):
        index.landed(demotion.entry, tier, ok=ok)
    if fault is not None:
        raise fault
    return sum(good)


def _write_host(
    index: ColdIndex, storage: Storage, tier: int, file: SlotFile, room: int, stamp: int, deadline: float
) -> int:
    wrote = 0
    for source, rows in enumerate(storage.tiers):
        if not isinstance(rows, HostSlots):
            continue
        for entry in list(reversed(index.tiers[source].primary)):
            if wrote >= room or time.monotonic() > deadline:
                return wrote
            if index.store(entry.parent, entry.scope, entry.tokens, tier=tier) is None:
                continue
            slot = entry.slots[source]
            try:
                file.write(entry.slots[tier], entry, rows.row(slot), rows.sum_of(slot), stamp - wrote)
            except OSError:
                index.landed(entry, tier, ok=False)
                raise
            index.landed(entry, tier)
            wrote += 1
    return wrote
