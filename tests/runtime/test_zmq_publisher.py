"""KV events over ZeroMQ, read by a consumer that decodes with structs declared as vLLM's and knows only numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from radix import BlockRemoved, BlockStored, Namespace
from runtime.models.loaded_model import LoadedModel
from runtime.publishing.kv_events import AllBlocksCleared, KvEventHub
from runtime.publishing.zmq_publisher import ZmqPublisher
from runtime.publishing.zmq_wire import encode_batch
from runtime.settings import BadConfig
from tests.runtime import event_consumers
from tests.runtime.engine_harness import WAIT_S, Harness, running
from tests.runtime.event_consumers import KVEventBatch, ZmqIndex, cached_blocks

ANY_PORT = "tcp://127.0.0.1:*"


@contextmanager
def publishing(loaded: LoadedModel, kept: int = 10_000, **config: Any) -> Iterator[tuple[Harness, ZmqPublisher]]:
    with running(loaded, **{"block_size": 4, "record_events": True, **config}) as harness:
        hub = KvEventHub("run-1", kept=kept)
        harness.engine.after_step.append(hub.collect)
        publisher = ZmqPublisher(
            hub,
            lambda: harness.engine.call(hub.snapshot),
            endpoint=ANY_PORT,
            replay=ANY_PORT,
            topic="kv@test",
            medium="CPU",
        )
        publisher.start()
        try:
            yield harness, publisher
        finally:
            publisher.close()


@contextmanager
def consumer(publisher: ZmqPublisher) -> Iterator[ZmqIndex]:
    assert publisher.replay_endpoint is not None
    index = ZmqIndex(publisher.endpoint, publisher.replay_endpoint)
    try:
        yield index
    finally:
        index.close()


def traffic(harness: Harness, seed: int, requests: int = 8) -> None:
    rng = np.random.default_rng(seed)
    trunk = np.random.default_rng(5).integers(0, 40, size=40).tolist()
    for _ in range(requests):
        cut = int(rng.integers(1, 40))
        harness.run(trunk[:cut] + rng.integers(0, 40, size=8).tolist(), max_tokens=6)


def wait_until_live(harness: Harness, index: ZmqIndex) -> None:
    """Cause events until one arrives: a subscription takes its time, and nobody tells when it holds."""
    deadline = time.monotonic() + WAIT_S
    token = 0
    while not index.read(0.05):
        assert time.monotonic() < deadline, "the subscriber never heard anything"
        token = (token + 1) % 40
        harness.run([token] * 6, max_tokens=1)


def settle(harness: Harness, publisher: ZmqPublisher, index: ZmqIndex) -> None:
    """Read up to the last batch: the index is then what the tree holds."""
    want, upto = harness.engine.call(
        lambda store: (cached_blocks(store), publisher._hub.snapshot(store).sequence)
    ).result(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while index.last is None or index.last < publisher.first_number + upto:
        assert time.monotonic() < deadline, "events are missing"
        if not index.read(0.5):
            # No later message tells of a gap when the last one is lost.
            index.catch_up()
    assert index.blocks == want


def test_a_subscriber_that_starts_late_learns_everything(tiny: LoadedModel) -> None:
    with publishing(tiny) as (harness, publisher):
        traffic(harness, 1)
        with consumer(publisher) as index:
            index.catch_up()
            assert index.blocks == harness.engine.call(cached_blocks).result(WAIT_S) != {}
            wait_until_live(harness, index)
            traffic(harness, 2)
            harness.engine.call(lambda store: store.evict(7)).result(WAIT_S)
            settle(harness, publisher, index)
            harness.flush()
            settle(harness, publisher, index)
            assert index.blocks == {}


def test_lost_messages_are_replayed(tiny: LoadedModel) -> None:
    with publishing(tiny) as (harness, publisher), consumer(publisher) as index:
        wait_until_live(harness, index)
        settle(harness, publisher, index)
        before = index.replays
        for seed in range(3):
            traffic(harness, seed, requests=2)
            assert index.drop(WAIT_S)
            settle(harness, publisher, index)
            harness.flush()
            settle(harness, publisher, index)
        assert index.replays >= before + 3
        assert publisher.counters.snapshots == 0


def test_lost_messages_that_are_gone_come_as_a_snapshot(tiny: LoadedModel) -> None:
    with publishing(tiny, kept=4) as (harness, publisher), consumer(publisher) as index:
        wait_until_live(harness, index)
        traffic(harness, 3)
        while index.drop(0.2):
            pass
        harness.run([1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=1)
        settle(harness, publisher, index)
        assert publisher.counters.snapshots >= 1
        traffic(harness, 4)
        settle(harness, publisher, index)


def test_a_consumer_is_right_again_after_a_restart(tiny: LoadedModel) -> None:
    with publishing(tiny) as (harness, first), consumer(first) as index:
        wait_until_live(harness, index)
        traffic(harness, 1)
        settle(harness, first, index)
        old = set(index.blocks)
        numbered = index.last
        with publishing(tiny) as (other, second):
            # More batches than the first one had: numbers that began at 0 again would hide the restart.
            traffic(other, 2, requests=20)
            assert second.replay_endpoint is not None
            index.connect(second.endpoint, second.replay_endpoint)
            wait_until_live(other, index)
            settle(other, second, index)
            assert not old <= set(index.blocks)
            assert numbered is not None
            assert index.last is not None
            assert index.last > numbered


def test_an_orderly_end_clears(tiny: LoadedModel) -> None:
    with publishing(tiny) as (harness, publisher), consumer(publisher) as index:
        wait_until_live(harness, index)
        traffic(harness, 1)
        settle(harness, publisher, index)
        publisher._hub.close()
        publisher.close()
        while index.read(1.0):
            pass
        assert index.blocks == {}


def test_a_subscriber_that_never_reads_holds_up_nobody(tiny: LoadedModel) -> None:
    with publishing(tiny, kept=8) as (harness, publisher), consumer(publisher) as index:
        # Its own queue, the publisher's and the sockets' buffers fill up, and stay full.
        deaf = index._context.socket(zmq.SUB)
        deaf.setsockopt(zmq.RCVHWM, 1)
        deaf.setsockopt(zmq.RCVBUF, 1024)
        deaf.setsockopt(zmq.SUBSCRIBE, b"")
        deaf.connect(publisher.endpoint)
        wait_until_live(harness, index)
        steps = harness.engine.counters.steps
        for seed in range(6):
            traffic(harness, seed)
        assert harness.engine.counters.steps > steps
        settle(harness, publisher, index)


def test_nobody_subscribed_and_nothing_is_kept_beyond_the_history(tiny: LoadedModel) -> None:
    with publishing(tiny, kept=8) as (harness, publisher):
        traffic(harness, 1)
        hub = publisher._hub
        assert hub.next_sequence > 8
        assert len(hub._ring) == 8


@pytest.mark.parametrize("delimiter", [(), (b"",)])
def test_replay_answers_both_kinds_of_request_sockets(tiny: LoadedModel, delimiter: tuple[bytes, ...]) -> None:
    with publishing(tiny) as (harness, publisher), zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        harness.run(range(20), max_tokens=1)
        assert publisher.replay_endpoint is not None
        dealer.connect(publisher.replay_endpoint)
        dealer.send_multipart((*delimiter, b"not eight bytes"))
        dealer.send_multipart((*delimiter, (0).to_bytes(8, "big")))
        answers = []
        while not answers or answers[-1][-1]:
            assert dealer.poll(WAIT_S * 1000)
            answers.append(dealer.recv_multipart())
        assert all(tuple(answer[:-2]) == delimiter for answer in answers)
        assert answers[-1][-2] == b"\xff" * 8
        numbers = [int.from_bytes(answer[-2], "big") for answer in answers[:-1]]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        first = msgspec.msgpack.decode(answers[0][-1], type=KVEventBatch)
        assert isinstance(first.events[0], event_consumers.AllBlocksCleared)


def test_an_address_in_use_is_refused_by_name(tiny: LoadedModel) -> None:
    with publishing(tiny) as (_, publisher):
        for endpoint, replay, field in (
            (publisher.endpoint, None, "kv_events_endpoint"),
            (ANY_PORT, publisher.replay_endpoint, "kv_events_replay"),
        ):
            with pytest.raises(BadConfig, match="in use") as refused:
                ZmqPublisher(
                    publisher._hub, publisher._take_snapshot, endpoint=endpoint, replay=replay, topic="", medium="CPU"
                )
            assert refused.value.field == field


def stored(namespace: Namespace, parent: int | None) -> BlockStored:
    return BlockStored(namespace, (2**64 - 1, 7), parent, np.arange(8, dtype=np.int32), 4)


def test_fields_as_vllm_fills_them() -> None:
    salted = Namespace("f", salt="tenant")
    adapted = Namespace("f", salt="tenant", adapter="lora")
    events = (stored(Namespace("f"), None), stored(salted, None), stored(salted, 5), stored(adapted, None))
    batch = msgspec.msgpack.decode(encode_batch(12.5, events, "GPU", "map"), type=KVEventBatch)
    assert (batch.ts, batch.data_parallel_rank) == (12.5, 0)
    plain, first, later, adapter = batch.events
    assert isinstance(plain, event_consumers.BlockStored)
    assert plain.block_hashes == [2**64 - 1, 7]
    assert plain.parent_block_hash is None
    assert plain.token_ids == list(range(8))
    assert (plain.block_size, plain.medium, plain.lora_id, plain.lora_name) == (4, "GPU", None, None)
    assert plain.extra_keys is None
    assert first.extra_keys == [("tenant",), None]
    assert later.extra_keys is None
    assert adapter.extra_keys == [("lora", "tenant"), ("lora",)]
    assert adapter.lora_name == "lora"


class OldEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class OldStored(OldEvent, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None


class OldRemoved(OldEvent, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None


class OldCleared(OldEvent, tag="AllBlocksCleared"):
    pass


class OldBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[OldStored | OldRemoved | OldCleared]


def test_readers_of_the_older_arrays_are_served_on_request() -> None:
    space = Namespace("f", salt="tenant")
    events = (AllBlocksCleared(), stored(space, None), BlockRemoved(space, (7, 2**64 - 1)))
    batch = msgspec.msgpack.decode(encode_batch(1.0, events, "CPU", "array"), type=OldBatch)
    cleared, kept, gone = batch.events
    assert isinstance(cleared, OldCleared)
    assert isinstance(kept, OldStored)
    assert (kept.token_ids, kept.medium) == (list(range(8)), "CPU")
    assert isinstance(gone, OldRemoved)
    assert (gone.block_hashes, gone.medium) == ([7, 2**64 - 1], "CPU")
