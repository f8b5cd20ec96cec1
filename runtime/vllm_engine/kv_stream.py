"""One router's stream of KV events: SubscribeKvEvents.

The format has no field for an incarnation, so numbers begin at `KvEventHub.first_number`: a cursor of an earlier
incarnation is below every number of this one, and gets a snapshot. That also leaves room below the first batch for the
pieces of a snapshot, which take the numbers up to the one that it is as of.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing

from smg_grpc_proto.generated import common_pb2

from radix import BlockRemoved, BlockStored
from radix.block_events import Tier
from runtime.publishing.event_stream import follow, snapshot_pieces
from runtime.publishing.kv_events import AllBlocksCleared, CacheEvent, EventBatch, KvEventHub, Snapshot
from runtime.vllm_engine.loads import LoadRecords

# How soon a change of the load is told.
TICK_S = 0.1
# A batch of more (a large cache that is flushed) would pass the 4 MiB that clients take; a snapshot comes in pieces.
_MOST_BLOCKS = 100_000
# Wherever the model runs, the pool is what it computes on: to the router the nearest tier, not a copy to fetch.
_TIERS: dict[Tier, common_pb2.KvCacheTier] = {
    "device": common_pb2.KV_CACHE_TIER_DEVICE,
    "host": common_pb2.KV_CACHE_TIER_HOST,
    "disk": common_pb2.KV_CACHE_TIER_DISK,
}


class KvStream:
    """Writes what one subscriber gets."""

    def __init__(
        self,
        hub: KvEventHub,
        take_snapshot: Callable[[], Future[Snapshot]],
        records: LoadRecords,
    ) -> None:
        self._hub = hub
        self._take_snapshot = take_snapshot
        self._first = hub.first_number
        self._records = records
        self._event_id = 0

    async def batches(self, cursor: int) -> AsyncGenerator[common_pb2.KvEventBatch, None]:
        """Everything after number `cursor`, which the subscriber applied last; 0 and what is unknown mean a snapshot.

        Raises:
            ShuttingDown: after the last batch, when the engine has ended.
        """
        start = self._start(cursor)
        while True:
            async with aclosing(follow(self._hub, self._take_snapshot, start, TICK_S)) as news:
                number = cursor
                async for item in news:
                    if isinstance(item, EventBatch) and _blocks(item) > _MOST_BLOCKS:
                        break
                    if item is None:
                        record = self._records.alone()
                        if record is not None:
                            yield self._message(number, self._hub.now(), (), record)
                        continue
                    number = self._first + item.sequence
                    if isinstance(item, Snapshot):
                        for message in self._snapshot(item, number):
                            yield message
                    else:
                        yield self._message(number, item.timestamp, item.events, self._records.with_batch())
            start = None

    def _start(self, cursor: int) -> int | None:
        """The sequence to begin with; None for a snapshot."""
        sequence = cursor - self._first
        return sequence + 1 if 0 <= sequence < self._hub.next_sequence else None

    def _snapshot(self, snapshot: Snapshot, number: int) -> Iterator[common_pb2.KvEventBatch]:
        pieces = snapshot_pieces(snapshot)
        blocks = sum(len(event.block_hashes) for event in snapshot.events)
        for index, piece in enumerate(pieces):
            events: tuple[CacheEvent, ...] = (*((AllBlocksCleared(),) if index == 0 else ()), *piece)
            last = len(pieces) - 1
            message = self._message(number - last + index, snapshot.timestamp, events, self._records.with_batch())
            message.snapshot.CopyFrom(
                common_pb2.KvSnapshotChunk(index=index, count=len(pieces), blocks=blocks, unknown_before=0)
            )
            yield message

    def _message(
        self, number: int, timestamp: float, events: tuple[CacheEvent, ...], load: common_pb2.EngineLoad
    ) -> common_pb2.KvEventBatch:
        messages = []
        for event in events:
            self._event_id += 1
            messages.append(_event_message(self._event_id, event))
        return common_pb2.KvEventBatch(
            sequence_number=number, timestamp=timestamp, events=messages, dp_rank=0, load=load
        )


def _blocks(batch: EventBatch) -> int:
    return sum(len(event.block_hashes) for event in batch.events if not isinstance(event, AllBlocksCleared))


def _event_message(event_id: int, event: CacheEvent) -> common_pb2.KvCacheEvent:
    if isinstance(event, BlockStored):
        return common_pb2.KvCacheEvent(event_id=event_id, stored=_stored_message(event, _TIERS[event.tier]))
    if isinstance(event, BlockRemoved):
        tier = _TIERS[event.tier]
        removed = common_pb2.KvBlocksRemoved(block_hashes=[_signed(h) for h in event.block_hashes], tier=tier)
        return common_pb2.KvCacheEvent(event_id=event_id, removed=removed)
    return common_pb2.KvCacheEvent(event_id=event_id, cleared=common_pb2.KvCacheCleared())


def _stored_message(event: BlockStored, tier: int) -> common_pb2.KvBlocksStored:
    size = event.block_size
    tokens = event.token_ids.tolist()
    return common_pb2.KvBlocksStored(
        blocks=[
            common_pb2.KvBlock(block_hash=_signed(h), token_ids=tokens[i * size : (i + 1) * size], block_size=size)
            for i, h in enumerate(event.block_hashes)
        ],
        parent_block_hash=None if event.parent_hash is None else _signed(event.parent_hash),
        tier=tier,
        lora_name=event.namespace.adapter,
        cache_salt=event.namespace.salt,
    )


def _signed(block_hash: int) -> int:
    """The same 64 bits as the field's type has them."""
    return block_hash - 2**64 if block_hash >= 2**63 else block_hash
