"""What a real runtime tells the outside: Redis through outages and deaths, `radix inspect`, Prometheus."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from agent_client import RadixClient
from radix.inspect import read_runtimes
from radix.metadata_client import connect
from runtime.publishing.embedded_redis import EmbeddedRedis
from tests.ports import free_port
from tests.timing import eventually

pytestmark = pytest.mark.e2e

WORKERS = 3


def prompt(seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    trunk = np.random.default_rng(0).integers(6, 262, 60)[: int(rng.integers(1, 60))]
    return [*trunk.tolist(), *rng.integers(6, 262, 20).tolist()]


@contextmanager
def load(target: str) -> Iterator[list[BaseException]]:
    """Requests from several threads until the block ends; what failed is in the list."""
    failed: list[BaseException] = []
    done = threading.Event()

    def work(number: int) -> None:
        with RadixClient(target) as client:
            seed = number * 100_000
            while not done.is_set():
                seed += 1
                try:
                    client.generate(prompt(seed), max_tokens=4, ignore_eos=True)
                except Exception as error:
                    failed.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    try:
        yield failed
    finally:
        done.set()
        for worker in workers:
            worker.join()


def tree_of(target: str) -> dict[int, tuple[Any, ...]]:
    with RadixClient(target) as client:
        nodes = list(client.nodes(head_tokens=16))
    return {n.id: (n.parent_id, n.start, n.tokens, n.blocks, n.hits, n.holders, n.children, n.head) for n in nodes}


def published(client: redis.Redis) -> dict[int, tuple[Any, ...]]:
    try:
        views = read_runtimes(client)
    except redis.RedisError:
        return {}
    return {
        n.id: (n.parent, n.start, n.tokens, n.blocks, n.hits, n.holders, n.children, n.head)
        for view in views
        for n in view.nodes
    }


def scrape(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def test_redis_killed_and_restarted_under_load(start_server: Callable[..., Any]) -> None:
    port = free_port()
    first, second = EmbeddedRedis(port), EmbeddedRedis(port)
    first.start()
    server = start_server("--redis", first.url)
    client = connect(first.url, 5.0)
    try:
        with load(server.target) as failed:
            assert eventually(lambda: len(published(client)) > 3)
            os.kill(first.pid, signal.SIGKILL)
            assert eventually(lambda: scrape(server.metrics_url)["radixloop_redis_up"] == 0)
            finished = scrape(server.metrics_url)["radixloop_request_seconds_count"]
            assert eventually(lambda: scrape(server.metrics_url)["radixloop_request_seconds_count"] > finished + 10)
            second.start()
            assert eventually(lambda: scrape(server.metrics_url)["radixloop_redis_up"] == 1)
            nodes = published(client)
            assert len(nodes) > 3
            assert all(parent == 0 or parent in nodes for parent, *_ in nodes.values()), "never half a tree"
        assert failed == []
        assert eventually(lambda: published(client) == tree_of(server.target))
        assert server.log().count("cannot publish") == 1
        assert scrape(server.metrics_url)["radixloop_redis_outages_total"] == 1
    finally:
        first.stop()
        second.stop()


def test_a_killed_runtimes_keys_are_gone_within_its_lease(start_server: Callable[..., Any]) -> None:
    with EmbeddedRedis() as valkey:
        server = start_server("--redis", valkey.url)
        client = connect(valkey.url, 5.0)
        with RadixClient(server.target) as generator:
            generator.generate(prompt(1), max_tokens=4, ignore_eos=True)
        assert eventually(lambda: published(client) == tree_of(server.target) != {})
        lease_s = float(read_runtimes(client)[0].registration["lease_s"])
        server.stop(signal.SIGKILL)
        keys: Any = client.keys("*")
        left: Any = [client.pttl(key) for key in keys]
        assert left
        assert all(0 < ms <= 1000 * lease_s for ms in left)
        assert eventually(lambda: client.dbsize() == 0)


def test_a_stopped_runtime_leaves_nothing(start_server: Callable[..., Any]) -> None:
    with EmbeddedRedis() as valkey:
        server = start_server("--redis", valkey.url)
        client = connect(valkey.url, 5.0)
        assert eventually(lambda: len(read_runtimes(client)) == 1)
        assert server.stop() == 0
        assert client.dbsize() == 0


def test_inspect_draws_what_the_runtime_holds(server: Any) -> None:
    with RadixClient(server.target) as client:
        for seed in range(5):
            client.generate(prompt(seed), max_tokens=4, ignore_eos=True)
    reader = connect(server.redis_url, 5.0)
    assert eventually(lambda: published(reader) == tree_of(server.target) != {})

    command = [sys.executable, "-m", "radix", "inspect", "--redis", server.redis_url]
    drawn = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "COLUMNS": "120"}
    )
    assert drawn.returncode == 0, drawn.stderr
    assert server.runtime_id in drawn.stdout
    assert server.target in drawn.stdout
    printed = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, check=True)
    (runtime,) = json.loads(printed.stdout)["runtimes"]
    assert {node["id"]: node["tokens"] for node in runtime["nodes"]} == {
        node_id: facts[2] for node_id, facts in tree_of(server.target).items()
    }
    assert runtime["registration"]["grpc"] == server.target


def test_scrape_and_stats_agree(server: Any) -> None:
    with RadixClient(server.target) as client:
        client.generate(prompt(77), max_tokens=4, ignore_eos=True)
        stats = client.stats()
    found = scrape(server.metrics_url)
    assert found["radixloop_prompt_tokens_total"] == stats.prompt_tokens_total > 0
    assert found["radixloop_prefix_cache_hits_tokens_total"] == stats.hit_tokens_total
    assert found["radixloop_computed_prompt_tokens_total"] == stats.computed_tokens_total
    assert found["radixloop_generation_tokens_total"] == stats.output_tokens_total
    assert found["radixloop_cached_tokens"] == stats.cached_tokens
    assert found["radixloop_pool_unused_slots"] == stats.unused_slots
