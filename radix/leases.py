"""Leases: a prefix is kept in preference to others until a time. A bias on the order of eviction, never a lock."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

from radix.errors import InvalidArgument, LeaseNotFound
from radix.namespace import Namespace
from radix.tokens import Ints

MAX_PRIORITY = 100


class Lease:
    """A claim on the cached prefix of `tokens`.

    Attributes:
        priority: 0 to 100; among leased prefixes the lower goes first.
        expires: on the store's clock, seconds.
        label: whose it is, for whoever lists leases.
    """

    __slots__ = ("expires", "id", "label", "namespace", "priority", "tokens")

    def __init__(
        self, lease_id: int, tokens: Ints, namespace: Namespace, priority: int, expires: float, label: str
    ) -> None:
        self.id = lease_id
        self.tokens = tokens
        self.namespace = namespace
        self.priority = priority
        self.expires = expires
        self.label = label


class LeaseTable:
    """The leases that have not ended, by id and by time of expiry."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._leases: dict[int, Lease] = {}
        # Entries are lazy: a renewal pushes another.
        self._expiries: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def add(self, tokens: Ints, namespace: Namespace, priority: int, expires: float, label: str) -> Lease:
        lease = Lease(next(self._ids), tokens, namespace, priority, expires, label)
        self._leases[lease.id] = lease
        heapq.heappush(self._expiries, (expires, lease.id))
        return lease

    def get(self, lease_id: int) -> Lease:
        """Return a lease that has not ended. Raises LeaseNotFound."""
        try:
            return self._leases[lease_id]
        except KeyError:
            raise LeaseNotFound(f"lease_id is {lease_id}: there is no such lease, or it has ended") from None

    def renew(self, lease: Lease, expires: float) -> None:
        lease.expires = expires
        heapq.heappush(self._expiries, (expires, lease.id))

    def remove(self, lease: Lease) -> None:
        self._leases.pop(lease.id, None)

    def pop_expired(self, now: float) -> list[Lease]:
        """Remove and return the leases that have ended by `now`."""
        ended = []
        while self._expiries and self._expiries[0][0] <= now:
            _, lease_id = heapq.heappop(self._expiries)
            lease = self._leases.get(lease_id)
            if lease is not None and lease.expires <= now:
                del self._leases[lease_id]
                ended.append(lease)
        return ended


def check_lease_terms(ttl_s: float, priority: int) -> None:
    """Raises InvalidArgument for terms outside their limits."""
    if not 0 < ttl_s <= 86400 * 7:
        raise InvalidArgument(f"ttl_s is {ttl_s}: it must be above 0 and at most 604800 seconds")
    if not 0 <= priority <= MAX_PRIORITY:
        raise InvalidArgument(f"priority is {priority}: it must be from 0 to {MAX_PRIORITY}")
