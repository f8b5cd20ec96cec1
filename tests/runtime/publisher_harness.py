"""A publisher on a store without an engine, and what it wrote read back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import redis

from radix import Namespace, NodeInfo, PrefixStore
from radix.metadata_schema import NodeRecord, RuntimeKeys
from runtime.publishing.embedded_redis import EmbeddedRedis
from runtime.publishing.publisher import Description, RedisPublisher

LEASE_S = 1.5
INTERVAL_S = 0.05

Rng = np.random.Generator


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
    return (*place, node.hits, node.holders, node.namespace.salt, node.namespace.adapter, decode_ids(node.head))


def decode_ids(ids: Any) -> str:
    return " ".join(str(token) for token in ids)


def describe_tiny() -> Description:
    return {
        "runtime": {"model": "tiny", "address": "127.0.0.1:1", "eos_token_ids": (1, 2), "has_chat_template": True},
        "counters": {"requests": 3},
        "sessions": {"s1": {"tokens": 10}},
    }


def make_publisher(url: str, store: LockedStore, runtime_id: str = "rt-1", **more: Any) -> RedisPublisher:
    settings: dict[str, Any] = {"lease_s": LEASE_S, "interval_s": INTERVAL_S, "timeout_s": 0.5, **more}
    describe = settings.pop("describe", describe_tiny)
    return RedisPublisher(url, runtime_id, store.call, describe, decode_ids, **settings)


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


def signal_server(server: EmbeddedRedis, number: int) -> None:
    os.kill(server.pid, number)


def assert_gapless(entries: list[Any]) -> None:
    numbers = [int(entry["seq"]) for _, entry in entries]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len({entry["incarnation"] for _, entry in entries}) == 1
