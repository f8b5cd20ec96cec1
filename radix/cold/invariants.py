"""Every invariant of a cold index, recomputed from scratch. For tests and for debugging a live runtime."""

from __future__ import annotations

from collections import Counter

from radix.cold.entry import Entry
from radix.cold.index import ColdIndex


def check_cold(index: ColdIndex, dying: list[Entry] | None = None) -> None:
    """Raise AssertionError on the first that does not hold.

    Args:
        dying: entries that were forgotten and that copies under way still touch.
    """
    entries = list(index.all())
    if len(entries) != index.entries or len(set(entries)) != len(entries):
        raise AssertionError(f"{index.entries} entries on the books, {len(entries)} found")
    for t, tier in enumerate(index.tiers):
        holders = [entry for entry in [*entries, *(dying or ())] if entry.slots[t] >= 0]
        slots = Counter(entry.slots[t] for entry in holders)
        twice = [slot for slot, n in slots.items() if n > 1 or slot >= tier.capacity]
        if twice:
            raise AssertionError(f"{tier.name}: slot {twice[0]} belongs to {slots[twice[0]]} entries")
        tier.check(slots)
        if Counter(entry.scope for entry in holders) != tier.by_scope:
            raise AssertionError(f"{tier.name}: slots by namespace are {tier.by_scope}")
        queued = [*tier.primary, *tier.spare]
        if len(set(queued)) != len(queued) or any(e.dead or not e.is_ready(t) for e in queued):
            raise AssertionError(f"{tier.name}: an entry is queued twice, or is not there")
        for entry in entries:
            if entry.is_ready(t) and entry not in tier.primary and entry not in tier.spare and not entry.busy[t]:
                raise AssertionError(f"{tier.name}: an entry that no copy touches is not queued")
            if entry.is_ready(t) and entry.slots[t] < 0:
                raise AssertionError(f"{tier.name}: an entry is ready and has no slot")
            if entry.slots[t] >= 0 and not entry.is_ready(t) and not entry.busy[t]:
                raise AssertionError(f"{tier.name}: a slot is neither written nor about to be")
    for entry in entries:
        if entry.dead or entry.nowhere:
            raise AssertionError("an entry that is nowhere can be found")
