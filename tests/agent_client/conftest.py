"""A toy runtime for the client to talk to, and the folder of recorded loops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agent_client.gateway import create_app

from .gateway_harness import serving_http
from .toy_runtime import ToyRuntime


@pytest.fixture
def toy() -> Iterator[ToyRuntime]:
    runtime = ToyRuntime()
    yield runtime
    runtime.stop()


@pytest.fixture(scope="module")
def gateway() -> Iterator[tuple[ToyRuntime, httpx.Client]]:
    """A toy runtime behind the HTTP gateway, for all tests of a module."""
    runtime = ToyRuntime()
    with serving_http(create_app(runtime.target, aliases=["other"])) as url, httpx.Client(base_url=url) as client:
        yield runtime, client
    runtime.stop()


@pytest.fixture
def scripted(gateway: tuple[ToyRuntime, httpx.Client]) -> ToyRuntime:
    """The runtime behind the gateway, as new."""
    gateway[0].forget()
    return gateway[0]


@pytest.fixture
def http(gateway: tuple[ToyRuntime, httpx.Client], scripted: ToyRuntime) -> httpx.Client:
    """The gateway's client."""
    return gateway[1]


@pytest.fixture(scope="session")
def data_folder() -> Path:
    folder = Path(os.environ.get("RADIXLOOP_DATA", Path(__file__).parents[2] / "../shared/data"))
    if not folder.is_dir():
        pytest.skip(f"no recorded loops at {folder} (RADIXLOOP_DATA names the folder)")
    return folder
