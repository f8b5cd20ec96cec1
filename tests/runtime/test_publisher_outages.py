"""The Redis publisher when something dies: Redis, the runtime, a predecessor of the same name."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import redis

from radix.metadata_client import connect, living_runtimes
from radix.metadata_schema import RUNTIMES_KEY, RuntimeKeys
from runtime.publishing.embedded_redis import EmbeddedRedis
from runtime.publishing.publisher import Description
from tests.ports import free_port
from tests.runtime.publisher_harness import (
    INTERVAL_S,
    LEASE_S,
    LockedStore,
    assert_gapless,
    describe_tiny,
    grow,
    keys_of,
    make_publisher,
    published,
    signal_server,
)
from tests.timing import eventually


def test_a_killed_redis_is_filled_again_under_updates(valkey: EmbeddedRedis, store: LockedStore) -> None:
    rng = np.random.default_rng(1)
    port = int(valkey.url.rsplit(":", 1)[1])
    publisher = make_publisher(valkey.url, store)
    publisher.start()
    try:
        grow(store, rng)
        assert eventually(lambda: publisher.status().up)
        signal_server(valkey, signal.SIGKILL)
        for _ in range(10):
            grow(store, rng, 10)
            store.call(lambda s: s.evict(5))
            time.sleep(INTERVAL_S)
        assert eventually(lambda: not publisher.status().up)
        assert publisher.status().error

        with EmbeddedRedis(port) as second:
            again = connect(second.url, 5.0)
            grow(store, rng, 10)
            assert eventually(lambda: published(again) == store.truth() != {} and publisher.status().up)
            status = publisher.status()
            assert (status.up, status.outages, status.rewrites) == (True, 1, 2)
            entries: Any = again.xrange(RuntimeKeys.of("rt-1").events)
            assert entries[0][1]["event"] == "snapshot", "a reader is told to read the tree again"
            assert int(entries[0][1]["seq"]) > 1, "and the numbers do not begin anew"
            assert_gapless(entries)
            publisher.stop()
            assert keys_of(again) == []
    finally:
        publisher.stop()


def test_a_hanging_redis_costs_only_the_publisher(
    valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="runtime.publishing.publisher")
    publisher = make_publisher(valkey.url, store, timeout_s=0.1)
    publisher.start()
    try:
        assert eventually(lambda: publisher.status().up)
        seq_before = int(str(client.hget(RuntimeKeys.of("rt-1").registration, "seq")))
        signal_server(valkey, signal.SIGSTOP)
        assert eventually(lambda: not publisher.status().up)
        for number in range(5):
            store.put([number] * 8)
            time.sleep(0.1)
        signal_server(valkey, signal.SIGCONT)
        assert eventually(lambda: publisher.status().up and published(client) == store.truth())
        entries: Any = client.xrange(RuntimeKeys.of("rt-1").events)
        assert int(entries[-1][1]["seq"]) > seq_before
        assert_gapless(entries)
    finally:
        signal_server(valkey, signal.SIGCONT)
        publisher.stop()
    lines = [record.message for record in caplog.records]
    assert sum("cannot publish" in line for line in lines) == 1, lines
    assert sum("publishing to" in line for line in lines) == 2, lines


def test_keys_deleted_by_hand_come_back(valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore) -> None:
    store.put([1, 2, 3, 4, 5])
    publisher = make_publisher(valkey.url, store)
    publisher.start()
    keys = RuntimeKeys.of("rt-1")
    try:
        assert eventually(lambda: published(client) == store.truth() != {})
        for lost in (keys.nodes, keys.registration, keys.sessions, RUNTIMES_KEY):
            client.delete(lost)
            assert eventually(lambda lost=lost: bool(client.exists(lost))), lost
            assert eventually(lambda: published(client) == store.truth())
        client.flushall()
        assert eventually(lambda: published(client) == store.truth() != {} and living_runtimes(client) == ["rt-1"])
        assert publisher.status().outages == 0
    finally:
        publisher.stop()


def test_two_runtimes_share_a_redis(valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore) -> None:
    other = LockedStore()
    store.put([1, 2, 3])
    other.put([7, 8, 9, 10])
    first = make_publisher(valkey.url, store, "rt-1")
    second = make_publisher(valkey.url, other, "rt-2", lease_s=0.5)
    first.start()
    second.start()
    try:
        assert eventually(lambda: living_runtimes(client) == ["rt-1", "rt-2"])
        assert eventually(lambda: published(client, "rt-1") == store.truth())
        assert eventually(lambda: published(client, "rt-2") == other.truth())
        second.stop()
        assert living_runtimes(client) == ["rt-1"]
        assert published(client, "rt-1") == store.truth()
        assert not [key for key in keys_of(client) if "rt-2" in key]
    finally:
        first.stop()
        second.stop()


@pytest.mark.slow
def test_a_killed_runtimes_keys_are_gone_within_its_lease(valkey: EmbeddedRedis, client: redis.Redis) -> None:
    script = f"""
