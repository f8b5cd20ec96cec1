"""SMG, the router of another project, in front of real servers, and what it says about how it routes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.ports import free_port
from tests.timing import eventually

_BRANCH = re.compile(r'^smg_cache_aware_policy_branch_total\{branch="(\w+)"\} (\d+)', re.MULTILINE)
_BLOCKS = re.compile(r'^smg_kv_index_blocks\{worker="grpc://([^"]+)"\} (\d+)', re.MULTILINE)


@dataclass
class Router:
    """A router that serves.

    Attributes:
        url: without /v1.
        metrics_url: of its Prometheus metrics.
        model: what requests name; None asks the router.
    """

    url: str
    metrics_url: str
    model: str | None = None

    def branches(self) -> dict[str, int]:
        """How many requests went each way of its cache-aware policy."""
        return {branch: int(count) for branch, count in _BRANCH.findall(httpx.get(self.metrics_url).text)}

    def blocks(self) -> dict[str, int]:
        """The blocks that it takes each runtime to hold, by HOST:PORT."""
        return {target: int(count) for target, count in _BLOCKS.findall(httpx.get(self.metrics_url).text)}

    def chat(self, messages: list[dict[str, str]], **more: Any) -> tuple[str, dict[str, Any]]:
        """The reply's text and its usage."""
        if self.model is None:
            (model,) = httpx.get(f"{self.url}/v1/models").json()["data"]
            self.model = model["id"]
        asked = {"model": self.model, "messages": messages, "temperature": 0, "ignore_eos": True, **more}
        response = httpx.post(f"{self.url}/v1/chat/completions", json=asked, timeout=60)
        response.raise_for_status()
        told = response.json()
        return told["choices"][0]["message"]["content"], told["usage"]


@contextmanager
def running_router(folder: Path, targets: Sequence[str], *flags: str) -> Iterator[Router]:
    """`smg launch` before these runtimes, ready to route to all of them by their KV events."""
    port, metrics_port = free_port(), free_port()
    command = [sys.executable, "-m", "smg", "launch", "--policy", "cache_aware", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--prometheus-port", str(metrics_port), "--prometheus-host", "127.0.0.1"]
    command += ["--worker-urls", *(f"grpc://{target}" for target in targets), *flags]
    url = f"http://127.0.0.1:{port}"
    with (folder / "router.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    router = Router(url, f"http://127.0.0.1:{metrics_port}/metrics")

    def ready() -> bool:
        assert process.poll() is None, (folder / "router.log").read_text(errors="replace")
        try:
            workers = httpx.get(f"{url}/workers").json()["workers"]
        except (httpx.TransportError, ValueError, KeyError):
            return False
        # The record that a subscription begins with says that the router follows the runtime's events.
        return len(workers) == len(targets) and all(worker.get("engine_load") for worker in workers)

    try:
        assert eventually(ready), (folder / "router.log").read_text(errors="replace")
        yield router
    finally:
        process.terminate()
        process.wait(30)
