"""Events over ZeroMQ from real processes: a consumer across a kill and a restart, and a viewer that others wrote."""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_client import BlocksStored, RadixClient
from tests.ports import free_port
from tests.runtime.event_consumers import ZmqIndex

from .conftest import RunningServer, ids, running_server

pytestmark = pytest.mark.e2e

WAIT_S = 60.0


def free_address() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


def traffic(server: RunningServer, seed: int, calls: int = 6) -> None:
    trunk = ids(90, 0)
    with RadixClient(server.target) as client:
        client.wait_ready(WAIT_S)
        for i in range(calls):
            rng = random.Random(seed * 100 + i)
            client.generate(trunk[: rng.randrange(1, 90)] + ids(20, seed * 100 + i), max_tokens=4, ignore_eos=True)


def cached(server: RunningServer) -> set[int]:
    """Every block that the runtime has cached, by its own word."""
    blocks: set[int] = set()
    with RadixClient(server.target) as client:
        watched = client.watch_events()
        for batch in watched:
            for event in batch.events:
                assert isinstance(event, BlocksStored)
                blocks.update(event.block_hashes)
            if batch.position is not None:
                return blocks
    raise AssertionError("the snapshot did not end")


def until(condition: Callable[[], bool], cause: Callable[[], object]) -> None:
    """Wait; cause events meanwhile, since nobody tells when a subscription holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to this"
        cause()


@contextmanager
def publishing(folder: Path, model: Path, endpoint: str, replay: str) -> Iterator[RunningServer]:
    events = ("--kv-events", "zmq", "--kv-events-endpoint", endpoint, "--kv-events-replay", replay)
    with running_server(folder, model, *events, "--kv-events-topic", "kv@test") as server:
        yield server


def test_a_consumer_is_right_again_after_a_kill_and_a_restart(tmp_path: Path, tiny_model: Path) -> None:
    addresses = free_address(), free_address()
    index = ZmqIndex(*addresses)

    def follow(server: RunningServer, seeds: Iterator[int]) -> None:
        def holds_it() -> bool:
            while index.read(0.2):
                pass
            return bool(index.blocks) and set(index.blocks) == cached(server)

        until(holds_it, lambda: traffic(server, next(seeds), calls=1))

    with closing(index):
        with publishing(tmp_path / "first", tiny_model, *addresses) as first:
            traffic(first, 1)
            follow(first, itertools.count(10))
            assert first.stop(signal.SIGKILL) == -signal.SIGKILL
        old = set(index.blocks)
        with publishing(tmp_path / "second", tiny_model, *addresses) as second:
            traffic(second, 2, calls=12)
            follow(second, itertools.count(1000))
        assert old - set(index.blocks), "what the dead runtime had is still there"


def test_radixview_draws_what_is_cached(tmp_path: Path, tiny_model: Path) -> None:
    pytest.importorskip("radixview")
    from radixview.discover import load_publishers
    from radixview.subscribe import listen
    from radixview.text import Detokenizer
    from radixview.tree import CacheTree

    with publishing(tmp_path, tiny_model, free_address(), free_address()) as server:
        assert server.metrics_url is not None
        url = server.metrics_url.removesuffix("/metrics")
        tree, stop = CacheTree(), threading.Event()
        arguments: tuple[Any, ...] = (load_publishers(url), stop, Detokenizer(url), tree)
        viewer = threading.Thread(target=listen, args=arguments, daemon=True)
        viewer.start()

        def drawn() -> set[int]:
            return {int(block["hash"]) for node in tree.view().nodes for block in tree.blocks_of(node["id"])}

        seeds = itertools.count()
        until(lambda: bool(drawn()), lambda: traffic(server, next(seeds), calls=1))
        # It uses no replay: what came before its subscription held must go, for the rest to be all there is.
        with RadixClient(server.target) as client:
            client.flush(all_namespaces=True)
        traffic(server, 500)
        until(lambda: drawn() == cached(server), lambda: time.sleep(0.1))
        assert tree.view().stats["missing"] == 0
        texts = {block["text"] for node in tree.view().nodes for block in tree.blocks_of(node["id"])}
        assert all(texts)
        assert server.stop() == 0
        until(lambda: not drawn(), lambda: time.sleep(0.1))
        stop.set()
        viewer.join(WAIT_S)
        assert not viewer.is_alive()
