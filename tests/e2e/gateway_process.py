"""The gateway's command in front of a real server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.ports import free_port
from tests.timing import eventually


@contextmanager
def running_gateway(target: str, *flags: str) -> Iterator[str]:
    """Its base URL, without /v1."""
    port = free_port()
    command = [sys.executable, "-m", "agent_client", "gateway", "--runtime", target, "--port", str(port), *flags]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command) as process:

        def answers() -> bool:
            assert process.poll() is None
            try:
                return httpx.get(f"{url}/health").status_code == 200
            except httpx.TransportError:
                return False

        try:
            assert eventually(answers)
            yield url
        finally:
            process.terminate()
