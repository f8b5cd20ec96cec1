"""One tier of the cold index: slots, and the order in which they are given up."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection

from radix.cold.entry import Entry
from radix.errors import InvalidArgument

# Entries under a lease that are passed over in a search for a victim.
_LEASES_PASSED = 64


class _Orders:
    """Entries, those that are spare apart, each kind the least recently used first."""

    def __init__(self) -> None:
        self.primary: OrderedDict[Entry, None] = OrderedDict()
        self.spare: OrderedDict[Entry, None] = OrderedDict()

    def add(self, entry: Entry, *, spare: bool, first: bool) -> None:
        order = self.spare if spare else self.primary
        order[entry] = None
        if first:
            order.move_to_end(entry, last=False)

    def remove(self, entry: Entry) -> None:
        if entry in self.primary:
            del self.primary[entry]
        else:
            self.spare.pop(entry, None)


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
        self._all = _Orders()
        self.primary, self.spare = self._all.primary, self._all.spare
        # Copies of what the device has that are under way. It may lose a block before its copy is there.
        self.coming: set[Entry] = set()
        self.by_scope: Counter[bytes] = Counter()
        self._limits: dict[bytes, int] = {}
        # A namespace that is limited makes room among its own, which may be few of very many.
        self._own: dict[bytes, _Orders] = {}
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
        self._all.add(entry, spare=spare, first=first)
        own = self._own.get(entry.scope)
        if own is not None:
            own.add(entry, spare=spare, first=first)

    def unqueue(self, entry: Entry) -> None:
        self._all.remove(entry)
        own = self._own.get(entry.scope)
        if own is not None:
            own.remove(entry)

    def limit(self, scope: bytes, slots: int | None) -> None:
        """Let a namespace use at most so many slots; None lifts the limit."""
        if slots is None:
            self._limits.pop(scope, None)
            self._own.pop(scope, None)
            return
        self._limits[scope] = slots
        if scope not in self._own:
            own = self._own[scope] = _Orders()
            own.primary.update((entry, None) for entry in self.primary if entry.scope == scope)
            own.spare.update((entry, None) for entry in self.spare if entry.scope == scope)

    def full_for(self, scope: bytes) -> bool:
        """Whether a namespace has used up what it may have here."""
        limit = self._limits.get(scope)
        return limit is not None and self.by_scope[scope] >= limit

    @property
    def wants_spares(self) -> bool:
        """Whether it holds so few spares, with those that are on their way, that another is kept too."""
        return 2 * (len(self.spare) + len(self.coming)) < self._spares_kept

    def victim(self, tier: int, now: float, scope: bytes | None = None) -> Entry | None:
        """Return the entry that should go first and that no copy touches; of one limited namespace, if it is given."""
        passed: list[Entry] = []
        found = None
        orders = self._all if scope is None else self._own[scope]
        keep = len(self.spare) <= self._spares_kept
        for order in (orders.primary, orders.spare) if keep else (orders.spare, orders.primary):
            for entry in order:
                if entry.busy[tier]:
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
            self.queue(entry, spare=entry in self.spare)
        return found

    def check(self, held: Collection[int]) -> None:
        """Raise AssertionError unless every slot is either free or one of `held`, and the orders agree."""
        free = {*self._free, *range(self._fresh, self.capacity)}
        if len(free) != len(self._free) + self.capacity - self._fresh or not free.isdisjoint(held):
            raise AssertionError(f"{self.name}: a slot is free twice, or free and held")
        if len(free) + len(held) != self.capacity or self.used != len(held):
            raise AssertionError(
                f"{self.name}: {len(free)} free + {len(held)} held != {self.capacity}, {self.used} used"
            )
        for scope, own in self._own.items():
            for order, mine in ((self.primary, own.primary), (self.spare, own.spare)):
                if [entry for entry in order if entry.scope == scope] != list(mine):
                    raise AssertionError(f"{self.name}: the order of a limited namespace is another than the tier's")
