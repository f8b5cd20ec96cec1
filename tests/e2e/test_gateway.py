"""The gateway's command in front of the real server with a tiny model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from agent_client import RadixClient
from tests.timing import eventually

from .conftest import RunningServer, ids
from .gateway_process import running_gateway

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(start_server: Callable[..., RunningServer]) -> RunningServer:
    return start_server()


@pytest.fixture(scope="module")
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with running_gateway(server.target, "--alias", "tiny") as url:
        yield httpx.Client(base_url=url, timeout=60)


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json={"model": "tiny", "ignore_eos": True, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_history_hits_from_turn_to_turn(http: httpx.Client, salt: str) -> None:
    messages = [{"role": "system", "content": "You are an agent. " * 20}]
    before = 0
    for turn in range(4):
        messages.append({"role": "user", "content": f"Turn {turn}."})
        told = post(http, "/v1/chat/completions", messages=messages, max_tokens=8, cache_salt=salt)
        messages.append(told["choices"][0]["message"])
        assert told["usage"]["prompt_tokens_details"]["cached_tokens"] >= before
        before = told["usage"]["prompt_tokens"]
    assert before > 300


def test_token_ids_go_through_as_they_are(http: httpx.Client, client: RadixClient, salt: str) -> None:
    prompt = ids(100)
    mine = client.generate(prompt, max_tokens=8, ignore_eos=True)
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "cache_salt": salt, "logprobs": 2}
    told = post(http, "/v1/completions", **body)
    assert told["choices"][0]["text"] == mine.text
    assert told["usage"]["prompt_tokens_details"]["cached_tokens"] == 99
    assert len(told["choices"][0]["logprobs"]["tokens"]) == 8
    assert len({tuple(post(http, "/v1/completions", **body)["choices"][0]["text"]) for _ in range(2)}) == 1


def test_what_the_runtime_refuses_names_the_field(http: httpx.Client) -> None:
    for change, param in (({"top_p": 1.5}, "top_p"), ({"max_tokens": 10**6}, "max_tokens"), ({"n": 65}, "n")):
        answer = http.post("/v1/completions", json={"model": "tiny", "prompt": "x", **change})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
    assert http.get("/health").json() == {"status": "SERVING"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_runtime(http: httpx.Client, client: RadixClient, stream: bool) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": stream}
    cancelled = client.stats().cancelled_total
    if stream:
        with http.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/completions", json=body, timeout=httpx.Timeout(10, read=0.2))
    assert eventually(lambda: client.stats().cancelled_total == cancelled + 1)
    assert eventually(lambda: client.stats().active_blocks == 0)
