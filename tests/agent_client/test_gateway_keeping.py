"""What requests want kept: `cache_control` as leases with their books, and `kv_hints` with their answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from radixloop.tenants import KeyHolder, Keys

from agent_client.gateway import create_app
from agent_client.gateway.keeping.breakpoints import Mark
from agent_client.gateway.keeping.wishes import _outermost
from agent_client.gateway.tenants import Tenants

from .gateway_harness import error, frames, ok, serving_http
from .toy_runtime import LEASABLE, Refusal, ToyRuntime

MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
FIVE = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TOOL = {"name": "add", "input_schema": {"type": "object"}}
TOOL_TEXT = '{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}'
SYSTEM, QUESTION = "<system>Be brief.", "<user>hello"
WHOLE = f"{SYSTEM}{QUESTION}<assistant>"


@pytest.fixture(autouse=True)
def loop(http: httpx.Client, request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test is a loop of its own: the gateway remembers what a loop has leased, and the toy was told to forget."""
    http.headers["x-session-id"] = request.node.name
    yield
    del http.headers["x-session-id"]


def system(mark: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "Be brief.", **(mark or {})}]


def user(mark: dict[str, Any] | None = None, text: str = "hello") -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text, **(mark or {})}]}


def hello(**more: Any) -> dict[str, Any]:
    return {"model": "toy", "max_tokens": 3, "system": system(), "messages": [user()]} | more


