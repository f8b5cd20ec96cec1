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
    for change, param in (({"top_p": 1.5}, "top_p"), ({"max_tokens": 0}, "max_tokens"), ({"n": 65}, "n")):
        answer = http.post("/v1/completions", json={"model": "tiny", "prompt": "x", **change})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
    assert http.get("/health").json()["status"] == "SERVING"


def test_max_tokens_is_a_limit_and_no_wish(http: httpx.Client, salt: str) -> None:
    context = http.get("/v1/models/tiny").json()["max_model_len"]
    told = post(http, "/v1/completions", prompt=ids(context - 20), max_tokens=10**6, cache_salt=salt)
    assert told["usage"]["completion_tokens"] == 20
    assert told["choices"][0]["finish_reason"] == "length"


def test_a_response_goes_on_from_the_one_before_token_for_token(http: httpx.Client, salt: str) -> None:
    asked = {"instructions": "You are an agent. " * 20, "max_output_tokens": 8, "cache_salt": salt}
    told = post(http, "/v1/responses", input="Turn 0.", **asked)
    for turn in range(1, 4):
        before, asked["previous_response_id"] = told["usage"], told["id"]
        told = post(http, "/v1/responses", input=f"Turn {turn}.", **asked)
        assert told["usage"]["input_tokens_details"]["cached_tokens"] >= before["total_tokens"] - 1


def test_marks_are_leased_where_they_stand(http: httpx.Client, client: RadixClient, salt: str) -> None:
    def text(words: str, ttl: str) -> dict[str, Any]:
        return {"type": "text", "text": words, "cache_control": {"type": "ephemeral", "ttl": ttl}}

    asked = {
        "max_tokens": 4,
        "system": [text(f"{salt} You are an agent. " * 10, "1h")],
        "messages": [{"role": "user", "content": [text("Turn 0.", "5m")]}],
    }
    counted = {name: value for name, value in asked.items() if name != "max_tokens"}
    prompt = post(http, "/v1/messages/count_tokens", **counted)["input_tokens"]
    for turn in range(2):
        usage = post(http, "/v1/messages", **asked)["usage"]
        written = usage["cache_creation"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] + sum(written.values()) == prompt
        if not turn:
            assert 0 < written["ephemeral_5m_input_tokens"] < written["ephemeral_1h_input_tokens"] < prompt
        leases = {round(lease.ttl_s / 60): lease.tokens for lease in client.leases().leases}
        assert leases == {5: prompt, 60: prompt - leases[5] + leases[60]}
        assert 0 < leases[60] < prompt
    for lease in client.leases().leases:
        client.release_lease(lease.id)


def test_a_claim_on_a_request_is_a_lease_of_its_priority(http: httpx.Client, client: RadixClient, salt: str) -> None:
    payload = {"target": "request_cached", "location": "local_g1", "claim_id": salt, "revision": 1, "value": 80}
    action = {"action_id": "a", "action_type": "vllm.set_priority", "action_version": "1.0", "payload": payload}
    told = post(
        http,
        "/v1/completions",
        prompt=ids(50, seed=3),
        max_tokens=4,
        cache_salt=salt,
        kv_hints={"protocol_version": "0.1", "actions": [action]},
    )
    assert [result["status"] for result in told["kv_hints"]["results"]] == ["applied"]
    [lease] = client.leases().leases
    assert (lease.tokens, lease.salt, lease.priority) == (54, salt, 80)
    client.release_lease(lease.id)


def test_loops_over_two_runtimes_finish_when_one_is_killed(start_server: Callable[..., RunningServer]) -> None:
    servers = [start_server(), start_server()]
    with (
        running_gateway(servers[0].target, "--runtime", servers[1].target, "--alias", "tiny") as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        loops = [[{"role": "user", "content": f"{loop}: you are an agent. " * 10}] for loop in range(10)]
        for turn in range(4):
            for loop, messages in enumerate(loops):
                headers = {"x-session-id": str(loop)}
                told = http.post(
                    "/v1/chat/completions",
                    json={"model": "tiny", "messages": messages, "max_tokens": 4, "stream": bool(loop % 2)},
                    headers=headers,
                )
                assert told.status_code == 200, told.text
                text = "…" if loop % 2 else told.json()["choices"][0]["message"]["content"]
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
                if loop % 2 == 0 and turn in (1, 3):
                    # Within the first two turns, and again once those of the killed runtime have a new home.
                    assert told.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
            if turn == 1:
                with RadixClient(servers[0].target) as first, RadixClient(servers[1].target) as second:
                    assert first.stats().requests_total + second.stats().requests_total == 20
                    assert min(first.stats().requests_total, second.stats().requests_total) > 0
                servers[0].process.kill()
        assert list(http.get("/health").json()["runtimes"].values()).count("SERVING") == 1


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
