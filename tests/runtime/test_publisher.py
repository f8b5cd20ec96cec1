"""The Redis publisher against a real Valkey: what it writes, what an outage does, what remains of a dead runtime."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import redis

from radix import Namespace, NodeInfo, PrefixStore
from radix.metadata_client import BadRedisUrl, connect, living_runtimes, without_password
from radix.metadata_schema import RUNTIMES_KEY, BadRuntimeId, NodeRecord, RuntimeKeys
from runtime import tree_mirror
from runtime.embedded_redis import EmbeddedRedis
from runtime.errors import InvalidRequest
from runtime.publisher import Description, RedisPublisher

LEASE_S = 1.5
INTERVAL_S = 0.05

Rng = np.random.Generator


def eventually(condition: Callable[[], bool], within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


class LockedStore:
    """A store behind a lock, in the place of the engine's thread."""

    def __init__(self, num_blocks: int = 4096, block_size: int = 4) -> None:
        self.store = PrefixStore(num_blocks, block_size, track_changes=True)
        self.lock = threading.Lock()

    def call(self, fn: Callable[[PrefixStore], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self.lock:
            future.set_result(fn(self.store))
        return future

    def put(self, tokens: Any, namespace: Namespace = Namespace()) -> None:  # noqa: B008
        with self.lock:
            seq = self.store.open(tokens, namespace)
            self.store.reserve(seq, len(tokens) - seq.length)
            self.store.commit(seq, tokens[seq.length :])
            self.store.close(seq)

    def truth(self) -> dict[str, tuple[Any, ...]]:
        with self.lock:
            return {str(node.id): _facts(node) for node in self.store.nodes()}


def _facts(node: NodeInfo) -> tuple[Any, ...]:
    place = (node.parent_id, node.start, node.tokens, node.blocks, node.children)
    return (*place, node.hits, node.holders, node.namespace.salt, node.namespace.adapter, _decode(node.head))


def _decode(ids: Any) -> str:
    return " ".join(str(token) for token in ids)


def _describe() -> Description:
    return {
        "runtime": {"model": "tiny", "address": "127.0.0.1:1", "eos_token_ids": (1, 2), "has_chat_template": True},
        "counters": {"requests": 3},
        "sessions": {"s1": {"tokens": 10}},
    }


def make_publisher(url: str, store: LockedStore, runtime_id: str = "rt-1", **more: Any) -> RedisPublisher:
    settings: dict[str, Any] = {"lease_s": LEASE_S, "interval_s": INTERVAL_S, "timeout_s": 0.5, **more}
    describe = settings.pop("describe", _describe)
    return RedisPublisher(url, runtime_id, store.call, describe, _decode, **settings)


def published(client: redis.Redis, runtime_id: str = "rt-1") -> dict[str, tuple[Any, ...]]:
    raw: Any = client.hgetall(RuntimeKeys.of(runtime_id).nodes)
    found = {}
    for node_id, text in raw.items():
        node = NodeRecord.from_json(node_id, text)
        place = (node.parent, node.start, node.tokens, node.blocks, node.children)
        found[node_id] = (*place, node.hits, node.holders, node.salt, node.adapter, node.head)
    return found


def keys_of(client: redis.Redis) -> list[str]:
    listed: Any = client.keys("radixloop:*")
    return sorted(listed)


def grow(store: LockedStore, rng: Rng, times: int = 40) -> None:
    trunk = list(range(100, 140))
    for _ in range(times):
        tail = rng.integers(0, 1000, int(rng.integers(1, 30))).tolist()
        store.put(trunk[: int(rng.integers(1, 40))] + tail)


@pytest.fixture
def valkey() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def client(valkey: EmbeddedRedis) -> redis.Redis:
    return connect(valkey.url, 5.0)


@pytest.fixture
def store() -> LockedStore:
    return LockedStore()


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


def test_the_lease_is_renewed_without_changes_and_while_the_engine_is_busy(
    valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore
) -> None:
    store.put([1, 2, 3])
    gate = threading.Event()
    gate.set()

    def call(fn: Callable[[PrefixStore], Any]) -> Future[Any]:
        return store.call(fn) if gate.is_set() else Future()

    publisher = RedisPublisher(
        valkey.url, "rt-1", call, _describe, _decode, lease_s=LEASE_S, interval_s=INTERVAL_S, timeout_s=0.5
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

        with RestartedValkey(port) as second:
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


class RestartedValkey(EmbeddedRedis):
    """An embedded server on a port that is given."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._wanted = port

    def start(self, timeout_s: float = 10.0) -> str:
        import runtime.embedded_redis as module

        real = module._free_port
        module._free_port = lambda: self._wanted
        try:
            return super().start(timeout_s)
        finally:
            module._free_port = real


def signal_server(server: EmbeddedRedis, number: int) -> None:
    os.kill(server.pid, number)


def assert_gapless(entries: list[Any]) -> None:
    numbers = [int(entry["seq"]) for _, entry in entries]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len({entry["incarnation"] for _, entry in entries}) == 1


def test_a_hanging_redis_costs_only_the_publisher(
    valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="runtime.publisher")
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


def test_a_killed_runtimes_keys_are_gone_within_its_lease(valkey: EmbeddedRedis, client: redis.Redis) -> None:
    script = f"""
import time
from concurrent.futures import Future
from radix import PrefixStore
from runtime.publisher import RedisPublisher

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
        assert all(isinstance(ttl, int) and 0 < ttl <= LEASE_S * 1000 for ttl in remaining)
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
        assert eventually(lambda: not older.status().up)
        assert "another process" in older.status().error
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    store.put([1, 2, 3])
    publisher = make_publisher(f"redis://127.0.0.1:{port}", store)
    publisher.start()
    try:
        assert eventually(lambda: publisher.status().outages == 1)
        with RestartedValkey(port) as server:
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
        return _describe()

    publisher = make_publisher(valkey.url, store, describe=describe)
    publisher.start()
    try:
        assert eventually(lambda: "no idea" in publisher.status().error)
        broken.clear()
        assert eventually(lambda: publisher.status().up)
    finally:
        publisher.stop()


def test_an_undecodable_head_shows_token_ids(valkey: EmbeddedRedis, client: redis.Redis, store: LockedStore) -> None:
    def decode(ids: Any) -> str:
        raise ValueError("no such token")

    store.put([41, 42])
    publisher = RedisPublisher(valkey.url, "rt-1", store.call, _describe, decode, lease_s=1, interval_s=INTERVAL_S)
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