# Marks are in characters, which are the toy's tokens; the empty message after a system prompt still has its role.
@pytest.mark.parametrize(
    ("marked", "five", "hour", "leases"),
    [
        (hello(), 0, 0, []),
        (hello(**FIVE), len(WHOLE), 0, [(len(WHOLE), 300)]),
        (hello(messages=[user(HOUR)]), 0, len(WHOLE), [(len(WHOLE), 3600)]),
        (hello(system=system(HOUR)), 0, len(SYSTEM + "<user>"), [(len(SYSTEM + "<user>"), 3600)]),
        (
            hello(system=system(HOUR), messages=[user(FIVE)]),
            len("hello<assistant>"),
            len(SYSTEM + "<user>"),
            [(len(WHOLE), 300), (len(SYSTEM + "<user>"), 3600)],
        ),
        (hello(system=system(FIVE), messages=[user(HOUR)]), 0, len(WHOLE), [(len(WHOLE), 3600)]),
        (hello(system=system(FIVE), messages=[user(FIVE)]), len(WHOLE), 0, [(len(WHOLE), 300)]),
        (
            hello(tools=[TOOL | FIVE]),
            len(TOOL_TEXT + SYSTEM + "<user>"),
            0,
            [(len(TOOL_TEXT + SYSTEM + "<user>"), 300)],
        ),
        (
            hello(messages=[user(FIVE), {"role": "assistant", "content": "x"}, user(text="go on")]),
            # Cut there, the toy's prompt ends in what the assistant's turn begins with.
            len(WHOLE),
            0,
            [(len(WHOLE), 300)],
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_marks_become_leases_and_stand_in_the_books(
    http: httpx.Client,
    scripted: ToyRuntime,
    marked: dict[str, Any],
    five: int,
    hour: int,
    leases: list[tuple[int, float]],
    stream: bool,
) -> None:
    answer = http.post(MESSAGES, json=marked | {"stream": stream})
    told = [frames(answer)[0]["message"]["usage"], frames(answer)[-2]["usage"]] if stream else [ok(answer)["usage"]]
    for usage in told:
        assert usage["cache_creation"] == {"ephemeral_5m_input_tokens": five, "ephemeral_1h_input_tokens": hour}
        assert usage["cache_creation_input_tokens"] == five + hour
        total = usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"]
        assert total == len(scripted.seen[0].prompt)
    assert [(len(lease.prompt.token_ids.le_int32) // 4, lease.ttl_s) for lease in scripted.asked_leases] == leases
    if not stream and leases:
        assert answer.headers["x-radixloop-leases"] == f"{len(leases)} taken"


def test_what_was_read_is_not_written_again(http: httpx.Client, scripted: ToyRuntime) -> None:
    ok(http.post(MESSAGES, json=hello()))
    usage = ok(http.post(MESSAGES, json=hello(**FIVE)))["usage"]
    assert usage["cache_read_input_tokens"] == len(WHOLE) - 1
    assert usage["cache_creation_input_tokens"] == 1
    assert usage["input_tokens"] == 0


def test_a_loop_that_moves_its_mark_has_one_lease(http: httpx.Client, scripted: ToyRuntime) -> None:
    messages = [user()]
    for turn in range(4):
        ok(http.post(MESSAGES, json=hello(messages=[*messages[:-1], messages[-1] | user(FIVE)])))
        messages += [{"role": "assistant", "content": "x"}, user(text="hello")]
        assert len(scripted.leases) == 1, turn
    assert scripted.calls("ReleaseLease") == 3
    # The same prompt again asks for nothing new, and where the runtime has forgotten it, anew.
    again = hello(messages=[*messages[:-3], messages[-3] | user(FIVE)])
    answer = http.post(MESSAGES, json=again)
    assert answer.headers["x-radixloop-leases"] == "1 renewed"
    assert scripted.calls("RenewLease") == 1
    scripted.leases.clear()
    assert http.post(MESSAGES, json=again).headers["x-radixloop-leases"] == "1 taken"


def test_a_longer_time_outlives_what_covers_it(http: httpx.Client, scripted: ToyRuntime) -> None:
    ok(http.post(MESSAGES, json=hello(system=system(HOUR))))
    ok(http.post(MESSAGES, json=hello(system=system(HOUR), messages=[user(FIVE)])))
    assert sorted(lease.ttl_s for lease in scripted.leases.values()) == [300, 3600]
    # What runs for an hour already is not cut to five minutes.
    ok(http.post(MESSAGES, json=hello(system=system(FIVE))))
    assert sorted(lease.ttl_s for lease in scripted.leases.values()) == [300, 3600]


def test_a_lease_that_is_refused_is_no_error(http: httpx.Client, scripted: ToyRuntime) -> None:
    answer = http.post(MESSAGES, json=hello(messages=[user(FIVE, "x" * LEASABLE)]))
    assert ok(answer)["usage"]["cache_creation_input_tokens"] > LEASABLE
    assert answer.headers["x-radixloop-leases"] == "1 refused"
    assert frames(http.post(MESSAGES, json=hello(messages=[user(FIVE, "x" * LEASABLE)], stream=True)))
    assert 'radixloop_gateway_leases_total{result="refused"} 2.0' in http.get("/metrics").text


def test_a_request_that_fails_keeps_nothing(http: httpx.Client, scripted: ToyRuntime) -> None:
    scripted.refusals["Generate"] = [Refusal(grpc.StatusCode.INTERNAL, after_messages=2)]
    assert frames(http.post(MESSAGES, json=hello(stream=True, **FIVE)))[-1]["type"] == "error"
    assert not scripted.asked_leases
    # A template that takes the whole and not a part costs the mark only.
    scripted.refusals["Tokenize"] = [Refusal(grpc.StatusCode.FAILED_PRECONDITION)]
    assert ok(http.post(MESSAGES, json=hello(system=system(FIVE))))["usage"]["cache_creation_input_tokens"] == 0
    assert not scripted.asked_leases


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (hello(system=system({"cache_control": {"type": "permanent"}})), "system[0].cache_control"),
        (hello(messages=[user({"cache_control": {"type": "ephemeral", "ttl": "2h"}})]), "cache_control.ttl"),
        (hello(messages=[user({"cache_control": {"type": "ephemeral", "ttl": [1]}})]), "cache_control.ttl"),
        (hello(messages=[user({"cache_control": "x"})]), "messages[0].content[0].cache_control"),
        (hello(system=system(FIVE) * 5), "cache_control: stands at more places than the 4"),
        (hello(system=system(FIVE) * 4, **FIVE), "cache_control: stands at more places than the 4"),
    ],
)
def test_marks_that_are_none(http: httpx.Client, scripted: ToyRuntime, bad: dict[str, Any], named: str) -> None:
    assert named in error(http.post(MESSAGES, json=bad), 400)["message"]
    assert not scripted.seen


def test_dynamos_cache_control_keeps_the_whole_prompt(http: httpx.Client, scripted: ToyRuntime) -> None:
    body = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "nvext": HOUR}
    ok(http.post(CHAT, json=body))
    [lease] = scripted.asked_leases
    assert (len(lease.prompt.token_ids.le_int32) // 4, lease.ttl_s) == (len("<user>hi<assistant>"), 3600)


def test_only_the_outermost_marks_are_leased() -> None:
    found = [Mark(10, "1h"), Mark(20, "5m"), Mark(15, "5m"), Mark(5, "1h"), Mark(0, "1h")]
    assert _outermost(found) == [Mark(20, "5m"), Mark(10, "1h")]
    assert _outermost([Mark(20, "5m"), Mark(20, "1h")]) == [Mark(20, "1h")]


def hints(*actions: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = [{"action_id": f"a{rank}", "action_version": "1.0", **action} for rank, action in enumerate(actions)]
    return {"kv_hints": {"protocol_version": "0.1", "message_id": "m", "actions": given, **more}}


def priority(revision: int, value: int | None = 70, **more: Any) -> dict[str, Any]:
    payload = {"target": "request_cached", "location": "local_g1", "claim_id": "c", "revision": revision}
    return {"action_type": "vllm.set_priority", "payload": payload | {"value": value, "ttl_seconds": 60} | more}


def retain(*directives: dict[str, Any]) -> dict[str, Any]:
    return {"action_type": "kv.retain", "payload": {"scope": "request", "directives": list(directives)}}


def ask(http: httpx.Client, given: dict[str, Any], *, path: str = CHAT, stream: bool = False) -> list[Any]:
    """What became of each action: its status, and why where a word is said."""
    text = {"prompt": "hello"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hello"}]}
    answer = http.post(path, json={"model": "toy", "max_tokens": 3, "stream": stream, **text, **given})
    if not stream:
        told = ok(answer)["kv_hints"]
    else:
        [told] = [frame["kv_hints"] for frame in frames(answer) if frame != "[DONE]" and "kv_hints" in frame]
    assert [result["action_id"] for result in told["results"]] == [
        action.get("action_id", str(rank)) for rank, action in enumerate(given["kv_hints"]["actions"])
    ]
    return [result["status"] for result in told["results"]]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_each_action_is_answered(http: httpx.Client, scripted: ToyRuntime, path: str, stream: bool) -> None:
    prompt = len("hello") if path == "/v1/completions" else len("<user>hello<assistant>")
    given = hints(
        retain({"start": 0, "end": 4, "priority": 90, "duration": 30}, {"covers_output": True, "duration": 60}),
        priority(1),
        {"action_type": "kv.fetch"},
        {"action_type": "kv.fetch", "payload": {"token_ids": [1, 2, 3]}},
        {"action_type": "kv.drop"},
        {"action_type": "kv.retain", "action_version": "9.0"},
        retain(),
        {"payload": 3},
        {"action_id": "a0", "action_type": "kv.fetch"},
        message_id=f"{path}{stream}",
    )
    given["kv_hints"]["actions"][1]["payload"]["claim_id"] = f"{path}{stream}"
    assert ask(http, given, path=path, stream=stream) == [
        *("applied", "applied", "applied", "deferred", "unsupported", "unsupported", "rejected", "rejected"),
        "duplicate",
    ]
    leased = [(len(each.prompt.token_ids.le_int32) // 4, each.priority, each.ttl_s) for each in scripted.asked_leases]
    assert leased == [(4, 90, 30), (prompt + 3, 50, 60), (prompt + 3, 70, 60)]
    # The same message again, by a client that did not hear the answer.
    assert ask(http, given, path=path, stream=stream)[:4] == ["duplicate"] * 4
    assert len(scripted.asked_leases) == 3


def test_a_claim_goes_by_its_revision(http: httpx.Client, scripted: ToyRuntime) -> None:
    def claim(*args: Any, **more: Any) -> list[str]:
        return ask(http, hints(priority(*args, **more), message_id=None))

    assert claim(5) == ["applied"]
    assert claim(5) == ["duplicate"]
    assert claim(5, 80) == ["rejected"]
    assert claim(4) == ["rejected"]
    assert [lease.priority for lease in scripted.leases.values()] == [70]
    assert claim(6, 1000) == ["applied"]
    assert [lease.priority for lease in scripted.leases.values()] == [100]
    assert claim(7, None, ttl_seconds=None) == ["applied"]
    assert not scripted.leases
    assert claim(8, target="all") == ["unsupported"]
    assert claim(8, ttl_seconds=-1) == ["rejected"]
    assert claim(8, ttl_seconds="x") == ["rejected"]
    assert claim(8, claim_id="") == ["rejected"]


def test_a_key_says_which_priorities_its_holder_may_name(toy: ToyRuntime) -> None:
    keys = Tenants(Keys({"a": KeyHolder("ana"), "b": KeyHolder("bob", 60), "*": KeyHolder("*", 100)}))
    chat, text = {"messages": [{"role": "user", "content": "x"}]}, {"prompt": "x"}
    paths = ((CHAT, chat), ("/v1/completions", text), ("/v1/responses", {"input": "x"}))
    with serving_http(create_app(toy.target, tenants=keys)) as url, httpx.Client(base_url=url) as client:
        for key, highest in (("a", 0), ("b", 60), ("*", 100)):
            client.headers["authorization"] = f"Bearer {key}"
            for path, body in paths:
                asked = {"model": "toy", "max_tokens": 3, **body}
                ok(client.post(path, json=asked | {"priority": highest}))
                assert toy.seen[-1].request.priority == highest
                # A hint is brought within the bound.
                ok(client.post(path, json=asked | {"nvext": {"agent_hints": {"priority": 99}}}))
                assert toy.seen[-1].request.priority == min(99, highest)
                if highest < 100:
                    told = error(client.post(path, json=asked | {"priority": highest + 1}), 400)
                    assert told["param"] == "priority"
                    assert f"is {highest + 1}, and at most {highest}" in told["message"]
            toy.asked_leases.clear()
            wanted = hints(retain({"priority": 61}), retain({"priority": 50}), priority(1, 99), message_id=None)
            most = max(50, highest)
            assert ask(client, wanted) == ["applied" if most > 60 else "rejected", "applied", "applied"]
            assert [lease.priority for lease in toy.asked_leases][-2:] == [50, min(99, most)]


def test_what_cannot_be_retained_is_told(http: httpx.Client, scripted: ToyRuntime) -> None:
    given = hints(retain({"start": 10_000, "priority": 1}), retain({"end": 4}, {"start": 10_000}), message_id=None)
    asked = {"model": "toy", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
    told = ok(http.post(CHAT, json=asked | given))
    first, second = told["kv_hints"]["results"]
    assert first["status"] == "rejected"
    assert second["status"] == "applied"
    assert "1 of 2 directives" in second["detail"]
    scripted.refusals["Lease"] = [Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "the cap is 9")]
    told = ok(http.post(CHAT, json=asked | hints(retain({}))))
    assert "the cap is 9" in told["kv_hints"]["results"][0]["detail"]


def test_hints_of_another_protocol_or_for_several_prompts(http: httpx.Client, scripted: ToyRuntime) -> None:
    assert ask(http, hints(retain({}), protocol_version="7")) == ["unsupported"]
    body = {"model": "toy", "prompt": ["a", "b"], "max_tokens": 1, **hints(retain({}), priority(1))}
    told = ok(http.post("/v1/completions", json=body))["kv_hints"]["results"]
    assert [result["status"] for result in told] == ["rejected", "rejected"]
    assert "kv_hints" not in ok(http.post("/v1/completions", json={"model": "toy", "prompt": "a"}))


@pytest.mark.parametrize("actions", [[retain({})] * 17, [retain(*[{}] * 65)] * 2])
def test_too_many_are_refused(http: httpx.Client, scripted: ToyRuntime, actions: list[Any]) -> None:
    body = {"model": "toy", "messages": [{"role": "user", "content": "x"}], **hints(*actions)}
    assert error(http.post(CHAT, json=body), 400)["param"] == "kv_hints.actions"
    assert not scripted.seen


def test_actions_are_counted_by_kind(http: httpx.Client, scripted: ToyRuntime) -> None:
    ask(http, hints({"action_type": "x" * 100}, {"action_type": "kv.fetch"}, message_id="counted"))
    lines = http.get("/metrics").text
    assert 'radixloop_gateway_kv_hints_total{action="other",result="unsupported"}' in lines
    assert 'radixloop_gateway_kv_hints_total{action="kv.fetch",result="applied"}' in lines
