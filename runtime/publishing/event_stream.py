"""One consumer's stream of KV events over gRPC: history, a snapshot where history is gone, then what happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing

import numpy as np
from radixloop.v1 import common_pb2, events_pb2

from radix import BlockStored
from runtime.errors import InvalidRequest, ShuttingDown
from runtime.publishing.kv_events import (
    AllBlocksCleared,
    CacheEvent,
    EventBatch,
    HistoryGone,
    KvEventHub,
    Snapshot,
    medium_in,
)
from runtime.services.replies import namespace_message

DEFAULT_HEARTBEAT_S = 5.0
MIN_HEARTBEAT_S = 0.1
MAX_HEARTBEAT_S = 3600.0
_BATCHES_AT_A_TIME = 64
# Tokens in a piece of a snapshot: with their hashes well below the 4 MiB that gRPC clients take by default.
_PIECE_TOKENS = 65_536


def heartbeat_of(request: events_pb2.WatchEventsRequest) -> float:
    """Idle seconds until a sign of life. Raises InvalidRequest."""
    if not request.HasField("heartbeat_s"):
        return DEFAULT_HEARTBEAT_S
    if not MIN_HEARTBEAT_S <= request.heartbeat_s <= MAX_HEARTBEAT_S:
        limit = f"must be from {MIN_HEARTBEAT_S:g} to {MAX_HEARTBEAT_S:g}"
        raise InvalidRequest("heartbeat_s", request.heartbeat_s, limit)
    return request.heartbeat_s


def first_wanted(hub: KvEventHub, request: events_pb2.WatchEventsRequest) -> int | None:
    """The sequence to begin with; None for a snapshot. Raises InvalidRequest."""
    if not request.HasField("after"):
        return None
    if request.after.sequence < 0:
        raise InvalidRequest("after.sequence", request.after.sequence, "must be at least 0")
    known = request.after.incarnation == hub.incarnation and request.after.sequence < hub.next_sequence
    return request.after.sequence + 1 if known else None


async def follow(
    hub: KvEventHub, take_snapshot: Callable[[], Future[Snapshot]], start: int | None, idle_s: float
) -> AsyncGenerator[Snapshot | EventBatch | None, None]:
    """Yield batches from `start` on, or from a snapshot; a reader that falls behind the history gets a snapshot.

    None after `idle_s` seconds without news.

    Raises:
        ShuttingDown: after the last batch, when the engine has ended.
    """
    loop = asyncio.get_running_loop()
    news = asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(news.set)

    hub.subscribe(wake)
    try:
        at = start
        while True:
            news.clear()
            if at is None:
                snapshot = await asyncio.wrap_future(take_snapshot())
                yield snapshot
                at = snapshot.sequence + 1
            # Asked first: the end may come between the two, and its batch must still be told.
            ended = hub.closed
            try:
                batches = hub.batches(at, _BATCHES_AT_A_TIME)
            except HistoryGone:
                at = None
                continue
            for batch in batches:
                yield batch
                at = batch.sequence + 1
            if batches:
                continue
            if ended:
                raise ShuttingDown("the runtime has stopped: its cache is gone")
            try:
                await asyncio.wait_for(news.wait(), idle_s)
            except asyncio.TimeoutError:
                yield None
    finally:
        hub.unsubscribe(wake)


async def watch(
    hub: KvEventHub,
    take_snapshot: Callable[[], Future[Snapshot]],
    start: int | None,
    heartbeat_s: float,
    medium: str,
) -> AsyncGenerator[events_pb2.EventBatch, None]:
    """What `follow` yields as messages, with a sign of life every `heartbeat_s` idle seconds."""
    last = -1 if start is None else start - 1
    async with aclosing(follow(hub, take_snapshot, start, heartbeat_s)) as news:
        async for item in news:
            if isinstance(item, Snapshot):
                for message in snapshot_messages(hub.incarnation, item, medium):
                    yield message
            elif item is None:
                yield _message(hub.incarnation, last, hub.now(), (), medium)
                continue
            else:
                yield _message(hub.incarnation, item.sequence, item.timestamp, item.events, medium)
            last = item.sequence


def snapshot_messages(incarnation: str, snapshot: Snapshot, medium: str) -> Iterator[events_pb2.EventBatch]:
    """A snapshot in pieces, at least one, of bounded size."""
    pieces = snapshot_pieces(snapshot)
    for index, events in enumerate(pieces):
        message = _message(incarnation, snapshot.sequence, snapshot.timestamp, events, medium)
        message.snapshot.index = index
        message.snapshot.last = index == len(pieces) - 1
        yield message


def snapshot_pieces(snapshot: Snapshot) -> list[list[BlockStored]]:
    """The events of a snapshot in pieces of bounded size, at least one."""
    return list(_pieces(snapshot.events)) or [[]]


def _pieces(events: tuple[BlockStored, ...]) -> Iterator[list[BlockStored]]:
    piece: list[BlockStored] = []
    tokens = 0
    for event in events:
        for part in _parts(event):
            if piece and tokens + len(part.token_ids) > _PIECE_TOKENS:
                yield piece
                piece, tokens = [], 0
            piece.append(part)
            tokens += len(part.token_ids)
    if piece:
        yield piece


def _parts(event: BlockStored) -> Iterator[BlockStored]:
    """The same blocks in events of at most _PIECE_TOKENS, or of one block."""
    blocks = max(1, _PIECE_TOKENS // event.block_size)
    parent = event.parent_hash
    for start in range(0, len(event.block_hashes), blocks):
        hashes = event.block_hashes[start : start + blocks]
        tokens = event.token_ids[start * event.block_size : (start + len(hashes)) * event.block_size]
        yield BlockStored(event.namespace, hashes, parent, tokens, event.block_size, event.tier)
        parent = hashes[-1]


def _message(
    incarnation: str, sequence: int, timestamp: float, events: tuple[CacheEvent, ...] | list[BlockStored], medium: str
) -> events_pb2.EventBatch:
    return events_pb2.EventBatch(
        incarnation=incarnation,
        sequence=sequence,
        timestamp=timestamp,
        events=[_event_message(event, medium) for event in events],
    )


def _event_message(event: CacheEvent, medium: str) -> events_pb2.CacheEvent:
    if isinstance(event, AllBlocksCleared):
        return events_pb2.CacheEvent(cleared=events_pb2.BlocksCleared())
    namespace = namespace_message(event.namespace)
    if isinstance(event, BlockStored):
        stored = events_pb2.BlocksStored(
            namespace=namespace,
            block_hashes=event.block_hashes,
            parent_hash=event.parent_hash,
            token_ids=common_pb2.TokenIds(le_int32=event.token_ids.astype(np.dtype("<i4")).tobytes()),
            block_size=event.block_size,
            medium=medium_in(event.tier, medium),
        )
        return events_pb2.CacheEvent(stored=stored)
    place = medium_in(event.tier, medium)
    removed = events_pb2.BlocksRemoved(namespace=namespace, block_hashes=event.block_hashes, medium=place)
    return events_pb2.CacheEvent(removed=removed)