import time
from concurrent.futures import Future
from radix import PrefixStore
from runtime.publishing.publisher import RedisPublisher

store = PrefixStore(64, 4, track_changes=True)
seq = store.open([1, 2, 3]); store.reserve(seq, 3); store.commit(seq, [1, 2, 3]); store.close(seq)

def call(fn):
    future = Future()
    future.set_result(fn(store))
    return future

describe = lambda: {{"runtime": {{}}, "counters": {{}}, "sessions": {{"s": {{}}}}}}
RedisPublisher({valkey.url!r}, "victim", call, describe, str, lease_s={LEASE_S}, interval_s={INTERVAL_S}).start()
time.sleep(60)
"""
    victim = subprocess.Popen([sys.executable, "-c", script])
    try:
        keys = RuntimeKeys.of("victim")
        assert eventually(lambda: client.exists(keys.registration, keys.nodes, keys.sessions, keys.events) == 4)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        remaining = [client.pttl(key) for key in keys_of(client)]
        assert remaining
        assert all(isinstance(ttl, int) and ttl != -1 and ttl <= LEASE_S * 1000 for ttl in remaining), "-1 is no lease"
        assert eventually(lambda: keys_of(client) == [])
    finally:
        victim.kill()
        victim.wait()


def test_a_dead_runtime_is_taken_off_the_list_by_the_living(
    valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore
) -> None:
    client.sadd(RUNTIMES_KEY, "long-gone")
    publisher = make_publisher(valkey.url, store)
    publisher.start()
    try:
        assert eventually(lambda: client.smembers(RUNTIMES_KEY) == {"rt-1"})
    finally:
        publisher.stop()


def test_a_restart_under_the_same_id_takes_over_and_the_old_process_gives_way(
    valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore
) -> None:
    keys = RuntimeKeys.of("rt-1")
    newer_store = LockedStore()
    store.put([1, 2, 3])
    newer_store.put([4, 5])
    older = make_publisher(valkey.url, store)
    older.start()
    assert eventually(lambda: published(client) == store.truth())
    newer = make_publisher(valkey.url, newer_store)
    newer.start()
    try:
        assert eventually(lambda: not older.status().up and "another process" in older.status().error)
        assert eventually(lambda: published(client) == newer_store.truth())
        assert client.hget(keys.registration, "incarnation") == newer.incarnation
        entries: Any = client.xrange(keys.events)
        assert entries[0][1]["event"] == "registered", "the predecessor's events are gone with it"
        assert_gapless(entries)
        older.stop()
        assert client.hget(keys.registration, "incarnation") == newer.incarnation, (
            "it leaves its successor's keys alone"
        )
    finally:
        older.stop()
        newer.stop()


def test_starts_without_redis_and_waits_for_it(store: LockedStore, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    store.put([1, 2, 3])
    publisher = make_publisher(f"redis://127.0.0.1:{port}", store)
    publisher.start()
    try:
        assert eventually(lambda: publisher.status().outages == 1)
        with EmbeddedRedis(port) as server:
            assert eventually(lambda: published(connect(server.url, 5.0)) == store.truth() != {})
    finally:
        publisher.stop()
    assert sum("cannot publish" in record.message for record in caplog.records) <= 2


def test_a_failing_description_does_not_end_the_thread(
    valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore
) -> None:
    broken = threading.Event()
    broken.set()

    def describe() -> Description:
        if broken.is_set():
            raise RuntimeError("no idea")
        return describe_tiny()

    publisher = make_publisher(valkey.url, store, describe=describe)
    publisher.start()
    try:
        assert eventually(lambda: "no idea" in publisher.status().error)
        broken.clear()
        assert eventually(lambda: publisher.status().up)
    finally:
        publisher.stop()
