"""What the Redis publisher writes to a real Valkey: tree, events, leases."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import redis

from radix import Namespace, PrefixStore
from radix.metadata_client import BadRedisUrl, without_password
from radix.metadata_schema import RUNTIMES_KEY, BadRuntimeId, RuntimeKeys
from runtime.errors import InvalidRequest
from runtime.publishing import tree_mirror
from runtime.publishing.embedded_redis import EmbeddedRedis
from runtime.publishing.publisher import RedisPublisher
from tests.runtime.publisher_harness import (
    INTERVAL_S,
    LEASE_S,
    LockedStore,
    assert_gapless,
    decode_ids,
    describe_tiny,
    grow,
    keys_of,
    make_publisher,
    published,
)
from tests.timing import eventually


def test_redis_holds_the_stores_tree_through_growth_splits_and_eviction(
    valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore
) -> None:
    rng = np.random.default_rng(0)
    store.put(list(range(20)), Namespace(salt="tenant"))
    store.put(list(range(20)), Namespace(adapter="tenant"))
    publisher = make_publisher(valkey.url, store)
    publisher.start()
    try:
        assert eventually(lambda: published(client) == store.truth() != {})
        for _ in range(5):
            grow(store, rng)
            assert eventually(lambda: published(client) == store.truth())
        store.call(lambda s: s.evict(100))
        assert eventually(lambda: published(client) == store.truth())
        store.call(lambda s: s.flush())
        assert eventually(lambda: published(client) == {})
        assert publisher.status().rewrites == 1, "all of it came as increments"
    finally:
        publisher.stop()


def test_every_key_is_plain_legible_and_has_a_lease(
    valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore
) -> None:
    store.put([5, 6, 7, 8, 9])
    publisher = make_publisher(valkey.url, store)
    publisher.start()
    try:
        keys = RuntimeKeys.of("rt-1")
        assert eventually(lambda: client.hlen(keys.nodes) == 1 and client.hget(keys.stats, "nodes") == "1")

        types = {key: client.type(key) for key in keys_of(client)}
        assert types == {
            RUNTIMES_KEY: "set",
            keys.registration: "hash",
            keys.stats: "hash",
            keys.nodes: "hash",
            keys.sessions: "hash",
            keys.events: "stream",
        }
        for key in types:
            ttl: Any = client.pttl(key)
            assert 0 < ttl <= LEASE_S * 1000, key
        registration: Any = client.hgetall(keys.registration)
        assert registration["model"] == "tiny"
        assert registration["eos_token_ids"] == "1 2"
        assert registration["has_chat_template"] == "yes"
        assert registration["incarnation"] == publisher.incarnation
        assert abs(float(registration["published_at"]) - time.time()) < 60
        node = json.loads(str(client.hget(keys.nodes, "1")))
        assert node["head"] == "5 6 7 8 9"
        assert abs(node["last_used"] - time.time()) < 60, "Unix time, not the store's clock"
        assert json.loads(str(client.hget(keys.sessions, "s1"))) == {"tokens": 10}
        stats: Any = client.hgetall(keys.stats)
        assert (stats["cached_tokens"], stats["requests"], stats["sessions"]) == ("5", "3", "1")
    finally:
        publisher.stop()
    assert keys_of(client) == [], "a clean stop leaves nothing"


@pytest.mark.slow
def test_the_lease_is_renewed_without_changes_and_while_the_engine_is_busy(
    valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore
) -> None:
    store.put([1, 2, 3])
    gate = threading.Event()
    gate.set()

    def call(fn: Callable[[PrefixStore], Any]) -> Future[Any]:
        return store.call(fn) if gate.is_set() else Future()

    publisher = RedisPublisher(
        valkey.url, "rt-1", call, describe_tiny, decode_ids, lease_s=LEASE_S, interval_s=INTERVAL_S, timeout_s=0.5
    )
    publisher.start()
    try:
        keys = RuntimeKeys.of("rt-1")
        assert eventually(lambda: client.hlen(keys.nodes) == 1)
        gate.clear()
        before = float(str(client.hget(keys.registration, "published_at")))
        for _ in range(40):
            time.sleep(LEASE_S / 30)
            assert client.exists(keys.registration, keys.nodes, keys.events) == 3
        assert float(str(client.hget(keys.registration, "published_at"))) > before
        assert publisher.status().lag_s > LEASE_S, "what Redis holds grows old, and the status says so"
    finally:
        publisher.stop()


def test_events_are_numbered_without_gaps_and_tell_the_tree(
    valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore
) -> None:
    publisher = make_publisher(valkey.url, store)
    publisher.start()
    try:
        rng = np.random.default_rng(2)
        for _ in range(5):
            grow(store, rng, 20)
            store.call(lambda s: s.evict(10))
            time.sleep(INTERVAL_S)
        assert eventually(lambda: published(client) == store.truth())
        entries: Any = client.xrange(RuntimeKeys.of("rt-1").events)
        assert [entry["event"] for _, entry in entries[:2]] == ["registered", "snapshot"]
        assert int(entries[0][1]["seq"]) == 1
        assert_gapless(entries)
        assert client.hget(RuntimeKeys.of("rt-1").registration, "seq") == entries[-1][1]["seq"]

        followed: dict[str, tuple[str, str, str]] = {}
        for _, entry in entries:
            if entry["event"] in ("stored", "changed"):
                assert (entry["event"] == "stored") == (entry["node"] not in followed)
                followed[entry["node"]] = (entry["parent"], entry["start"], entry["tokens"])
            elif entry["event"] == "removed":
                del followed[entry["node"]]
        truth = {node_id: tuple(str(value) for value in facts[:3]) for node_id, facts in store.truth().items()}
        assert followed == truth
    finally:
        publisher.stop()


def test_a_flood_of_events_becomes_one_snapshot_event(
    valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_mirror, "MAX_PENDING_EVENTS", 10)
    publisher = make_publisher(valkey.url, store)
    publisher.start()
    try:
        assert eventually(lambda: publisher.status().up)
        before: Any = client.xlen(RuntimeKeys.of("rt-1").events)

        def flood(s: PrefixStore) -> None:
            for number in range(50):
                seq = s.open([number, 1, 2])
                s.reserve(seq, 3)
                s.commit(seq, [number, 1, 2])
                s.close(seq)

        store.call(flood)
        assert eventually(lambda: len(published(client)) == 50)
        entries: Any = client.xrange(RuntimeKeys.of("rt-1").events)
        assert [entry["event"] for _, entry in entries[before:]] == ["snapshot"]
        assert publisher.status().dropped_events == 50
    finally:
        publisher.stop()


def test_an_undecodable_head_shows_token_ids(valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore) -> None:
    def decode(ids: Any) -> str:
        raise ValueError("no such token")

    store.put([41, 42])
    publisher = RedisPublisher(valkey.url, "rt-1", store.call, describe_tiny, decode, lease_s=1, interval_s=INTERVAL_S)
    publisher.start()
    try:
        assert eventually(lambda: [facts[-1] for facts in published(client).values()] == ["<41> <42>"])
    finally:
        publisher.stop()


def test_no_prompt_text_leaves_when_heads_are_off(
    valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore
) -> None:
    store.put([41, 42])
    publisher = make_publisher(valkey.url, store, head_tokens=0)
    publisher.start()
    try:
        assert eventually(lambda: [facts[-1] for facts in published(client).values()] == [""])
    finally:
        publisher.stop()


def test_settings_are_checked(store: LockedStore) -> None:
    with pytest.raises(InvalidRequest, match="interval_s is 0"):
        make_publisher("redis://h", store, interval_s=0)
    with pytest.raises(InvalidRequest, match=r"lease_s is 0.1.*twice interval_s"):
        make_publisher("redis://h", store, lease_s=0.1, interval_s=0.2)
    with pytest.raises(BadRuntimeId, match="rt 1"):
        make_publisher("redis://h", store, "rt 1")
    with pytest.raises(BadRedisUrl, match=r"\*\*\*@h"):
        make_publisher("http://me:secret@h", store)
    assert without_password("redis://me:secret@h:1/0") == "redis://***@h:1/0"
    assert without_password("redis://h:1/0") == "redis://h:1/0"
