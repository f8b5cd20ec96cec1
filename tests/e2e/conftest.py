"""Starts the real server as a process. A start takes seconds: tests share one server a module."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_client import RadixClient

START_S = 120


@dataclass
class RunningServer:
    """A `radix-runtime serve` process that answers.

    Attributes:
        target: HOST:PORT of its gRPC services.
        metrics_url, redis_url: None where the server was started without.
    """

    target: str
    metrics_url: str | None
    redis_url: str | None
    runtime_id: str
    process: subprocess.Popen[bytes]
    log_file: Path

    def log(self) -> str:
        """Everything that the server wrote so far."""
        return self.log_file.read_text(errors="replace")

    def stop(self, how: int = signal.SIGTERM, timeout_s: float = 60) -> int:
        """Send a signal, wait for the process and return its exit status (negative: killed by that signal)."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(timeout_s)


@contextmanager
def running_server(folder: Path, model: str | Path, *flags: str) -> Iterator[RunningServer]:
    """A server on free ports; killed at the end if it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    ready_file, log_file = folder / "ready.json", folder / "server.log"
    ready_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "runtime", "serve", "--model", str(model), "--port", "0", "--metrics-port", "0"]
    command += ["--ready-file", str(ready_file), *flags]
    if "--num-blocks" not in flags:
        command += ["--kv-memory", "64MiB"]
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "COLUMNS": "200"})
    try:
        deadline = time.monotonic() + START_S
        while not ready_file.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server did not start:\n{log_file.read_text(errors='replace')}")
            time.sleep(0.05)
        ready = json.loads(ready_file.read_text())
        yield RunningServer(
            target=ready["target"],
            metrics_url=ready["metrics_url"],
            redis_url=ready["redis_url"],
            runtime_id=ready["runtime_id"],
            process=process,
            log_file=log_file,
        )
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def start_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers with further flags, `model=` for another model than the tiny one; all end with the module."""
    with ExitStack() as started:

        def start(*flags: str, model: str | Path = tiny_model) -> RunningServer:
            return started.enter_context(running_server(tmp_path_factory.mktemp("server"), model, *flags))

        yield start


@pytest.fixture(scope="module")
def server(start_server: Callable[..., RunningServer]) -> RunningServer:
    """A server with the tiny model, metrics and an embedded Valkey."""
    return start_server("--redis", "embedded")


@pytest.fixture
def salt() -> str:
    """A cache namespace for each test, so that tests do not warm each other."""
    return os.urandom(8).hex()


@pytest.fixture
def client(server: RunningServer, salt: str) -> Iterator[RadixClient]:
    """In the test's own namespace."""
    with RadixClient(server.target, salt=salt) as connected:
        connected.wait_ready(30)
        yield connected


def ids(count: int, seed: int = 0) -> list[int]:
    """Random tokens of the tiny model, none of them special."""
    return random.Random(seed).choices(range(6, 262), k=count)
