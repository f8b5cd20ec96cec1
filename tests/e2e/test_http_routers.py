"""Routers that speak HTTP, before two gateways with a runtime each."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from agent_client import RadixClient
from tests.ports import free_port
from tests.timing import eventually

from .conftest import RunningServer, running_server
from .gateway_process import running_gateway
from .router_processes import Router
from .test_router import SESSIONS, TURNS, Loops, reused

pytestmark = [pytest.mark.e2e, pytest.mark.router]

ROUTERS = {"vllm_router": "vllm_router.launch_router", "sglang_router": "sglang_router.launch_router"}


@contextmanager
def http_router(name: str, folder: Path, *urls: str) -> Iterator[Router]:
    """The router, ready to route to these gateways."""
    ports = [str(free_port()) for _ in range(2)]
    command = [sys.executable, "-m", ROUTERS[name], "--policy", "cache_aware", "--worker-urls", *urls]
    command += ["--host", "127.0.0.1", "--port", ports[0], "--prometheus-port", ports[1]]
    with (folder / "router.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    # They report a model by a name of their own: the gateway is asked.
    router = Router(f"http://127.0.0.1:{ports[0]}", "", model=httpx.get(f"{urls[0]}/v1/models").json()["data"][0]["id"])

    def ready() -> bool:
        assert process.poll() is None, (folder / "router.log").read_text(errors="replace")
        try:
            router.chat([{"role": "user", "content": "Are you there?"}], max_tokens=1)
        except httpx.HTTPError:
            return False
        return True

    try:
        assert eventually(ready), (folder / "router.log").read_text(errors="replace")
        yield router
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_by_text_before_gateways(
    name: str,
    start_server: Callable[..., RunningServer],
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip("make test-frameworks installs it")
    left = start_server("--num-blocks", "2000")
    with (
        running_server(tmp_path / "dying", tiny_model, "--num-blocks", "2000") as dying,
        running_gateway(left.target) as first,
        running_gateway(dying.target) as second,
        http_router(name, tmp_path, first, second) as router,
    ):
        pair = [left, dying]
        loops = Loops(router)
        loops.run()
        hits, prompts = reused(pair)
        assert loops.calls == SESSIONS * TURNS
        assert all(reused([server])[1] for server in pair)
        dying.stop(signal.SIGKILL)
        with RadixClient(left.target) as client:
            client.flush()
        after = Loops(router)
        after.run()
    with capsys.disabled():
        print(f"\n{name}: hit rate {hits / prompts:.1%}")
        print(f"after a runtime died {after.calls} calls, {after.retried} of them sent again by the agents")
    assert hits / prompts > 0.7
    assert after.calls == SESSIONS * TURNS
