"""Several runtimes behind the gateway: who goes where, and what happens when one goes away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2
from radixloop.tenants import OPERATOR, KeyHolder, Keys

from agent_client.gateway import create_app
from agent_client.gateway.fleet.places import by_rendezvous
from agent_client.gateway.tenants import Tenants
from tests.timing import eventually

from .gateway_harness import error, frames, ok, serving_http
from .toy_runtime import Refusal, ToyRuntime

GO_ON = {"role": "assistant", "content": "x"}, {"role": "user", "content": "go on"}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Rig:
    """Three toy runtimes behind one gateway."""

    def __init__(self) -> None:
        self.toys = [ToyRuntime() for _ in range(3)]

    def chat(self, question: str, *more: dict[str, str], headers: dict[str, str] | None = None, **body: Any) -> Any:
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": question}, *more]
        asked = {"model": "toy", "messages": messages, "max_tokens": 3, **body}
        return self.http.post(CHAT, json=asked, headers=headers)

    def where(self) -> ToyRuntime:
        """The runtime that took the last call."""
        return max((toy for toy in self.toys if toy.seen), key=lambda toy: toy.seen[-1].started_s)

    def served(self) -> list[int]:
        return [len(toy.seen) for toy in self.toys]

    http: httpx.Client


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr("agent_client.gateway.fleet.fleet.LOOK_S", 0.05)
    rig = Rig()
    with ExitStack() as stack:
        for toy in rig.toys:
            stack.callback(toy.stop)
        url = stack.enter_context(serving_http(create_app([toy.target for toy in rig.toys])))
        rig.http = stack.enter_context(httpx.Client(base_url=url, timeout=30))
        assert eventually(lambda: set(ok(rig.http.get("/health"))["runtimes"].values()) == {"SERVING"})
        yield rig


def test_when_a_name_goes_only_its_keys_move_and_they_come_back() -> None:
    names = [(name, name) for name in "abcd"]
    keys = [f"k{i}" for i in range(2000)]
    before = {key: by_rendezvous(key, names) for key in keys}
    assert all(abs(share / 2000 - 1 / 4) < 0.05 for share in Counter(order[0] for order in before.values()).values())
    for key in keys:
        left = by_rendezvous(key, [pair for pair in names if pair[0] != "b"])
        assert list(left) == [name for name in before[key] if name != "b"]
        assert by_rendezvous(key, reversed(names)) == before[key]


def test_what_begins_alike_meets_and_what_does_not_is_spread(rig: Rig) -> None:
    for i in range(32):
        ok(rig.chat(f"question {i}"))
        first = rig.where()
        turn = ok(rig.chat(f"question {i}", *GO_ON))
        assert rig.where() is first
        assert turn["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert all(rig.served())


@pytest.mark.parametrize(
    "header", ["x-claude-code-session-id", "session-id", "x-session-id", "X-Dynamo-Session-ID", "body"]
)
def test_a_session_stays_whatever_it_says_and_its_branches_with_it(rig: Rig, header: str) -> None:
    def ask(session: str, question: str, **headers: str) -> ToyRuntime:
        named = {} if header == "body" else {header: session}
        control = {"nvext": {"session_control": {"session_id": session}}} if header == "body" else {}
        ok(rig.chat(question, headers={**named, **headers}, **control))
        return rig.where()

    homes = {session: ask(session, "first") for session in map(str, range(32))}
    assert len({id(home) for home in homes.values()}) == 3
    for session, home in homes.items():
        assert ask(session, f"another {session}") is home
        assert ask(f"child of {session}", "x", **{"x-parent-session-id": session}) is home
        assert ask(f"other child of {session}", "x", **{"x-dynamo-parent-session-id": session}) is home


def test_a_runtime_that_dies_is_left_out_and_its_calls_go_to_another(rig: Rig) -> None:
    rig.chat("question")
    home = rig.where()
    home.stop()
    for stream in (False, True):
        answer = rig.chat("question", stream=stream)
        assert answer.status_code == 200
        assert (frames(answer)[-1] == "[DONE]") if stream else ok(answer)["choices"]
    assert rig.where() is not home
    assert eventually(lambda: ok(rig.http.get("/health"))["runtimes"][home.target] != "SERVING")
    told = ok(rig.http.get("/health"))
    assert told["status"] == "SERVING"
    assert list(told["runtimes"].values()).count("SERVING") == 2
    assert f'radixloop_gateway_runtime_up{{runtime="{home.target}"}} 0.0' in rig.http.get("/metrics").text
    back = ToyRuntime(port=int(home.target.rpartition(":")[2]))
    rig.toys[rig.toys.index(home)] = back
    try:
        assert eventually(lambda: ok(rig.http.get("/health"))["runtimes"][back.target] == "SERVING")
        assert eventually(lambda: bool(ok(rig.chat("question")) and back.seen))
    finally:
        back.stop()


def test_leases_of_a_runtime_that_was_started_anew_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_client.gateway.fleet.fleet.LOOK_S", 0.05)
    claim = {"target": "request_cached", "location": "local_g1", "claim_id": "c", "value": 5}

    def ask(revision: int, text: str) -> Any:
        action = {"action_id": "a", "action_type": "vllm.set_priority", "action_version": "1.0"}
        hints = {"protocol_version": "0.1", "actions": [action | {"payload": claim | {"revision": revision}}]}
        content = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
        asked = {"model": "toy", "max_tokens": 1, "messages": [{"role": "user", "content": content}]}
        return ok(http.post("/v1/messages", json=asked | {"kv_hints": hints}, headers={"session-id": "s"}))

    first = ToyRuntime()
    with serving_http(create_app(first.target)) as url, httpx.Client(base_url=url) as http:
        ask(1, "hello")
        assert len(first.leases) == 2
        first.stop()
        assert eventually(lambda: http.get("/health").status_code == 503)
        anew = ToyRuntime(port=int(first.target.rpartition(":")[2]))
        try:
            assert eventually(lambda: http.get("/health").status_code == 200)
            ask(2, "hello")
            assert (anew.calls("Lease"), anew.calls("ReleaseLease"), anew.calls("RenewLease")) == (2, 0, 0)
        finally:
            anew.stop()


def test_one_that_says_that_it_does_not_serve_is_left_out(rig: Rig) -> None:
    ok(rig.chat("question"))
    home = rig.where()
    home.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert eventually(lambda: bool(ok(rig.chat("question")) and rig.where() is not home))
    home.health.set("", health_pb2.HealthCheckResponse.SERVING)
    assert eventually(lambda: bool(ok(rig.chat("question")) and rig.where() is home))


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_sends_the_call_to_the_next_and_all_full_is_told(rig: Rig, stream: bool) -> None:
    ok(rig.chat("question"))
    home = rig.where()
    full = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue", pushback_ms="1500")
    home.refusals["Generate"] = [full]
    assert rig.chat("question", stream=stream).status_code == 200
    assert rig.where() is not home
    for toy in rig.toys:
        toy.refusals["Generate"] = [full]
    answer = rig.chat("question", stream=stream)
    assert error(answer, 429)["code"] == "rate_limit_exceeded"
    assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT])
def test_what_another_would_not_do_either_is_not_tried_there(rig: Rig, code: grpc.StatusCode) -> None:
    for toy in rig.toys:
        toy.refusals["Generate"] = [Refusal(code)]
    assert rig.chat("question").status_code in (400, 500)
    assert sorted(toy.calls("Generate") for toy in rig.toys) == [0, 0, 1]


def test_after_the_first_byte_nothing_is_tried_again_and_before_it_everything(rig: Rig) -> None:
    ok(rig.chat("question"))
    home = rig.where()
    dies = Refusal(grpc.StatusCode.UNAVAILABLE, "gone", after_messages=2)
    home.refusals["Generate"] = [dies]
    served = sum(rig.served())
    told = frames(rig.chat("question", stream=True))
    assert told[-1]["error"]["message"] == "the runtime cannot be reached; ask again in a moment"
    assert sum(rig.served()) == served + 1
    assert eventually(lambda: ok(rig.http.get("/health"))["runtimes"][home.target] == "SERVING")
    home.refusals["Generate"] = [dies]
    whole = ok(rig.chat("question"))
    assert len(whole["choices"][0]["message"]["content"]) == 3
    assert rig.where() is not home


def test_a_client_that_leaves_ends_its_work_wherever_it_is(rig: Rig) -> None:
    for toy in rig.toys:
        toy.token_delay_s = 0.02
    with pytest.raises(httpx.ReadTimeout):
        rig.http.post(
            COMPLETIONS, json={"model": "toy", "prompt": "a", "max_tokens": 5000}, timeout=httpx.Timeout(10, read=0.3)
        )
    assert eventually(lambda: any(seen.cancelled for toy in rig.toys for seen in toy.seen))
    assert sum(rig.served()) == 1


def test_the_same_address_twice_is_one_runtime(rig: Rig) -> None:
    target = rig.toys[0].target
    with serving_http(create_app([target, target])) as url:
        assert list(ok(httpx.get(f"{url}/health"))["runtimes"]) == [target]


def test_all_gone_is_a_503_at_once_that_tells_addresses_to_the_log_and_to_operators(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = Tenants(Keys({"a": KeyHolder("ana"), "o": KeyHolder(OPERATOR)}))
    with serving_http(create_app(["127.0.0.1:1", "127.0.0.1:2"], tenants=keys)) as url, httpx.Client() as client:
        asked = {"model": "toy", "messages": [{"role": "user", "content": "x"}]}
        client.headers["authorization"] = "Bearer a"
        answers = [client.post(url + CHAT, json=asked, timeout=20)]
        answers += [client.get(f"{url}{path}") for path in ("/v1/models", "/v1/models/toy", "/health")]
        answers.append(client.post(f"{url}/v1/messages/count_tokens", json=asked))
        for answer in answers:
            assert answer.status_code == 503
            assert "127.0.0.1" not in answer.text
        assert error(answers[0], 503)["message"] == "the runtime cannot be reached; ask again in a moment"
        assert "503: UNAVAILABLE: the runtime at 127.0.0.1:" in caplog.text
        assert answers[3].json() == {"status": "NOT_SERVING"}
        told = httpx.get(f"{url}/health", headers={"x-api-key": "o"}).json()
        assert list(told["runtimes"]) == ["127.0.0.1:1", "127.0.0.1:2"]
