"""SubscribeKvEvents: a router's index is the tree, whenever it comes, goes, lags or is lost."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from radixloop.v1 import cache_pb2, common_pb2

from radix import BlockStored, Namespace
from runtime.models.loaded_model import LoadedModel
from runtime.publishing import event_stream
from runtime.publishing.kv_events import KvEventHub
from runtime.vllm_engine import kv_stream
from runtime.vllm_engine.kv_stream import KvStream
from runtime.vllm_engine.loads import Load, LoadRecords
from tests.runtime.engine_harness import WAIT_S, running
from tests.runtime.event_consumers import Index, cached_blocks
from tests.runtime.services_harness import BLOCKS, Server, generate, ids_prompt, prompt_of, refused, request, serving
from tests.timing import ManualClock, eventually

from .router_client import Gap, RouterIndex, subscribe

IDLE = Load(
    running=0, waiting=0, max_running=4, used=0.0, used_tokens=0, pool_tokens=64, tokens_per_s=0.0, hit_rate=0.0
)


def follow(server: Server, index: RouterIndex, stream: Any) -> None:
    """Read up to what is published now: the index is then what the tree holds."""
    hub = server.runtime._events
    assert hub is not None

    def held(store: Any) -> tuple[Index, int]:
        return cached_blocks(store), hub.snapshot(store).sequence

    want, upto = server.runtime._engine.call(held).result(WAIT_S)
    while index.cursor < hub.first_number + upto or index.chunks_to_come:
        index.apply(next(stream))
    assert index.cursor == hub.first_number + upto
    assert index.blocks == want


def read_to_the_end(index: RouterIndex, stream: Any) -> None:
    for batch in stream:
        index.apply(batch)


def traffic(server: Server, seed: int, requests: int = 4) -> None:
    rng = np.random.default_rng(seed)
    trunk = np.random.default_rng(3).integers(6, 262, size=90).tolist()
    for i in range(requests):
        cut = int(rng.integers(1, 90))
        space = common_pb2.Namespace(salt="tenant") if i % 2 else None
        generate(server, ids_prompt(*trunk[:cut], *rng.integers(6, 262, size=20).tolist()), 5, namespace=space)


def test_an_index_is_the_tree_from_the_first_batch_on(server: Server) -> None:
    traffic(server, 1)
    index, stream = RouterIndex(), subscribe(server)
    follow(server, index, stream)
    assert index.blocks
    traffic(server, 2)
    follow(server, index, stream)
    server.cache.Flush(cache_pb2.FlushRequest(namespace=common_pb2.Namespace(salt="tenant")))
    follow(server, index, stream)
    server.cache.Flush(cache_pb2.FlushRequest())
    follow(server, index, stream)
    assert index.blocks == {}
    traffic(server, 3)
    follow(server, index, stream)
    assert index.snapshots == 1
    stream.cancel()


def test_blocks_carry_their_tokens_and_their_namespace(server: Server) -> None:
    server.cache.Flush(cache_pb2.FlushRequest())
    prompt = prompt_of(48, seed=77)
    generate(server, prompt, 2, namespace=common_pb2.Namespace(salt="s", adapter="a"))
    stream = subscribe(server)
    (stored,) = [event.stored for event in next(stream).events if event.HasField("stored")]
    assert [i for block in stored.blocks for i in block.token_ids] == list(prompt.token_ids.ids)
    assert (stored.cache_salt, stored.lora_name) == ("s", "a")
    stream.cancel()


def test_the_stream_goes_on_behind_the_cursor(server: Server) -> None:
    index, first = RouterIndex(), subscribe(server)
    follow(server, index, first)
    first.cancel()
    traffic(server, 4)
    second = subscribe(server, index.cursor)
    follow(server, index, second)
    second.cancel()
    assert index.snapshots == 1, "history was there: no snapshot was needed"


def test_a_gap_is_mended_by_asking_again(server: Server) -> None:
    index, stream = RouterIndex(), subscribe(server)
    follow(server, index, stream)
    traffic(server, 5)
    lost = next(message for message in stream if message.events)
    assert lost.sequence_number == index.cursor + 1
    with pytest.raises(Gap):
        read_to_the_end(index, stream)
    stream.cancel()
    again = subscribe(server, index.cursor)
    follow(server, index, again)
    again.cancel()
    assert index.snapshots == 1


@pytest.mark.parametrize("cursor", [1, 7, 2**63, 2**64 - 1])
def test_a_cursor_that_means_nothing_here_gets_a_snapshot(server: Server, cursor: int) -> None:
    traffic(server, 6)
    index, stream = RouterIndex(), subscribe(server, cursor)
    index.blocks = {1: None}
    follow(server, index, stream)
    stream.cancel()
    assert index.snapshots == 1


def test_an_index_is_right_again_after_a_restart(tiny: LoadedModel) -> None:
    index = RouterIndex()
    with serving(tiny) as first:
        traffic(first, 7)
        follow(first, index, subscribe(first))
    before = index.cursor
    with serving(tiny) as second:
        traffic(second, 8, requests=8)
        stream = subscribe(second, before)
        follow(second, index, stream)
        assert index.cursor > before
        assert index.snapshots == 2
        stream.cancel()


def test_the_end_of_the_runtime_clears_the_index(tiny: LoadedModel) -> None:
    index = RouterIndex()
    with serving(tiny) as server:
        traffic(server, 9)
        stream = subscribe(server)
        follow(server, index, stream)
        assert index.blocks
        server.stop()
        with pytest.raises(grpc.RpcError) as ended:
            read_to_the_end(index, stream)
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    assert index.blocks == {}


def test_the_caller_is_answered_before_the_engine_is(server: Server) -> None:
    """A router that hears nothing for two seconds takes the runtime for lost."""
    answered = threading.Event()
    held = server.runtime._engine.call(lambda store: answered.wait(WAIT_S))
    stream = subscribe(server)
    stream.initial_metadata()
    answered.set()
    assert held.result(WAIT_S)
    assert next(stream).HasField("snapshot")
    stream.cancel()


def test_routers_that_leave_in_the_middle_leave_nothing_behind(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_PIECE_TOKENS", 32)
    traffic(server, 10, requests=8)
    hub = server.runtime._events
    assert hub is not None
    for _ in range(20):
        stream = subscribe(server)
        assert next(stream).snapshot.count > 2
        stream.cancel()
    deaf = [subscribe(server) for _ in range(5)]
    traffic(server, 11)
    index, stream = RouterIndex(), subscribe(server)
    follow(server, index, stream)
    for one in (*deaf, stream):
        one.cancel()
    assert eventually(lambda: not hub._wakers), "a router that left is still woken"
    stats = server.idle()
    assert stats.free_blocks + stats.cached_blocks == BLOCKS


def test_a_large_snapshot_comes_in_pieces_numbered_up_to_its_own(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "_PIECE_TOKENS", 64)
    traffic(server, 12, requests=8)
    index, stream = RouterIndex(), subscribe(server)
    follow(server, index, stream)
    assert len(index.chunk_sizes) > 2
    assert max(index.chunk_sizes) <= 4
    traffic(server, 13)
    follow(server, index, stream)
    assert index.snapshots == 1
    stream.cancel()


def test_a_change_too_large_for_a_message_comes_as_a_snapshot(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_stream, "_MOST_BLOCKS", 8)
    traffic(server, 14, requests=8)
    index, stream = RouterIndex(), subscribe(server)
    follow(server, index, stream)
    server.cache.Flush(cache_pb2.FlushRequest())
    follow(server, index, stream)
    assert index.snapshots == 2
    stream.cancel()


async def test_a_router_that_falls_behind_starts_over_from_a_snapshot(tiny: LoadedModel) -> None:
    with running(tiny, block_size=4, record_events=True) as harness:
        hub = KvEventHub("run-1", kept=4)
        harness.engine.after_step.append(hub.collect)
        index = RouterIndex()
        stream = KvStream(hub, lambda: harness.engine.call(hub.snapshot), LoadRecords(lambda: IDLE)).batches(0)
        async with aclosing(stream):
            index.apply(await anext(stream))
            # What waits for the router meanwhile is nothing but the four batches that the hub keeps.
            for i in range(8):
                await asyncio.to_thread(harness.run, [i] * 10, max_tokens=2)
            want = await asyncio.wrap_future(harness.engine.call(cached_blocks))
            async for batch in stream:
                index.apply(batch)
                if index.blocks == want:
                    break
        assert index.snapshots == 2
        assert hub._wakers == []


def test_load_travels_with_the_events(server: Server) -> None:
    index, stream = RouterIndex(), subscribe(server)
    index.apply(next(stream))
    (first,) = index.loads
    assert (first.sample, first.max_total_num_tokens, first.max_running_requests) == (1, BLOCKS * 16, 32)
    while not index.loads[-1].load_only:
        index.apply(next(stream))
    running_call = server.inference.Generate(request(prompt_of(40, seed=9), 3500), timeout=60)
    while not index.loads[-1].running_requests:
        index.apply(next(stream))
    running_call.cancel()
    while index.loads[-1].running_requests:
        index.apply(next(stream))
    assert [load.sample for load in index.loads] == list(range(1, len(index.loads) + 1))
    stream.cancel()


def test_a_load_is_told_when_it_moves_and_repeated_rarely_when_it_does_not() -> None:
    clock, load = ManualClock(), SimpleNamespace(now=IDLE)
    records = LoadRecords(lambda: load.now, clock)
    assert records.with_batch().HasField("cache_hit_rate")
    assert not records.with_batch().HasField("cache_hit_rate"), "what routes nothing travels once"
    assert records.alone() is None
    told = []
    for _ in range(200):
        clock.now += 0.1
        if records.alone() is not None:
            told.append(round(clock.now))
    assert told == [1, 2, 7, 12, 17]
    load.now = replace(IDLE, waiting=3)
    record = records.alone()
    assert record is not None
    assert (record.waiting_requests, record.load_only) == (3, True)


def test_a_runtime_without_events_says_that_it_has_none(tiny: LoadedModel) -> None:
    with serving(tiny, kv_events="off") as server:
        error = refused(lambda: subscribe(server))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "--kv-events" in error.details()


def test_hashes_beyond_a_signed_number_keep_their_bits() -> None:
    stored = BlockStored(Namespace("f"), (2**64 - 1, 5), 2**63, np.arange(8, dtype=np.int32), 4)
    message = kv_stream._event_message(1, stored).stored
    assert [block.block_hash % 2**64 for block in message.blocks] == [2**64 - 1, 5]
    assert message.parent_block_hash % 2**64 == 2**63
