"""What `watch_events` yields, and where a watcher stands."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from radixloop.v1 import events_pb2

from .generate_options import namespace_parts
from .prompts import ids_from_proto


@dataclass(frozen=True)
class EventPosition:
    """The last batch that was applied. A restarted runtime is another incarnation."""

    incarnation: str
    sequence: int


@dataclass(frozen=True)
class BlocksStored:
    """Blocks that can be found from now on, in order along one path; `parent_hash` is None at its beginning."""

    salt: str | None
    adapter: str | None
    block_hashes: tuple[int, ...]
    parent_hash: int | None
    token_ids: array[int]
    block_size: int
    medium: str


@dataclass(frozen=True)
class BlocksRemoved:
    """Blocks that cannot be found any more, last first."""

    salt: str | None
    adapter: str | None
    block_hashes: tuple[int, ...]
    medium: str


@dataclass(frozen=True)
class BlocksCleared:
    """Nothing that was announced before is cached any more."""


@dataclass(frozen=True)
class EventBatch:
    """What changed between two steps of the engine; without events a sign of life.

    Attributes:
        position: where to go on after this batch; None inside a snapshot.
        timestamp: seconds since 1970.
        snapshot: the events are a piece of everything that is cached.
        starts_over: forget what is known before applying the events.
    """

    position: EventPosition | None
    timestamp: float
    events: tuple[BlocksStored | BlocksRemoved | BlocksCleared, ...]
    snapshot: bool = False
    starts_over: bool = False


class Watch:
    """One watcher's place in the stream, from which it goes on when the connection breaks."""

    def __init__(self, after: EventPosition | None, heartbeat_s: float | None) -> None:
        self._after = after
        self._heartbeat_s = heartbeat_s

    def request(self) -> events_pb2.WatchEventsRequest:
        after = self._after
        position = events_pb2.EventPosition(incarnation=after.incarnation, sequence=after.sequence) if after else None
        return events_pb2.WatchEventsRequest(after=position, heartbeat_s=self._heartbeat_s)

    def received(self, message: events_pb2.EventBatch) -> EventBatch:
        snapshot = message.HasField("snapshot")
        whole = not snapshot or message.snapshot.last
        self._after = EventPosition(message.incarnation, message.sequence) if whole else None
        return EventBatch(
            position=self._after,
            timestamp=message.timestamp,
            events=tuple(_event(event) for event in message.events),
            snapshot=snapshot,
            starts_over=snapshot and message.snapshot.index == 0,
        )


def _event(event: events_pb2.CacheEvent) -> BlocksStored | BlocksRemoved | BlocksCleared:
    kind = event.WhichOneof("event")
    if kind == "stored":
        stored = event.stored
        return BlocksStored(
            *namespace_parts(stored.namespace),
            block_hashes=tuple(stored.block_hashes),
            parent_hash=stored.parent_hash if stored.HasField("parent_hash") else None,
            token_ids=ids_from_proto(stored.token_ids),
            block_size=stored.block_size,
            medium=stored.medium,
        )
    if kind == "removed":
        removed = event.removed
        return BlocksRemoved(*namespace_parts(removed.namespace), tuple(removed.block_hashes), removed.medium)
    return BlocksCleared()
