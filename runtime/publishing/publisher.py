"""Tells Redis what the runtime caches, behind the engine's back: nothing on a request's path ever waits for it."""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import redis

from radix import NodeInfo, PrefixStore, StoreStats
from radix.metadata_client import connect, without_password
from radix.metadata_schema import SCHEMA_VERSION, RuntimeKeys, flat
from runtime.errors import InvalidRequest
from runtime.publishing.redis_writer import Books, RedisWriter, StateLost, Superseded
from runtime.publishing.tree_mirror import TreeMirror

_log = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.2
_LAST_RETRY_S = 5.0

# Counting the tree costs the engine time in proportion to its size: at most this share of it.
_STATS_SHARE = 0.02


class Description(TypedDict):
    """What the publisher cannot ask the store.

    Keys:
        runtime: fields of the registration (model, address, …).
        counters: fields of the stats hash beside the store's own.
        sessions: session id -> JSON-able fields.
    """

    runtime: Mapping[str, object]
    counters: Mapping[str, object]
    sessions: Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class PublisherStatus:
    """How publishing goes.

    Attributes:
        up: the last attempt succeeded.
        lag_s: how long Redis has been behind the engine; about the interval when all is well.
        outages: times that publishing began to fail.
        rewrites: times that everything was written anew, the first included.
        dropped_events: tree events that a single `snapshot` event stands for in the stream.
        error: why it is not up, or "".
    """

    up: bool
    lag_s: float
    outages: int
    rewrites: int
    dropped_events: int
    error: str


@dataclass(frozen=True)
class _Taken:
    upserted: list[NodeInfo]
    removed: list[int]
    stats: StoreStats | None
    stats_cost_s: float
    clock_s: float
    monotonic_s: float
    unix_s: float


