"""Opens the tiers that the settings ask for, and takes in what they hold from before."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from radix.cold import ColdIndex, ColdTier
from runtime.errors import InvalidRequest
from runtime.tiers.host_slots import HostSlots
from runtime.tiers.narrow import BlockStore
from runtime.tiers.patience import NoAnswer, patiently
from runtime.tiers.settings import Foreign, TierSettings
from runtime.tiers.slot_file import Owner, Record, SlotFile, SlotFileInUse, foreign_files, remove_unused

log = logging.getLogger(__name__)
# A folder that does not answer for so long at the start is refused; one that only takes its time is not.
START_S = 10.0
HOST, DISK, PERSIST = "host", "disk", "persist"
# Of a full disk, so much is kept of what the pool and memory hold too, and would lose in a crash.
_CRASH_COPIES = 1 / 4


@dataclass
class TierCounters:
    """Blocks written to each tier since the start, and blocks that could not be."""

    written: dict[int, int] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)

    def wrote(self, tier: int, good: int, bad: int) -> None:
        self.written[tier] = self.written.get(tier, 0) + good
        self.failed[tier] = self.failed.get(tier, 0) + bad


@dataclass(frozen=True)
class BuiltTiers:
    """`behind` holds what lies behind each tier of the index; `persist` is the number of the tier saved at the end."""

    settings: TierSettings
    index: ColdIndex
    behind: list[HostSlots | SlotFile]
    persist: int | None
    block_bytes: int
    counters: TierCounters = field(default_factory=TierCounters)


def build_tiers(settings: TierSettings, pool: BlockStore, owner: Owner) -> BuiltTiers:
    """Open every tier. Raises InvalidRequest: a size that holds no block, a folder that cannot be used."""
    tiers: list[ColdTier] = []
    behind: list[HostSlots | SlotFile] = []
    size = pool.block_bytes
    if settings.host_bytes:
        slots = settings.host_bytes // size
        if slots < 1:
            raise InvalidRequest("host_cache", settings.host_bytes, f"must hold one block of {size} bytes")
        behind.append(HostSlots(slots, size))
        tiers.append(ColdTier(HOST, slots))
    if settings.disk is not None:
        file = _open("disk_cache", settings.disk, settings.disk_bytes, owner, settings.foreign)
        behind.append(file)
        tiers.append(ColdTier(DISK, file.slots, keeps_promoted=True, spares_kept=int(file.slots * _CRASH_COPIES)))
    persist = None
    if settings.persist is not None:
        wanted = 2 * (pool.num_blocks * size + settings.host_bytes) + 2**20
        file = _open("persist", settings.persist, wanted, owner, settings.foreign)
        persist = len(tiers)
        behind.append(file)
        tiers.append(ColdTier(PERSIST, file.slots, writable=False, keeps_promoted=True))
    built = BuiltTiers(settings, ColdIndex(pool.block_size, tiers), behind, persist, size)
    for number, file_or_rows in enumerate(behind):
        if isinstance(file_or_rows, SlotFile):
            _take_in(built.index, number, file_or_rows)
    return built


def _open(field_name: str, folder: Path, size: int, owner: Owner, foreign: Foreign) -> SlotFile:
    slots = SlotFile.slots_in(size, owner)
    if slots < 1:
        raise InvalidRequest(field_name, f"{size} bytes", f"must hold one block of {owner.block_bytes} bytes")

    def work(step: Callable[[], None]) -> SlotFile:
        _name_foreign(folder, owner, remove=foreign == "remove")
        return SlotFile(folder, owner, slots)

    try:
        return patiently(work, START_S)
    except (SlotFileInUse, NoAnswer) as error:
        raise InvalidRequest(field_name, str(folder), str(error)) from None
    except OSError as error:
        raise InvalidRequest(field_name, str(folder), f"cannot be used: {error.strerror or error}") from None


def _name_foreign(folder: Path, owner: Owner, *, remove: bool) -> None:
    for other in foreign_files(folder, owner):
        removed = remove and _remove(other.path)
        log.warning(
            "%s holds KV of another model, template, precision or layout (%s, %s, %.1f MiB): %s",
            other.path,
            other.model,
            other.kv_dtype,
            other.bytes / 2**20,
            "removed" if removed else "ignored and kept",
        )


def _remove(path: Path) -> bool:
    try:
        remove_unused(path)
    except (OSError, SlotFileInUse) as error:
        log.warning("%s cannot be removed: %s", path, error)
        return False
    return True


def _take_in(index: ColdIndex, tier: int, file: SlotFile) -> None:
    began = time.monotonic()

    def work(step: Callable[[], None]) -> list[Record]:
        found = []
        for record in file.scan():
            found.append(record)
            step()
        return found

    try:
        records = sorted(patiently(work, START_S), key=lambda record: record.stamp)
    except NoAnswer as error:
        raise InvalidRequest(index.tiers[tier].name, str(file.path), str(error)) from None
    except OSError as error:
        log.warning("%s cannot be read, and begins empty: %s", file.path, error)
        return
    taken: set[tuple[bytes, bytes]] = set()
    newest = []
    for record in reversed(records):
        key = record.parent, record.tokens
        if key not in taken:
            taken.add(key)
            newest.append(record)
    # In the order of their slots, as the tier counts them; then in the order of their use.
    entries = {
        r.slot: index.restore(r.parent, r.scope, r.tokens, tier, r.slot) for r in sorted(newest, key=lambda r: r.slot)
    }
    for record in reversed(newest):
        entry = entries[record.slot]
        index.tiers[tier].queue(entry, spare=entry in index.tiers[tier].spare)
    if newest:
        tokens = sum(len(record.tokens) // 4 for record in newest)
        seconds = time.monotonic() - began
        log.info("%s: %d blocks, %d tokens are there from before (%.2f s)", file.path, len(newest), tokens, seconds)
