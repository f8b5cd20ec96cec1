"""The hub: numbers without gaps, a bounded history, and an engine that tells it everything."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from radix import BlockStored, Namespace, PrefixStore
from runtime.models.loaded_model import LoadedModel
from runtime.publishing.kv_events import AllBlocksCleared, HistoryGone, KvEventHub
from tests.runtime.engine_harness import WAIT_S, Harness, running
from tests.runtime.event_consumers import Index, cached_blocks


def watched(harness: Harness, **kwargs: int) -> KvEventHub:
    hub = KvEventHub("run-1", **kwargs)
    harness.engine.after_step.append(hub.collect)
    return hub


def replayed(hub: KvEventHub) -> Index:
    """What a consumer knows that applied every batch."""
    known: Index = {}
    for batch in hub.batches(0, 10**6):
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                known.clear()
            elif isinstance(event, BlockStored):
                parent = event.parent_hash
                for h in event.block_hashes:
                    known[h], parent = parent, h
            else:
                for h in event.block_hashes:
                    del known[h]
    return known


def stored(store: PrefixStore, tokens: list[int]) -> None:
    seq = store.open(tokens)
    store.reserve(seq, len(tokens) - seq.length)
    store.commit(seq, tokens[seq.length :])
    store.close(seq)


def test_numbers_have_no_gap_and_the_first_batch_clears() -> None:
    store = PrefixStore(64, 4, record_events=True)
    hub = KvEventHub("run-1")
    for i in range(5):
        stored(store, [i] * 9)
        hub.collect(store)
        hub.collect(store)
    batches = hub.batches(0, 100)
    assert [batch.sequence for batch in batches] == list(range(6))
    assert batches[0].events == (AllBlocksCleared(),)
    assert hub.next_sequence == 6


def test_only_the_last_batches_are_kept() -> None:
    store = PrefixStore(64, 4, record_events=True)
    hub = KvEventHub("run-1", kept=3)
    for i in range(5):
        stored(store, [i] * 5)
        hub.collect(store)
    assert [batch.sequence for batch in hub.batches(3, 100)] == [3, 4, 5]
    assert [batch.sequence for batch in hub.batches(3, 2)] == [3, 4]
    assert hub.batches(6, 100) == ()
    with pytest.raises(HistoryGone, match="batch 2 is gone: 3 is the oldest"):
        hub.batches(2, 100)


def test_a_snapshot_is_as_of_its_number() -> None:
    store = PrefixStore(64, 4, record_events=True)
    hub = KvEventHub("run-1")
    stored(store, list(range(9)))
    snapshot = hub.snapshot(store)
    assert snapshot.sequence == hub.next_sequence - 1 == 1
    assert {h for event in snapshot.events for h in event.block_hashes} == set(cached_blocks(store))


def test_a_transport_that_fails_to_wake_stops_nobody() -> None:
    store = PrefixStore(64, 4, record_events=True)
    hub = KvEventHub("run-1")
    woken: list[int] = []

    def broken() -> None:
        raise RuntimeError("broken")

    def works() -> None:
        woken.append(hub.next_sequence)

    hub.subscribe(broken)
    hub.subscribe(works)
    stored(store, [1] * 5)
    hub.collect(store)
    assert woken == [2]
    hub.unsubscribe(works)
    stored(store, [2] * 5)
    hub.collect(store)
    assert woken == [2]


def test_the_end_clears_once() -> None:
    hub = KvEventHub("run-1")
    hub.close()
    hub.close()
    assert [batch.events for batch in hub.batches(0, 10)] == [(AllBlocksCleared(),), (AllBlocksCleared(),)]
    assert hub.closed


def test_random_traffic_flushes_and_evictions_rebuild_the_tree(tiny: LoadedModel) -> None:
    rng = np.random.default_rng(11)
    with running(tiny, num_blocks=48, block_size=4, record_events=True, max_batch_tokens=32) as harness:
        hub = watched(harness)
        prompts = [rng.integers(0, 40, size=60).tolist() for _ in range(3)]
        salts = [Namespace(tiny.info.fingerprint, salt) for salt in (None, "a", "b")]
        for turn in range(30):
            base = prompts[int(rng.integers(len(prompts)))]
            cut = int(rng.integers(1, 50))
            tokens = base[:cut] + rng.integers(0, 40, size=int(rng.integers(1, 12))).tolist()
            replies = [
                harness.submit(tokens, namespace=salts[int(rng.integers(3))], max_tokens=int(rng.integers(1, 9)))
                for _ in range(int(rng.integers(1, 3)))
            ]
            for reply in replies:
                if rng.random() < 0.2:
                    assert reply.handle is not None
                    reply.handle.cancel()
                reply.wait()
            if turn % 7 == 3:
                harness.engine.call(lambda store: store.flush(salts[1])).result(WAIT_S)
            if turn % 11 == 5:
                harness.engine.call(lambda store: store.evict(5)).result(WAIT_S)
            if turn == 20:
                harness.flush()
            now, upto = harness.engine.call(lambda store: (cached_blocks(store), hub.snapshot(store).sequence)).result(
                WAIT_S
            )
            assert upto == hub.next_sequence - 1
            assert replayed(hub) == now
        evicted = harness.check().evicted_blocks
    assert evicted > 0, "the pool was never too small"


def test_a_flush_of_an_idle_engine_is_told_at_once(tiny: LoadedModel) -> None:
    with running(tiny, record_events=True) as harness:
        hub = watched(harness)
        harness.run(range(40), max_tokens=1)
        told = threading.Event()
        hub.subscribe(told.set)
        before = hub.next_sequence
        assert harness.engine.counters.running == 0
        harness.flush()
        assert told.wait(WAIT_S)
        assert hub.next_sequence == before + 1
        assert replayed(hub) == {}


def test_a_hook_that_fails_does_not_end_the_engine(tiny: LoadedModel) -> None:
    with running(tiny) as harness:

        def broken(value: object) -> None:
            raise RuntimeError("broken")

        for hooks in (harness.engine.after_step, harness.engine.on_step, harness.engine.on_finished):
            hooks.insert(0, broken)
        assert len(harness.run(range(20), max_tokens=3).tokens) == 3
        assert len(harness.run(range(30), max_tokens=3).tokens) == 3
