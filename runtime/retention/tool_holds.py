"""Keeps what an agent waits for a tool with: its prefix is leased for as long as that tool usually takes."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future

from radix import LeaseNotFound, LeaseRefused, Namespace, PrefixStore
from runtime.errors import TooMany
from runtime.retention.lease_desk import EngineCall, LeaseDesk, LeaseView
from runtime.retention.tool_pauses import ToolPauses
from runtime.retention.unwatched import log_surprise
from runtime.services.convert import Tokens

log = logging.getLogger(__name__)

SHORTEST_HOLD_S = 1.0
LONGEST_HOLD_S = 3600.0
MAX_HOLDS = 4096
_PRIORITY = 50
_TOOL_NAME_CHARS = 128
_FAILED = "a tool hold failed"


class _Hold:
    """One wait. `lease_id` belongs to the engine's thread; None where there is no lease (any more)."""

    __slots__ = ("lease_id", "since", "tools")

    def __init__(self, tools: frozenset[str], since: float) -> None:
        self.tools = tools
        self.since = since
        self.lease_id: int | None = None


class ToolHolds:
    """Who waits for which tool. Belongs to one thread; the counters may be read by any.

    A holder is whatever the caller names a session or a conversation by.

    Attributes:
        granted, refused: holds that got a lease, and those that would have passed a cap of the leases.
    """

    def __init__(
        self,
        call: EngineCall,
        leases: LeaseDesk,
        pauses: ToolPauses,
        *,
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
        limit: int = MAX_HOLDS,
    ) -> None:
        self.enabled = enabled
        self.pauses = pauses
        self.granted = 0
        self.refused = 0
        self._call = call
        self._leases = leases
        self._clock = clock
        self._limit = limit
        # Oldest first.
        self._holds: OrderedDict[Hashable, _Hold] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holds)

    def begin(
        self, holder: Hashable, tokens: Tokens, namespace: Namespace, tools: Collection[str]
    ) -> Future[tuple[LeaseView, int]]:
        """Lease the cached prefix of `tokens` until the holder goes on, or for the time that the slowest tool takes.

        The future gives the lease and the tokens that it covers; it raises LeaseRefused or TooMany, and then the pause
        is learned from all the same.
        """
        self.forget(holder)
        hold = self._holds[holder] = _Hold(frozenset(name[:_TOOL_NAME_CHARS] for name in tools), self._clock())
        if len(self._holds) > self._limit:
            self.forget(next(iter(self._holds)))
        expected = max(self.pauses.expected_s(tool) for tool in hold.tools)
        ttl_s = min(LONGEST_HOLD_S, max(SHORTEST_HOLD_S, expected))
        label = f"waits for {', '.join(sorted(hold.tools))}"[:_TOOL_NAME_CHARS]

        def ask(store: PrefixStore) -> tuple[LeaseView, int]:
            try:
                lease, covered = self._leases.lease_now(
                    store, tokens, namespace, ttl_s=ttl_s, priority=_PRIORITY, label=label
                )
            except (LeaseRefused, TooMany):
                self.refused += 1
                raise
            self.granted += 1
            hold.lease_id = lease.id
            return lease, covered

        asked: Future[tuple[LeaseView, int]] = self._call(ask)
        return asked

    def begin_quietly(self, holder: Hashable, tokens: Tokens, namespace: Namespace, tools: Collection[str]) -> None:
        """`begin` for a turn whose caller did not ask: nobody is told of a refusal, but the counter is."""
        if self.enabled and tools:
            log_surprise(self.begin(holder, tokens, namespace, tools), _FAILED)

    def resume(self, holder: Hashable) -> Callable[[], None]:
        """The holder's next turn is here: learn the pause. Returns what ends the hold, to be called once or more."""
        hold = self._holds.pop(holder, None)
        if hold is None:
            return _nothing
        if len(hold.tools) == 1:
            # Of several tools at once it is not known which one was waited for.
            self.pauses.record(next(iter(hold.tools)), self._clock() - hold.since)
        return lambda: self._release(hold)

    def forget(self, holder: Hashable) -> None:
        """The holder does not go on: end its hold, and learn nothing."""
        hold = self._holds.pop(holder, None)
        if hold is not None:
            self._release(hold)

    def _release(self, hold: _Hold) -> None:
        def give_back(store: PrefixStore) -> None:
            lease_id, hold.lease_id = hold.lease_id, None
            if lease_id is not None:
                try:
                    store.retention.release(lease_id)
                except LeaseNotFound:
                    log.debug("lease %d of a tool hold had ended by itself", lease_id)

        log_surprise(self._call(give_back), _FAILED)


def _nothing() -> None:
    """There was no hold to end."""
