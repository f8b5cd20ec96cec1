"""Cache.WatchEvents: resumption, snapshots, signs of life, slow and lasting readers, and the end."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from typing import Any

import grpc
import numpy as np
import pytest
from radixloop.v1 import cache_pb2, common_pb2, events_pb2

from radix import BlockStored, Namespace, PrefixStore
from runtime.models.loaded_model import LoadedModel
from runtime.publishing import event_stream
from runtime.publishing.event_stream import snapshot_messages, watch
from runtime.publishing.kv_events import KvEventHub, Snapshot
from tests.runtime.engine_harness import WAIT_S, running
from tests.runtime.event_consumers import Index, StreamIndex, cached_blocks
from tests.runtime.services_harness import Server, generate, ids_prompt, prompt_of, refused, serving
from tests.timing import eventually


def held(server: Server) -> tuple[Index, int]:
    """What the tree holds, and the number of the batch that this is as of."""
    engine, hub = server.runtime._engine, server.runtime._events
    assert hub is not None
    return engine.call(lambda store: (cached_blocks(store), hub.snapshot(store).sequence)).result(WAIT_S)


def watching(server: Server, after: events_pb2.EventPosition | None = None, **more: Any) -> Any:
    return server.cache.WatchEvents(events_pb2.WatchEventsRequest(after=after, **more), timeout=WAIT_S)


def follow(server: Server, index: StreamIndex, stream: Any) -> None:
    """Read up to what is published now: the index is then what the tree holds."""
    want, upto = held(server)
    while index.position is None or index.position.sequence < upto:
        index.apply(next(stream))
    assert index.position.sequence == upto
    assert index.blocks == want


def traffic(server: Server, seed: int, requests: int = 4) -> None:
    rng = np.random.default_rng(seed)
    trunk = np.random.default_rng(3).integers(6, 262, size=90).tolist()
    for i in range(requests):
        cut = int(rng.integers(1, 90))
        space = common_pb2.Namespace(salt="tenant") if i % 2 else None
        prompt = ids_prompt(*trunk[:cut], *rng.integers(6, 262, size=20).tolist())
        generate(server, prompt, 5, namespace=space)


def test_a_watcher_holds_what_the_tree_holds(server: Server, tiny: LoadedModel) -> None:
    traffic(server, 1)
    stream = watching(server)
    index = StreamIndex(tiny.info.fingerprint)
    follow(server, index, stream)
    assert index.blocks
    traffic(server, 2)
    follow(server, index, stream)
    server.cache.Flush(cache_pb2.FlushRequest(namespace=common_pb2.Namespace(salt="tenant")))
    follow(server, index, stream)
    assert index.blocks
    server.cache.Flush(cache_pb2.FlushRequest())
    follow(server, index, stream)
    assert index.blocks == {}
    traffic(server, 3)
    follow(server, index, stream)
    assert index.snapshots == 1
    stream.cancel()


def test_the_stream_goes_on_where_it_was_left(server: Server, tiny: LoadedModel) -> None:
    index = StreamIndex(tiny.info.fingerprint)
    first = watching(server)
    follow(server, index, first)
    first.cancel()
    traffic(server, 4)
    second = watching(server, index.position)
    follow(server, index, second)
    second.cancel()
    assert index.snapshots == 1, "history was there: no snapshot was needed"


@pytest.mark.parametrize("where", ["another incarnation", "yet to come"])
def test_a_position_that_says_nothing_here_gets_a_snapshot(server: Server, tiny: LoadedModel, where: str) -> None:
    traffic(server, 5)
    known = StreamIndex(tiny.info.fingerprint)
    known.blocks = {1: None, 2: 1}
    position = events_pb2.EventPosition(incarnation="another", sequence=0)
    if where == "yet to come":
        assert server.runtime._events is not None
        position = events_pb2.EventPosition(incarnation=server.runtime._events.incarnation, sequence=10**9)
    stream = watching(server, position)
    follow(server, known, stream)
    stream.cancel()
    assert known.snapshots == 1


def test_a_watcher_is_right_again_after_a_restart(tiny: LoadedModel) -> None:
    index = StreamIndex(tiny.info.fingerprint)
    with serving(tiny) as first:
        traffic(first, 6)
        stream = watching(first)
        follow(first, index, stream)
    before = index.position
    assert before is not None
    with serving(tiny) as second:
        # The position that the index stands at exists here too, and means something else.
        traffic(second, 7, requests=8)
        stream = watching(second, before)
        follow(second, index, stream)
        assert index.position is not None
        assert index.position.sequence >= before.sequence
        assert index.position.incarnation != before.incarnation


def test_the_end_of_the_runtime_ends_the_stream_with_a_cleared_index(tiny: LoadedModel) -> None:
    index = StreamIndex(tiny.info.fingerprint)
    ended: list[grpc.StatusCode] = []

    def read(stream: Any, live: threading.Event) -> None:
        try:
            for batch in stream:
                index.apply(batch)
                live.set()
        except grpc.RpcError as error:
            ended.append(error.code())

    with serving(tiny) as server:
        traffic(server, 8)
        live = threading.Event()
        thread = threading.Thread(target=read, args=(watching(server), live))
        thread.start()
        assert live.wait(WAIT_S)
        server.stop()
        thread.join(WAIT_S)
    assert ended == [grpc.StatusCode.UNAVAILABLE]
    assert index.blocks == {}


def test_an_idle_stream_shows_signs_of_life(server: Server, tiny: LoadedModel) -> None:
    index = StreamIndex(tiny.info.fingerprint)
    stream = watching(server, heartbeat_s=0.1)
    while index.heartbeats < 3:
        index.apply(next(stream))
    stream.cancel()


def test_a_watcher_that_never_reads_holds_up_nobody(server: Server, tiny: LoadedModel) -> None:
    deaf = [watching(server) for _ in range(3)]
    index = StreamIndex(tiny.info.fingerprint)
    stream = watching(server)
    for seed in range(3):
        traffic(server, seed)
        server.cache.Flush(cache_pb2.FlushRequest())
        follow(server, index, stream)
    assert index.snapshots == 1
    hub = server.runtime._events
    assert hub is not None
    for one in (*deaf, stream):
        one.cancel()
    assert eventually(lambda: hub._wakers == []), "a watcher that left is still woken"


def test_the_caller_is_answered_at_once(server: Server) -> None:
    stream = watching(server)
    assert dict(stream.initial_metadata()) is not None
    stream.cancel()


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (events_pb2.WatchEventsRequest(heartbeat_s=0.0), "heartbeat_s is 0.0: must be from 0.1 to 3600"),
        (events_pb2.WatchEventsRequest(heartbeat_s=float("nan")), "heartbeat_s is nan"),
        (
            events_pb2.WatchEventsRequest(after=events_pb2.EventPosition(sequence=-1)),
            "after.sequence is -1: must be at least 0",
        ),
    ],
)
def test_bad_requests_are_refused(server: Server, request_: events_pb2.WatchEventsRequest, words: str) -> None:
    error = refused(lambda: server.cache.WatchEvents(request_, timeout=WAIT_S))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in error.details()


def test_a_runtime_without_events_says_so(tiny: LoadedModel) -> None:
    with serving(tiny, kv_events="off") as server:
        generate(server, prompt_of(40, 1))
        error = refused(lambda: watching(server))
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "--kv-events" in error.details()


async def test_a_reader_that_falls_behind_starts_over_from_a_snapshot(tiny: LoadedModel) -> None:
    with running(tiny, block_size=4, record_events=True) as harness:
        hub = KvEventHub("run-1", kept=4)
        harness.engine.after_step.append(hub.collect)
        index = StreamIndex(tiny.info.fingerprint)
        stream = watch(hub, lambda: harness.engine.call(hub.snapshot), None, 60.0, "CPU")
        async with aclosing(stream):
            index.apply(await anext(stream))
            # What waits for the reader meanwhile is nothing but the four batches that the hub keeps.
            for i in range(8):
                await asyncio.to_thread(harness.run, [i] * 10, max_tokens=2)
            want, upto = await asyncio.wrap_future(
                harness.engine.call(lambda store: (cached_blocks(store), hub.snapshot(store).sequence))
            )
            async for batch in stream:
                index.apply(batch)
                if index.position is not None and index.position.sequence == upto:
                    break
        assert index.snapshots == 2
        assert index.blocks == want
        assert hub._wakers == []


def test_a_large_snapshot_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_PIECE_TOKENS", 10)
    store = PrefixStore(64, 4, record_events=True)
    namespace = Namespace("f", salt="tenant")
    for tokens in ([1] * 33, [1] * 8 + [2] * 9, [3] * 5):
        seq = store.open(tokens, namespace)
        store.reserve(seq, len(tokens) - seq.length)
        store.commit(seq, tokens[seq.length :])
        store.close(seq)
    store.events()
    snapshot = Snapshot(7, 1.5, tuple(store.event_snapshot()))
    messages = list(snapshot_messages("run-1", snapshot, "GPU"))
    sizes = [sum(len(e.stored.token_ids.le_int32) // 4 for e in message.events) for message in messages]
    assert max(sizes) <= 10
    index = StreamIndex("f")
    for message in messages[:-1]:
        index.apply(message)
        assert index.position is None, "the snapshot is not whole yet"
    index.apply(messages[-1])
    assert index.position == events_pb2.EventPosition(incarnation="run-1", sequence=7)
    assert index.blocks == cached_blocks(store)
    assert {event.stored.medium for message in messages for event in message.events} == {"GPU"}


def test_a_snapshot_of_nothing_is_one_piece() -> None:
    (message,) = snapshot_messages("run-1", Snapshot(0, 1.5, ()), "CPU")
    assert (message.snapshot.index, message.snapshot.last, len(message.events)) == (0, True, 0)


def test_blocks_wider_than_a_piece_travel_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_PIECE_TOKENS", 3)
    event = BlockStored(Namespace("f"), (11, 12), 10, np.arange(8, dtype=np.int32), 4)
    messages = list(snapshot_messages("run-1", Snapshot(0, 1.5, (event,)), "CPU"))
    assert [list(m.events[0].stored.block_hashes) for m in messages] == [[11], [12]]
    assert [m.events[0].stored.parent_hash for m in messages] == [10, 11]
