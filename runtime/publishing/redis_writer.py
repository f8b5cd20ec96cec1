"""The transactions that put one runtime's state into Redis. Readers see each of them whole or not at all."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import redis

from radix.metadata_client import living_runtimes
from radix.metadata_schema import EVENTS_KEPT, RUNTIMES_KEY, RuntimeKeys
from runtime.publishing.tree_mirror import Event, TreeChange

_FIELDS_PER_COMMAND = 500


class Superseded(Exception):
    """Another process registered under this runtime's id and its lease is running."""


class StateLost(Exception):
    """Redis does not hold (all of) what was written: it restarted empty, or somebody deleted keys."""


@dataclass(frozen=True)
class Books:
    """What is rewritten at every publication, beside the tree.

    Attributes:
        registration: flat fields of the registration hash.
        stats: flat fields of the stats hash.
        sessions: session id -> what is known of it.
    """

    registration: Mapping[str, str | int | float]
    stats: Mapping[str, str | int | float]
    sessions: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


class RedisWriter:
    """Owns the keys of one runtime. Every method may raise redis.RedisError or OSError, and then `rewrite` is due.

    Args:
        incarnation: unique to this process; fences off a predecessor or a twin under the same id.
        lease_s: how long the keys outlive the last publication.
    """

    def __init__(self, client: redis.Redis, runtime_id: str, incarnation: str, lease_s: float) -> None:
        self._client = client
        self._runtime_id = runtime_id
        self._incarnation = incarnation
        self._lease_ms = max(1, round(lease_s * 1000))
        self._keys = RuntimeKeys.of(runtime_id, incarnation)
        self._sessions: dict[str, str] = {}
        self._ever_registered = False
        # Between these two lies the last event in Redis when the answer to a transaction got lost.
        self._seq_confirmed = 0
        self._seq_attempted = 0

    def rewrite(self, books: Books, nodes: Iterable[tuple[str, str]], snapshot: Event) -> None:
        """Write everything, in place of whatever is there. Raises Superseded."""
        keys = self._keys
        owner, found = self._client.hmget(keys.registration, "incarnation", "seq")
        if self._ever_registered and owner not in (None, self._incarnation):
            raise Superseded(owner)
        seq = int(found) if owner == self._incarnation and found else -1
        stream_goes_on = self._seq_confirmed <= seq <= self._seq_attempted
        if not stream_goes_on:
            seq = self._seq_attempted

        written = self._write_scratch(nodes)
        sessions = {name: _as_json(values) for name, values in books.sessions.items()}
        events: list[Event] = [snapshot] if self._ever_registered else [{"event": "registered"}, snapshot]
        with self._pipeline() as pipe:
            pipe.delete(keys.registration, keys.stats, keys.sessions, *([] if stream_goes_on else [keys.events]))
            if written:
                pipe.rename(keys.scratch, keys.nodes)
            else:
                pipe.delete(keys.nodes)
            _set_fields(pipe, keys.sessions, sessions)
            self._finish(pipe, books, events, seq)
        self._sessions = sessions
        self._ever_registered = True

    def update(self, books: Books, change: TreeChange, nodes_expected: int) -> None:
        """Write what changed and renew the lease.

        Args:
            nodes_expected: how many nodes Redis must hold afterwards.

        Raises:
            Superseded, StateLost. `redis.WatchError` means that somebody wrote the registration meanwhile.
        """
        keys = self._keys
        sessions = {name: _as_json(values) for name, values in books.sessions.items()}
        with self._pipeline() as pipe:
            pipe.watch(keys.registration)
            owner = pipe.hget(keys.registration, "incarnation")
            if owner is None:
                raise StateLost
            if owner != self._incarnation:
                raise Superseded(owner)
            pipe.multi()
            _set_fields(pipe, keys.nodes, change.nodes)
            _delete_fields(pipe, keys.nodes, change.removed)
            fresh = {name: text for name, text in sessions.items() if self._sessions.get(name) != text}
            _set_fields(pipe, keys.sessions, fresh)
            _delete_fields(pipe, keys.sessions, [name for name in self._sessions if name not in sessions])
            pipe.hlen(keys.nodes)
            pipe.hlen(keys.sessions)
            counts = len(pipe.command_stack)
            results = self._finish(pipe, books, change.events, self._seq_confirmed)
        self._sessions = sessions
        if results[counts - 2 : counts] != [nodes_expected, len(sessions)]:
            raise StateLost

    def withdraw(self) -> None:
        """Delete the runtime's keys, unless they are another incarnation's by now."""
        keys = self._keys
        with self._pipeline() as pipe:
            pipe.watch(keys.registration)
            owner = pipe.hget(keys.registration, "incarnation")
            if owner != self._incarnation:
                return
            pipe.multi()
            pipe.delete(*keys.all())
            pipe.srem(RUNTIMES_KEY, self._runtime_id)
            pipe.execute()

    def prune(self) -> None:
        """Take the runtimes whose lease ran out off the list."""
        living_runtimes(self._client)

    def _pipeline(self) -> Any:
        # The client's own annotations miss half of what a pipeline does.
        return self._client.pipeline()

    def _write_scratch(self, nodes: Iterable[tuple[str, str]]) -> int:
        key, written = self._keys.scratch, 0
        self._client.delete(key)
        for part in _parts(iter(nodes)):
            with self._pipeline() as pipe:
                pipe.hset(key, mapping=part)
                pipe.pexpire(key, self._lease_ms)
                pipe.execute()
            written += len(part)
        return written

    def _finish(self, pipe: Any, books: Books, events: list[Event], seq: int) -> list[Any]:
        """Queue registration, stats, events and leases behind what `pipe` holds, and execute it all."""
        keys = self._keys
        self._seq_attempted = max(self._seq_attempted, seq + len(events))
        at = round(time.time(), 3)
        for number, event in enumerate(events, start=seq + 1):
            entry = {"incarnation": self._incarnation, "seq": number, "at": at, **event}
            pipe.xadd(keys.events, entry, maxlen=EVENTS_KEPT, approximate=True)
        last = seq + len(events)
        pipe.hset(keys.registration, mapping={**books.registration, "incarnation": self._incarnation, "seq": last})
        pipe.hset(keys.stats, mapping=dict(books.stats))
        for key in (keys.registration, keys.stats, keys.nodes, keys.sessions, keys.events):
            pipe.pexpire(key, self._lease_ms)
        # The list is everybody's: a short lease here must not cut a longer one there.
        pipe.sadd(RUNTIMES_KEY, self._runtime_id)
        pipe.pexpire(RUNTIMES_KEY, self._lease_ms, nx=True)
        pipe.pexpire(RUNTIMES_KEY, self._lease_ms, gt=True)
        results: list[Any] = pipe.execute()
        self._seq_confirmed = self._seq_attempted = last
        return results


def _as_json(values: Mapping[str, object]) -> str:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def _parts(items: Iterator[tuple[str, str]]) -> Iterator[dict[str, str]]:
    while part := dict(islice(items, _FIELDS_PER_COMMAND)):
        yield part


def _set_fields(pipe: Any, key: str, fields: Mapping[str, str]) -> None:
    for part in _parts(iter(fields.items())):
        pipe.hset(key, mapping=part)


def _delete_fields(pipe: Any, key: str, fields: list[str]) -> None:
    for first in range(0, len(fields), _FIELDS_PER_COMMAND):
        pipe.hdel(key, *fields[first : first + _FIELDS_PER_COMMAND])
