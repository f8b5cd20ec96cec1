"""Consumers of KV events as a router would write them, and what they must hold."""

from __future__ import annotations

import sys
from array import array
from typing import Any

import msgspec
import numpy as np
import zmq
from radixloop.v1 import events_pb2

from radix import Namespace, PrefixStore, block_hash

Index = dict[int, int | None]


def cached_blocks(store: PrefixStore) -> Index:
    """Every full block of the tree and the one before it, worked out from the tree's tokens."""
    present: Index = {}
    for root in {node.namespace for node in store.nodes(head_tokens=0)}:
        paths: dict[int, list[int]] = {0: []}
        for node in store.nodes(root, head_tokens=10**6):
            paths[node.id] = path = paths[node.parent_id] + node.head.tolist()
            parent = None
            for end in range(store.block_size, len(path) + 1, store.block_size):
                h = block_hash(root, parent, np.array(path[end - store.block_size : end], dtype=np.int32))
                present[h], parent = parent, h
    return present


class StreamIndex:
    """Applies what `Cache.WatchEvents` sends, and checks that it is well formed."""

    def __init__(self, fingerprint: str) -> None:
        self.blocks: Index = {}
        self.position: events_pb2.EventPosition | None = None
        self.snapshots = 0
        self.heartbeats = 0
        self._fingerprint = fingerprint
        self._piece = 0

    def apply(self, batch: events_pb2.EventBatch) -> None:
        if batch.HasField("snapshot"):
            if batch.snapshot.index == 0:
                self.blocks.clear()
                self.snapshots += 1
                self._piece = 0
            assert batch.snapshot.index == self._piece, "a piece of the snapshot is missing"
            self._piece += 1
            if not batch.snapshot.last:
                self.position = None
        elif not batch.events:
            self.heartbeats += 1
            assert self.position is not None
            assert batch.sequence == self.position.sequence, "a sign of life moved the position"
        elif self.position is not None:
            assert batch.incarnation == self.position.incarnation
            assert batch.sequence == self.position.sequence + 1, "a gap"
        for event in batch.events:
            self._apply_event(event)
        if not batch.HasField("snapshot") or batch.snapshot.last:
            self.position = events_pb2.EventPosition(incarnation=batch.incarnation, sequence=batch.sequence)

    def _apply_event(self, event: events_pb2.CacheEvent) -> None:
        kind = event.WhichOneof("event")
        if kind == "cleared":
            self.blocks.clear()
        elif kind == "removed":
            for h in event.removed.block_hashes:
                del self.blocks[h]
        else:
            self._store(event.stored)

    def _store(self, stored: events_pb2.BlocksStored) -> None:
        tokens = array("i")
        tokens.frombytes(stored.token_ids.le_int32)
        if sys.byteorder == "big":
            tokens.byteswap()
        space = stored.namespace
        namespace = Namespace(
            self._fingerprint,
            space.salt if space.HasField("salt") else None,
            space.adapter if space.HasField("adapter") else None,
        )
        parent = stored.parent_hash if stored.HasField("parent_hash") else None
        assert parent is None or parent in self.blocks, "a block was stored under one that is not there"
        size = stored.block_size
        assert len(tokens) == size * len(stored.block_hashes)
        for i, h in enumerate(stored.block_hashes):
            assert h == block_hash(namespace, parent, np.array(tokens[i * size : (i + 1) * size], dtype=np.int32))
            assert h not in self.blocks, "a block was stored twice"
            self.blocks[h], parent = parent, h


# The fields and options that vLLM gives these, so that its decoder is what reads our payloads.


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class ZmqIndex:
    """Subscribes, notices gaps by the numbers and has them replayed; knows nothing of incarnations."""

    def __init__(self, endpoint: str, replay: str) -> None:
        self.blocks: Index = {}
        self.last: int | None = None
        self.replays = 0
        self.batches: list[KVEventBatch] = []
        self._decoder = msgspec.msgpack.Decoder(KVEventBatch)
        self._context = zmq.Context()
        self._sub: zmq.Socket[bytes] | None = None
        self._dealer: zmq.Socket[bytes] | None = None
        self.connect(endpoint, replay)

    def connect(self, endpoint: str, replay: str) -> None:
        """Listen there from now on, in place of where it listened before."""
        for old in (self._sub, self._dealer):
            if old is not None:
                old.close(linger=0)
        self._sub = self._context.socket(zmq.SUB)
        self._sub.setsockopt(zmq.SUBSCRIBE, b"kv")
        self._sub.connect(endpoint)
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.connect(replay)

    def read(self, timeout_s: float) -> bool:
        """Take one message if one comes in time."""
        assert self._sub is not None
        if not self._sub.poll(timeout_s * 1000):
            return False
        topic, number, payload = self._sub.recv_multipart()
        assert topic == b"kv@test"
        seq = int.from_bytes(number, "big")
        if self.last is None or seq > self.last + 1:
            self.catch_up()
        self._apply(seq, payload)
        return True

    def drop(self, timeout_s: float) -> bool:
        """Lose one message that would have been news, if one comes in time."""
        assert self._sub is not None
        while self._sub.poll(timeout_s * 1000):
            number = int.from_bytes(self._sub.recv_multipart()[1], "big")
            if self.last is None or number > self.last:
                return True
        return False

    def catch_up(self) -> None:
        """Ask for everything after the last number that was applied."""
        assert self._dealer is not None
        self.replays += 1
        self._dealer.send_multipart((b"", (0 if self.last is None else self.last + 1).to_bytes(8, "big")))
        while True:
            assert self._dealer.poll(30_000), "the replay does not end"
            _, number, payload = self._dealer.recv_multipart()
            seq = int.from_bytes(number, "big", signed=True)
            if seq == -1:
                assert payload == b""
                return
            self._apply(seq, payload)

    def _apply(self, seq: int, payload: bytes) -> None:
        if self.last is not None and seq <= self.last:
            return
        self.last = seq
        batch = self._decoder.decode(payload)
        self.batches.append(batch)
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlockRemoved):
                for h in event.block_hashes:
                    del self.blocks[h]  # type: ignore[arg-type]
            else:
                parent = event.parent_block_hash
                assert parent is None or parent in self.blocks, "a block was stored under one that is not there"
                for h in event.block_hashes:
                    assert h not in self.blocks, "a block was stored twice"
                    self.blocks[h], parent = parent, h  # type: ignore[index, assignment]

    def close(self) -> None:
        self._context.destroy(linger=0)