class RedisPublisher:
    """Writes one runtime's registration, tree, sessions and counters to Redis or Valkey, every `interval_s`.

    Every key expires `lease_s` after the last publication. Redis may be slow, refuse, go and come back: the thread
    backs off, says so once, and writes everything anew when it can.

    Args:
        url: redis://, rediss://, unix:// or valkey:// URL.
        runtime_id: this runtime's name in the keys.
        engine_call: runs a function of the store between two steps; the store must track changes.
        describe: called from the publisher's thread at every publication.
        decode: text of int32 token ids, for the heads of nodes.
        head_tokens: how many of a node's first tokens are decoded; 0 keeps all prompt text out of Redis.
        timeout_s: longest wait for one answer from Redis.
        clock: the store's clock.

    Raises:
        BadRedisUrl, BadRuntimeId, InvalidRequest.
    """

    def __init__(
        self,
        url: str,
        runtime_id: str,
        engine_call: Callable[[Callable[[PrefixStore], Any]], Future[Any]],
        describe: Callable[[], Description],
        decode: Callable[[npt.NDArray[np.int32]], str],
        *,
        lease_s: float = 10.0,
        interval_s: float = 0.5,
        head_tokens: int = 16,
        timeout_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if interval_s <= 0:
            raise InvalidRequest("interval_s", interval_s, "it must be above 0")
        if lease_s < 2 * interval_s:
            raise InvalidRequest("lease_s", lease_s, f"it must be at least twice interval_s, which is {interval_s:g}")
        RuntimeKeys.of(runtime_id)
        self.incarnation = uuid.uuid4().hex
        self._url = without_password(url)
        self._runtime_id = runtime_id
        self._engine_call = engine_call
        self._describe = describe
        self._lease_s = lease_s
        self._interval_s = interval_s
        self._head_tokens = head_tokens
        self._timeout_s = timeout_s
        self._clock = clock
        self._client = connect(url, timeout_s)
        self._writer = RedisWriter(self._client, runtime_id, self.incarnation, lease_s)
        self._mirror = TreeMirror(decode)
        self._thread = threading.Thread(target=self._run, name="redis-publisher", daemon=True)
        self._stopping = threading.Event()

        self._pending: Future[_Taken] | None = None
        self._engine_refused = False
        self._stats: StoreStats | None = None
        self._stats_due = 0.0
        self._started_at = time.time()
        self._taken_at = time.monotonic()
        self._synced_at = time.monotonic()
        self._taken_unix_s = 0.0

        self._written = False
        self._retry_s = _FIRST_RETRY_S
        self._retry_at = 0.0
        self._prune_at = 0.0
        self._up = False
        self._outages = 0
        self._rewrites = 0
        self._dropped_events = 0
        self._error = "not yet connected"

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def stop(self) -> None:
        """Publish no more and take the runtime's keys out of Redis, as far as it answers. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            # Each of the few commands that may be under way waits for timeout_s at most.
            self._thread.join(timeout=4 * self._timeout_s + self._interval_s)

    def status(self) -> PublisherStatus:
        """How publishing goes; from any thread, without waiting."""
        return PublisherStatus(
            up=self._up,
            lag_s=max(0.0, time.monotonic() - self._synced_at),
            outages=self._outages,
            rewrites=self._rewrites,
            dropped_events=self._dropped_events,
            error=self._error,
        )

    def _run(self) -> None:
        while not self._stopping.is_set():
            begun = time.monotonic()
            self._take()
            if time.monotonic() >= self._retry_at:
                self._publish()
            self._stopping.wait(max(0.0, begun + self._interval_s - time.monotonic()))
        self._withdraw()

    def _take(self) -> None:
        """Bring the mirror up to date; an engine in a long step is left alone and asked again at the next turn."""
        try:
            if self._pending is None:
                self._pending = self._engine_call(self._read_store)
            if self._pending not in wait([self._pending], timeout=self._interval_s).done:
                return
            taken, self._pending = self._pending, None
            self._absorb(taken.result())
            self._engine_refused = False
        except Exception as error:
            self._pending = None
            if not self._engine_refused:
                _log.warning("the engine gives the Redis publisher no state: %r", error)
            self._engine_refused = True

    def _read_store(self, store: PrefixStore) -> _Taken:
        """Runs on the engine's thread, so it only collects."""
        upserted, removed = store.changes(self._head_tokens)
        begun = time.monotonic()
        stats = store.stats() if begun >= self._stats_due else None
        cost = time.monotonic() - begun
        return _Taken(upserted, removed, stats, cost, self._clock(), time.monotonic(), time.time())

    def _absorb(self, taken: _Taken) -> None:
        self._mirror.apply(taken.upserted, taken.removed, taken.unix_s - taken.clock_s)
        if taken.stats is not None:
            self._stats = taken.stats
            self._stats_due = time.monotonic() + taken.stats_cost_s / _STATS_SHARE
        self._taken_at = taken.monotonic_s
        self._taken_unix_s = taken.unix_s

    def _publish(self) -> None:
        try:
            books = self._books()
            if self._written:
                change = self._mirror.take_change()
                self._written = False
                self._writer.update(books, change, len(self._mirror))
                self._dropped_events += change.dropped_events
            else:
                self._writer.rewrite(books, self._mirror.all_nodes(), self._mirror.snapshot_event())
                self._rewrites += 1
            self._written = True
            if time.monotonic() >= self._prune_at:
                self._writer.prune()
                self._prune_at = time.monotonic() + self._lease_s
        except StateLost:
            _log.info("%s no longer holds what was published: everything is written anew", self._url)
        except Exception as error:
            self._failed(error)
        else:
            self._succeeded()

    def _succeeded(self) -> None:
        if not self._up:
            _log.info("publishing to %s as %s", self._url, self._runtime_id)
        self._up, self._error = True, ""
        self._retry_s, self._retry_at = _FIRST_RETRY_S, 0.0
        self._synced_at = self._taken_at

    def _failed(self, error: Exception) -> None:
        self._written = False
        if isinstance(error, Superseded):
            self._error = f"another process registered as {self._runtime_id} (incarnation {error})"
        else:
            self._error = f"{type(error).__name__}: {error}"
        expected = isinstance(error, Superseded | redis.RedisError | OSError)
        if self._up or self._outages == 0:
            self._outages += 1
            _log.warning(
                "cannot publish to %s: %s; serving goes on, the state is written anew when it answers",
                self._url,
                self._error,
                exc_info=None if expected else error,
            )
        self._up = False
        self._retry_at = time.monotonic() + self._retry_s * random.uniform(0.75, 1.25)
        self._retry_s = min(_LAST_RETRY_S, 2 * self._retry_s)

    def _withdraw(self) -> None:
        try:
            self._writer.withdraw()
        except (redis.RedisError, OSError) as error:
            _log.info("cannot take the keys out of %s: %s; they expire within %g s", self._url, error, self._lease_s)
        self._client.close()

    def _books(self) -> Books:
        told = self._describe()
        own = {
            "schema": SCHEMA_VERSION,
            "runtime_id": self._runtime_id,
            "started_at": round(self._started_at, 3),
            "published_at": round(time.time(), 3),
            "tree_at": round(self._taken_unix_s, 3),
            "lease_s": self._lease_s,
        }
        stats = asdict(self._stats) if self._stats is not None else {}
        return Books(
            registration={**flat(told["runtime"]), **flat(own)},
            stats={**flat(stats), **flat(told["counters"]), "sessions": len(told["sessions"])},
            sessions=told["sessions"],
        )
