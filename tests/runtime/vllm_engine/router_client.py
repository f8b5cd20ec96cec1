"""Calls VllmEngine as a router does, and keeps an index by the rules of SMG's."""

from __future__ import annotations

from typing import Any

from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from tests.runtime.event_consumers import Index
from tests.runtime.services_harness import Server


def stub(server: Server) -> Any:
    return vllm_engine_pb2_grpc.VllmEngineStub(server.channel)


def asked(ids: list[int], *, stream: bool = False, request_id: str = "", **params: Any) -> Any:
    """A greedy request of 8 tokens unless `params` say otherwise."""
    given = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **params}
    return vllm_engine_pb2.GenerateRequest(
        request_id=request_id,
        tokenized=vllm_engine_pb2.TokenizedInput(input_ids=ids),
        stream=stream,
        sampling_params=vllm_engine_pb2.SamplingParams(**given),
    )


def answered(server: Server, request: Any) -> tuple[list[Any], list[Any]]:
    """The chunks and the completes of a request that is served."""
    messages = list(stub(server).Generate(request, timeout=60))
    chunks = [message.chunk for message in messages if message.HasField("chunk")]
    completes = [message.complete for message in messages if message.HasField("complete")]
    assert len(chunks) + len(completes) == len(messages)
    return chunks, completes


def subscribe(server: Server, cursor: int = 0) -> Any:
    return stub(server).SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(start_sequence_number=cursor), timeout=60)


class Gap(Exception):
    """A batch is missing: the router asks again from its cursor."""


class RouterIndex:
    """One worker's blocks by what the stream says. Attributes: `cursor`, the number applied last; 0 is none."""

    def __init__(self) -> None:
        self.blocks: Index = {}
        self.tokens: dict[int, list[int]] = {}
        self.cursor = 0
        self.snapshots = 0
        self.loads: list[Any] = []
        self.chunk_sizes: list[int] = []
        self.chunks_to_come = 0

    def apply(self, batch: Any) -> None:
        self.loads.append(batch.load)
        if batch.load.load_only:
            assert not batch.events
            assert batch.sequence_number == self.cursor, "a load record moved the cursor"
            return
        if batch.HasField("snapshot"):
            if batch.snapshot.index == 0:
                self.blocks.clear()
                self.snapshots += 1
                self.chunks_to_come = batch.snapshot.count
                assert batch.events[0].HasField("cleared")
            else:
                assert batch.sequence_number == self.cursor + 1, "the chunks' numbers are not consecutive"
            self.chunk_sizes.append(sum(len(event.stored.blocks) for event in batch.events))
            self.chunks_to_come -= 1
        else:
            assert self.chunks_to_come == 0, "the snapshot is not whole"
            if self.cursor and batch.sequence_number != self.cursor + 1:
                raise Gap
        self.cursor = batch.sequence_number
        for event in batch.events:
            self._apply_event(event)
        if batch.HasField("snapshot") and self.chunks_to_come == 0:
            assert len(self.blocks) == batch.snapshot.blocks

    def _apply_event(self, event: Any) -> None:
        kind = event.WhichOneof("data")
        if kind == "cleared":
            self.blocks.clear()
        elif kind == "removed":
            for h in event.removed.block_hashes:
                del self.blocks[h % 2**64]
        else:
            assert event.stored.tier == common_pb2.KV_CACHE_TIER_DEVICE
            parent = event.stored.parent_block_hash % 2**64 if event.stored.HasField("parent_block_hash") else None
            assert parent is None or parent in self.blocks, "a block was stored under one that is not there"
            for block in event.stored.blocks:
                h = block.block_hash % 2**64
                assert h not in self.blocks, "a block was stored twice"
                assert len(block.token_ids) == block.block_size
                self.blocks[h], parent = parent, h
                self.tokens[h] = list(block.token_ids)
