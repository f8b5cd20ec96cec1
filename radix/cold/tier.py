"""One tier of the cold index: slots, and the order in which they are given up."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection

from radix.cold.entry import Entry
from radix.errors import InvalidArgument

# Entries under a lease that are passed over in a search for a victim.
_LEASES_PASSED = 64


class ColdTier:
    """Slots of one block each.

    Entries that nearer tiers or the device hold too are spare, and go first, but for a few that may be kept; within
    each kind the least recently used.

    Args:
        name: for reports.
        slots: how many blocks it holds.
        writable: whether blocks come to it while serving.
        keeps_promoted: whether a block that went back to the device stays, as a spare.
        spares_kept: so many spares do not go before the rest; half as many may take its place.
    """

    def __init__(
        self, name: str, slots: int, *, writable: bool = True, keeps_promoted: bool = False, spares_kept: int = 0
    ) -> None:
        if slots < 1:
            raise InvalidArgument(f"slots is {slots}: the {name} tier must hold at least one block")
        self.name = name
        self.capacity = slots
        self.writable = writable
        self.keeps_promoted = keeps_promoted
        self._spares_kept = spares_kept
        # Of the slots from `_fresh` on none was ever used.
        self._free: list[int] = []
        self._fresh = 0
        self.used = 0
        self.primary: OrderedDict[Entry, None] = OrderedDict()
        self.spare: OrderedDict[Entry, None] = OrderedDict()
        self.by_scope: Counter[bytes] = Counter()
        self.limits: dict[bytes, int] = {}
        # Entries that went and are nowhere else.
        self.lost = 0
        # It failed for good.
        self.retired = False

    @property
    def free(self) -> int:
        return self.capacity - self.used

    def take(self, scope: bytes) -> int:
        """Take a free slot for an entry of `scope`."""
        self.used += 1
        self.by_scope[scope] += 1
        if self._free:
            return self._free.pop()
        self._fresh += 1
        return self._fresh - 1

    def take_known(self, slot: int, scope: bytes) -> None:
        """Take a slot that holds something already. Before any other is taken."""
        self._free += range(self._fresh, slot)
        self._fresh = max(self._fresh, slot + 1)
        self.used += 1
        self.by_scope[scope] += 1

    def give_back(self, slot: int, scope: bytes) -> None:
        self.used -= 1
        self._free.append(slot)
        self.by_scope[scope] -= 1
        if not self.by_scope[scope]:
            del self.by_scope[scope]

    def queue(self, entry: Entry, *, spare: bool, first: bool = False) -> None:
        """Let an entry go last of its kind, or first."""
        self.unqueue(entry)
        order = self.spare if spare else self.primary
        order[entry] = None
        if first:
            order.move_to_end(entry, last=False)

    def unqueue(self, entry: Entry) -> None:
        if entry in self.primary:
            del self.primary[entry]
        else:
            self.spare.pop(entry, None)

    def full_for(self, scope: bytes) -> bool:
        """Whether a namespace has used up what it may have here."""
        limit = self.limits.get(scope)
        return limit is not None and self.by_scope[scope] >= limit

    @property
    def wants_spares(self) -> bool:
        """Whether it holds so few spares that another, and those that are on their way, are kept too."""
        return 2 * len(self.spare) < self._spares_kept

    def victim(self, tier: int, now: float, scope: bytes | None = None) -> Entry | None:
        """Return the entry that should go first and that no copy touches; of one scope, if it is given."""
        passed: list[Entry] = []
        found = None
        keep = len(self.spare) <= self._spares_kept
        for order in (self.primary, self.spare) if keep else (self.spare, self.primary):
            for entry in order:
                if entry.busy[tier] or (scope is not None and entry.scope != scope):
                    continue
                if entry.keep_until > now and len(passed) < _LEASES_PASSED:
                    passed.append(entry)
                    continue
                found = entry
                break
            if found is not None:
                break
        if found is None:
            return passed[0] if passed else None
        for entry in passed:
            order = self.spare if entry in self.spare else self.primary
            order.move_to_end(entry)
        return found

    def check(self, held: Collection[int]) -> None:
        """Raise AssertionError unless every slot is either free or one of `held`."""
        free = {*self._free, *range(self._fresh, self.capacity)}
        if len(free) != len(self._free) + self.capacity - self._fresh or not free.isdisjoint(held):
            raise AssertionError(f"{self.name}: a slot is free twice, or free and held")
        if len(free) + len(held) != self.capacity or self.used != len(held):
            raise AssertionError(
                f"{self.name}: {len(free)} free + {len(held)} held != {self.capacity}, {self.used} used"
            )
