"""Leases as the services give them: bounded in number, counted, and told as plain data."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias

from radix import Lease, LeaseNotFound, LeaseRefused, Namespace, PrefixStore
from runtime.errors import TooMany
from runtime.services.convert import Tokens

EngineCall: TypeAlias = Callable[[Callable[[PrefixStore], Any]], "Future[Any]"]

# Whether a lease in that namespace may be seen and ended by whoever asks.
Mine: TypeAlias = Callable[[Namespace], bool]

# The store's cap is in tokens, and leases on one prefix count its tokens once: without caps on their number and on what
# they remember together a caller could fill the memory with them.
MAX_LEASES = 4096
POOLS_REMEMBERED = 16


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease as it was a moment ago. `tokens`: length of the prompt it was asked for; `ttl_s`: until it ends."""

    id: int
    tokens: int
    namespace: Namespace
    priority: int
    ttl_s: float
    label: str


@dataclass(frozen=True, slots=True)
class LeaseTotals:
    """Tokens under leases, each counted once, and how many there may be."""

    leased_tokens: int
    leasable_tokens: int


def _anybodys(namespace: Namespace) -> bool:
    return True


class LeaseDesk:
    """Asks the store for leases, on the engine's thread.

    Attributes:
        refused: leases that would have passed a cap.
    """

    def __init__(self, call: EngineCall, limit: int = MAX_LEASES) -> None:
        self._call = call
        self._limit = limit
        self.refused = 0

    def lease(
        self, tokens: Tokens, namespace: Namespace, *, ttl_s: float, priority: int, label: str
    ) -> Future[tuple[LeaseView, int]]:
        """Lease the cached prefix of `tokens`: the lease and the tokens that it covers.

        The future raises radix.LeaseRefused, radix.InvalidArgument or TooMany.
        """

        def ask(store: PrefixStore) -> tuple[LeaseView, int]:
            return self.lease_now(store, tokens, namespace, ttl_s=ttl_s, priority=priority, label=label)

        return self._call(ask)

    def lease_now(
        self, store: PrefixStore, tokens: Tokens, namespace: Namespace, *, ttl_s: float, priority: int, label: str
    ) -> tuple[LeaseView, int]:
        """The same, for callers on the engine's thread."""
        retention = store.retention
        retention.expire()
        if len(retention.leases) >= self._limit:
            self.refused += 1
            raise TooMany("leases", self._limit, "release some or wait for them to end")
        most = POOLS_REMEMBERED * store.num_blocks * store.block_size
        if sum(len(lease.tokens) for lease in retention.leases) + len(tokens) > most:
            self.refused += 1
            raise TooMany("tokens that leases may name, each lease counted by itself", most, "release some leases")
        try:
            lease, covered = retention.lease(tokens, namespace, ttl_s=ttl_s, priority=priority, label=label)
        except LeaseRefused:
            self.refused += 1
            raise
        return _view(lease), covered

    def renew(self, lease_id: int, ttl_s: float, mine: Mine = _anybodys) -> Future[LeaseView]:
        """The future raises radix.LeaseNotFound, also for a lease that is not `mine`, or radix.InvalidArgument."""

        def ask(store: PrefixStore) -> LeaseView:
            _find(store, lease_id, mine)
            return _view(store.retention.renew(lease_id, ttl_s))

        return self._call(ask)

    def release(self, lease_id: int, mine: Mine = _anybodys) -> Future[LeaseView]:
        """The future raises radix.LeaseNotFound, also for a lease that is not `mine`."""

        def ask(store: PrefixStore) -> LeaseView:
            _find(store, lease_id, mine)
            return _view(store.retention.release(lease_id))

        return self._call(ask)

    def all(self, mine: Mine = _anybodys) -> Future[tuple[list[LeaseView], LeaseTotals]]:
        """Those of the leases that have not ended that are `mine`, oldest first.

        Where some are not, the leased tokens are the sum over those that are, each counted by itself.
        """

        def ask(store: PrefixStore) -> tuple[list[LeaseView], LeaseTotals]:
            store.retention.expire()
            views = [_view(lease) for lease in store.retention.leases if mine(lease.namespace)]
            whole = len(views) == len(store.retention.leases)
            leased = store.stats().leased_tokens if whole else sum(view.tokens for view in views)
            return views, LeaseTotals(leased, store.retention.cap_tokens)

        return self._call(ask)


def _find(store: PrefixStore, lease_id: int, mine: Mine) -> None:
    store.retention.expire()
    if not mine(store.retention.leases.get(lease_id).namespace):
        # In the words for one that never was.
        raise LeaseNotFound(f"lease_id is {lease_id}: there is no such lease, or it has ended")


def _view(lease: Lease) -> LeaseView:
    left = max(0.0, lease.expires - time.monotonic())
    return LeaseView(lease.id, len(lease.tokens), lease.namespace, lease.priority, left, lease.label)
