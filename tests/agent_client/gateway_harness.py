"""The gateway as a process would serve it, in a thread of the test."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp

from tests.timing import eventually


@contextmanager
def serving_http(app: ASGIApp) -> Iterator[str]:
    """Its base URL."""
    # Of a socket without its protocol asyncio does not know that it may send small pieces at once.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert eventually(lambda: server.started)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


def frames(answer: httpx.Response) -> list[Any]:
    """The data of each event, as JSON where it is that."""
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def ok(answer: httpx.Response) -> Any:
    """The body of an answer that went well."""
    assert answer.status_code == 200, answer.text
    return answer.json()


def error(answer: httpx.Response, status: int) -> Any:
    """What a refusal says, in the format of either API."""
    assert answer.status_code == status, answer.text
    return answer.json()["error"]
