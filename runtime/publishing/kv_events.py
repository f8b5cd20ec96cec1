"""KV events on the engine's side: numbered without gaps, kept for a while, and there for transports to take.

The hub holds the only buffer. A transport keeps a position and reads on from it, so that one that is slow or absent
costs nothing and holds up nobody: once what it needs is gone, it starts over from a snapshot.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from radix import BlockRemoved, BlockStored, PrefixStore
from radix.block_events import Tier
from radix.cold.announcer import Announcer

log = logging.getLogger(__name__)

BATCHES_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Nothing that was announced before counts any more."""


CacheEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What changed between two steps.

    Attributes:
        sequence: from 0, without gaps, within one incarnation.
        timestamp: seconds since 1970.
    """

    sequence: int
    timestamp: float
    events: tuple[CacheEvent, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is cached after the batch `sequence`, in the pool parents first."""

    sequence: int
    timestamp: float
    events: tuple[BlockStored, ...]


def medium_of(device: str) -> str:
    """Where vLLM would say that the KV of a model on `device` lies."""
    return "CPU" if device == "cpu" else "GPU"


def medium_in(tier: Tier, device_medium: str) -> str:
    """What the medium of a tier is called beside a pool in `device_medium`, as vLLM and SGLang name them.

    Beside a pool that is in the CPU's memory itself, host memory goes by SGLang's name: two places need two names.
    """
    return {"device": device_medium, "host": "CPU" if device_medium != "CPU" else "CPU_PINNED", "disk": "DISK"}[tier]


class HistoryGone(LookupError):
    """Batches that somebody asked for are not kept any more."""


class KvEventHub:
    """The last batches of one incarnation. The first of them clears, so that nobody goes on with an older index.

    Args:
        incarnation: new at every start of the runtime.
        kept: how many batches may be asked for.
        clock: seconds since 1970.

    Attributes:
        first_number: what the batch 0 goes by in formats that have no field for an incarnation: the start in
            microseconds. A runtime that was restarted goes on above every number that the one before it used.
    """

    def __init__(self, incarnation: str, *, kept: int = BATCHES_KEPT, clock: Callable[[], float] = time.time) -> None:
        self.incarnation = incarnation
        self.kept = kept
        self.first_number = int(clock() * 1e6)
        self._clock = clock
        self._lock = threading.Lock()
        # The batch of sequence s lies at s % kept.
        self._ring: list[EventBatch | None] = [None] * kept
        self._next = 0
        self._closed = False
        self._wakers: list[Callable[[], None]] = []
        # What lies behind the pool, where anything does.
        self.behind: Announcer | None = None
        self._append((AllBlocksCleared(),))

    # On the engine thread

    def collect(self, store: PrefixStore) -> None:
        """Number what happened in `store` since the last call, if anything did."""
        # A reader that knows of one place only is to be left with the pool's, where a block is in both.
        events = [*(self.behind.take() if self.behind is not None else ()), *store.events()]
        if events:
            self._append(tuple(events))

    def snapshot(self, store: PrefixStore) -> Snapshot:
        """What would rebuild the tree as of the last batch."""
        self.collect(store)
        behind = self.behind.snapshot() if self.behind is not None else []
        return Snapshot(self._next - 1, self._clock(), (*store.event_snapshot(), *behind))

    # On any thread

    @property
    def next_sequence(self) -> int:
        return self._next

    @property
    def closed(self) -> bool:
        return self._closed

    def now(self) -> float:
        """Seconds since 1970, by the clock that stamps batches."""
        return self._clock()

    def batches(self, start: int, limit: int) -> tuple[EventBatch, ...]:
        """Up to `limit` batches from sequence `start` on; none where `start` is yet to come.

        Raises:
            HistoryGone: the batch `start` is not kept any more.
        """
        with self._lock:
            if start < self._next - self.kept:
                raise HistoryGone(f"batch {start} is gone: {self._next - self.kept} is the oldest one kept")
            found = [self._ring[i % self.kept] for i in range(start, min(start + limit, self._next))]
        return tuple(batch for batch in found if batch is not None)

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Have `wake` called after each batch and at the end, mostly on the engine thread: it must not block."""
        with self._lock:
            self._wakers = [*self._wakers, wake]

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._wakers = [waker for waker in self._wakers if waker != wake]

    def close(self) -> None:
        """The engine has ended: its KV is gone. Tells it to whoever still listens. Idempotent."""
        if not self._closed:
            self._append((AllBlocksCleared(),), last=True)

    def _append(self, events: tuple[CacheEvent, ...], last: bool = False) -> None:
        with self._lock:
            self._ring[self._next % self.kept] = EventBatch(self._next, self._clock(), events)
            self._next += 1
            self._closed = last
            wakers = self._wakers
        for wake in wakers:
            try:
                wake()
            except Exception:
                log.exception("a transport of KV events failed to wake up")
