"""OpenAI's responses: items in and out, events in order, and turns that go on from one another."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import pytest
from radixloop.tenants import KeyHolder, Keys
from radixloop.v1 import common_pb2, inference_pb2

from agent_client.gateway import Tenants, create_app
from agent_client.gateway.responses.store import MAX_SESSIONS, TTL_S, Place, ResponseStore, Stored
from tests.timing import eventually

from .gateway_harness import error, frames, ok, serving_http
from .toy_runtime import Refusal, ToyRuntime

RESPONSES = "/v1/responses"
HELLO = {"model": "toy", "input": "hello", "max_output_tokens": 3}
TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True}
CALLS = [common_pb2.ToolCall(id=f"c{i}", name="add", arguments='{"a": 1}') for i in range(2)]
SCRIPT = 'Let me see. <tool_call>{"name": "add"}</tool_call>'


def post(http: httpx.Client, **more: Any) -> Any:
    return ok(http.post(RESPONSES, json=HELLO | more))


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


def test_a_response_says_what_was_asked_and_what_came(http: httpx.Client) -> None:
    tokens = len("<system>Be brief.<user>hello<assistant>")
    told = post(http, instructions="Be brief.", metadata={"a": "b"}, temperature=0.5)
    assert (told["object"], told["status"], told["model"]) == ("response", "incomplete", "toy")
    assert told["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (told["instructions"], told["metadata"], told["temperature"]) == ("Be brief.", {"a": "b"}, 0.5)
    [item] = told["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "incomplete")
    assert [part["type"] for part in item["content"]] == ["output_text"]
    assert told["usage"] == {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens + 3,
    }
    assert post(http, instructions="Be brief.")["usage"]["input_tokens_details"] == {"cached_tokens": tokens - 1}


def test_items_become_a_chat(http: httpx.Client, scripted: ToyRuntime) -> None:
    items = [
        {"role": "developer", "content": "Be kind."},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "4"}]},
        {"role": "user", "content": "Go on."},
    ]
    post(http, input=items, instructions="Be brief.", tools=[TOOL])
    request = scripted.seen[-1].request
    assert [(m.role, m.content) for m in request.prompt.chat.messages] == [
        ("system", "Be brief."),
        ("system", "Be kind."),
        ("user", "ab"),
        ("assistant", "Yes."),
        ("tool", "3"),
        ("tool", "4"),
        ("user", "Go on."),
    ]
    assert [call.id for call in request.prompt.chat.messages[3].tool_calls] == ["c1", "c2"]
    assert '"function": {"name": "add"' in request.prompt.chat.tools[0]


def test_the_events_of_a_stream(http: httpx.Client, scripted: ToyRuntime) -> None:
    scripted.script, scripted.tool_calls = SCRIPT, CALLS
    answer = http.post(RESPONSES, json=HELLO | {"tools": [TOOL], "stream": True})
    names = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    told = frames(answer)
    assert names == [event["type"] for event in told]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    shape = [name.removeprefix("response.") for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    call = [
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
    ]
    assert shape == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", *call, *call, "completed"),
    ]
    final = told[-1]["response"]
    assert (
        text_of(final)
        == "".join(e["delta"] for e in told if e["type"] == "response.output_text.delta")
        == "Let me see. "
    )
    assert [item["type"] for item in final["output"]] == ["message", "function_call", "function_call"]
    assert [item["call_id"] for item in final["output"][1:]] == ["c0", "c1"]
    assert [event["output_index"] for event in told if event["type"] == "response.output_item.done"] == [0, 1, 2]
    assert final["usage"]["output_tokens"] == len(SCRIPT)
    whole = post(http, tools=[TOOL])
    strip = ("id", "created_at", "completed_at", "usage", "output", "max_output_tokens")
    assert {k: v for k, v in whole.items() if k not in strip} == {k: v for k, v in final.items() if k not in strip}
    for one, other in zip(whole["output"], final["output"], strict=True):
        assert {k: v for k, v in one.items() if k != "id"} == {k: v for k, v in other.items() if k != "id"}
    assert len(post(http, tools=[TOOL], parallel_tool_calls=False)["output"]) == 2
    none = post(http, tools=[TOOL], tool_choice="none")
    assert (text_of(none), len(none["output"])) == (SCRIPT, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_was_cut_is_not_complete(http: httpx.Client, scripted: ToyRuntime, stream: bool) -> None:
    scripted.script, scripted.tool_calls = SCRIPT, [CALLS[0], common_pb2.ToolCall(id="c", name="add", arguments='{"a')]
    answer = http.post(RESPONSES, json=HELLO | {"tools": [TOOL], "stream": stream})
    told = frames(answer)[-1]["response"] if stream else ok(answer)
    assert [item["status"] for item in told["output"]] == ["completed", "completed", "incomplete"]
    # What was not said to the end is no part of the conversation.
    scripted.sessions.clear()
    post(http, tools=[TOOL], previous_response_id=told["id"], input="on")
    assert len(scripted.seen[-1].request.prompt.chat.messages[1].tool_calls) == 1


def test_what_a_turn_must_be_reaches_the_runtime(http: httpx.Client, scripted: ToyRuntime) -> None:
    schema = {"type": "object"}
    post(http, text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}})
    assert scripted.seen[-1].request.json_schema == '{"type": "object"}'
    post(http, tools=[TOOL], tool_choice={"type": "function", "name": "add"}, top_p=0.5, priority=3, ignore_eos=True)
    request = scripted.seen[-1].request
    assert (request.tool_choice.mode, list(request.tool_choice.names)) == (inference_pb2.TOOL_MODE_REQUIRED, ["add"])
    assert (request.sampling.top_p, request.priority, request.sampling.ignore_eos) == (0.5, 3, True)
    told = post(http, include=["message.output_text.logprobs"], top_logprobs=2)
    [part] = told["output"][0]["content"]
    assert "".join(step["token"] for step in part["logprobs"]) == part["text"]
    assert len(part["logprobs"][0]["top_logprobs"]) == 2


def test_a_turn_goes_on_in_the_session_of_the_one_before(http: httpx.Client, scripted: ToyRuntime) -> None:
    asked = {"instructions": "Be brief.", "tools": [TOOL]}
    first = post(http, **asked)
    [session] = scripted.sessions
    last, prompts = first, [scripted.seen[-1].prompt]
    for turn in range(3):
        last = post(http, **asked, previous_response_id=last["id"], input=f"turn {turn}")
        request = scripted.seen[-1].request
        assert request.session_id == session
        assert [message.content for message in request.prompt.chat.messages] == [f"turn {turn}"]
        assert last["usage"]["input_tokens"] == len(scripted.seen[-1].prompt)
        assert last["usage"]["input_tokens_details"]["cached_tokens"] >= len(prompts[-1]) + 2
        prompts.append(scripted.seen[-1].prompt)
    assert list(scripted.sessions) == [session]
    # A branch from further back: the session has gone on, and all of what came before is sent.
    branch = post(http, **asked, previous_response_id=first["id"], input="other")
    request = scripted.seen[-1].request
    assert request.session_id not in ("", session)
    assert [m.content for m in request.prompt.chat.messages] == ["Be brief.", "hello", text_of(first), "other"]
    assert branch["previous_response_id"] == first["id"]


def test_turns_side_by_side_do_not_mix(http: httpx.Client, scripted: ToyRuntime) -> None:
    first = post(http)
    scripted.token_delay_s = 0.01
    with ThreadPoolExecutor(6) as threads:
        asked = [HELLO | {"previous_response_id": first["id"], "input": f"branch {i}"} for i in range(6)]
        told = [ok(answer) for answer in threads.map(lambda body: http.post(RESPONSES, json=body), asked)]
    prompts = {seen.prompt.decode() for seen in scripted.seen[1:]}
    assert len(prompts) == 6
    assert all(prompt.startswith("<user>hello<assistant>") for prompt in prompts)
    assert all(len(set(re.findall(r"branch \d", prompt))) == 1 for prompt in prompts)
    assert len({response["id"] for response in told}) == 6


def test_other_instructions_send_the_history_anew(http: httpx.Client, scripted: ToyRuntime) -> None:
    first = post(http, instructions="Be brief.")
    post(http, instructions="Be long.", previous_response_id=first["id"], input="on")
    sent = scripted.seen[-1].request.prompt.chat.messages
    assert [message.content for message in sent] == ["Be long.", "hello", text_of(first), "on"]


def test_calls_and_their_results_across_turns(http: httpx.Client, scripted: ToyRuntime) -> None:
    scripted.script, scripted.tool_calls = SCRIPT, CALLS
    first = post(http, tools=[TOOL])
    scripted.sessions.clear()
    scripted.script, scripted.tool_calls = "3.", []
    results = [{"type": "function_call_output", "call_id": f"c{i}", "output": str(i)} for i in range(2)]
    told = post(http, tools=[TOOL], previous_response_id=first["id"], input=results)
    assert (text_of(told), told["status"]) == ("3.", "completed")
    # The session was gone: the conversation was sent whole, in another.
    sent = scripted.seen[-1].request.prompt.chat.messages
    assert [message.role for message in sent] == ["user", "assistant", "tool", "tool"]
    assert [call.id for call in sent[1].tool_calls] == ["c0", "c1"]
    assert sent[1].content == "Let me see. "
    assert len(scripted.sessions) == 1


def test_without_store_nothing_is_kept(http: httpx.Client, scripted: ToyRuntime) -> None:
    first = post(http, store=False)
    assert first["store"] is False
    assert not scripted.sessions
    for answer in (
        http.get(f"{RESPONSES}/{first['id']}"),
        http.post(RESPONSES, json=HELLO | {"previous_response_id": first["id"]}),
    ):
        told = error(answer, 404)
        assert told["code"] == "previous_response_not_found"
        assert first["id"] in told["message"]
    kept = post(http)
    post(http, previous_response_id=kept["id"], store=False)
    assert not scripted.seen[-1].request.HasField("session_id")
    assert len(scripted.seen[-1].request.prompt.chat.messages) == 3


def test_a_kept_response_is_shown_and_deleted(http: httpx.Client, scripted: ToyRuntime) -> None:
    told = post(http)
    path = f"{RESPONSES}/{told['id']}"
    assert ok(http.get(path)) == told
    assert ok(http.delete(path)) == {"id": told["id"], "object": "response", "deleted": True}
    assert error(http.get(path), 404)["param"] == "response_id"
    assert eventually(lambda: not scripted.sessions)
    assert error(http.post(RESPONSES, json=HELLO | {"previous_response_id": "resp_x"}), 404)["param"] == (
        "previous_response_id"
    )


def test_the_last_turn_ends_the_conversation(http: httpx.Client, scripted: ToyRuntime) -> None:
    headers = {"x-dynamo-session-id": "s"}
    first = ok(http.post(RESPONSES, json=HELLO, headers=headers))
    assert len(scripted.sessions) == 1
    headers["x-dynamo-session-final"] = "true"
    ok(http.post(RESPONSES, json=HELLO | {"previous_response_id": first["id"]}, headers=headers))
    assert scripted.seen[-1].request.conversation_ends
    assert eventually(lambda: not scripted.sessions)


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_that_fails_ends_its_session(http: httpx.Client, scripted: ToyRuntime, stream: bool) -> None:
    scripted.refusals["Generate"] = [Refusal(grpc.StatusCode.INTERNAL, "broken", after_messages=2)]
    answer = http.post(RESPONSES, json=HELLO | {"stream": stream})
    if stream:
        last = frames(answer)[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "failed"
        assert last["response"]["error"] == {"code": "server_error", "message": "broken"}
    else:
        assert error(answer, 500)["message"] == "broken"
    assert eventually(lambda: not scripted.sessions)


def test_a_runtime_without_room_for_sessions_serves_all_the_same(http: httpx.Client, scripted: ToyRuntime) -> None:
    scripted.refusals["Open"] = [Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "1024 sessions are open")] * 2
    first = post(http, cache_salt="mine")
    assert not scripted.seen[-1].request.HasField("session_id")
    assert scripted.seen[-1].request.namespace.salt == "mine"
    post(http, previous_response_id=first["id"], input="on")
    assert scripted.seen[-1].request.namespace.salt == "mine"
    assert len(scripted.seen[-1].request.prompt.chat.messages) == 3


def test_a_conversation_survives_its_runtime(toy: ToyRuntime) -> None:
    other = ToyRuntime()
    try:
        with (
            serving_http(create_app([toy.target, other.target])) as url,
            httpx.Client(base_url=url, timeout=30) as client,
        ):
            first = post(client)
            home, spare = (toy, other) if toy.seen else (other, toy)
            home.stop()
            post(client, previous_response_id=first["id"], input="on")
            assert len(spare.seen[-1].request.prompt.chat.messages) == 3
    finally:
        other.stop()


def test_no_tenant_goes_on_from_anothers_response(toy: ToyRuntime) -> None:
    keys = Tenants(Keys({"a": KeyHolder("ana"), "b": KeyHolder("bob")}))
    with serving_http(create_app(toy.target, tenants=keys)) as url, httpx.Client(base_url=url) as client:
        ana, bob = ({"authorization": f"Bearer {key}"} for key in "ab")
        told = ok(client.post(RESPONSES, json=HELLO, headers=ana))
        path, on = f"{RESPONSES}/{told['id']}", HELLO | {"previous_response_id": told["id"]}
        assert error(client.get(path), 401)
        assert error(client.get(path, headers=bob), 404)
        assert error(client.delete(path, headers=bob), 404)
        assert error(client.post(RESPONSES, json=on, headers=bob), 404)
        assert ok(client.post(RESPONSES, json=on, headers=ana))["previous_response_id"] == told["id"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"instructions": 5}, "instructions"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "f", "parameters": 3}]}, "tools[0].parameters"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"n": 2}, "n"),
        ({"max_output_tokens": "3"}, "max_output_tokens"),
        ({"metadata": {"a": 1}}, "metadata.a"),
    ],
)
def test_what_is_refused_is_named(http: httpx.Client, scripted: ToyRuntime, change: dict[str, Any], param: str) -> None:
    told = error(http.post(RESPONSES, json=HELLO | change), 400)
    assert told["type"] == "invalid_request_error"
    assert told["param"] == param
    assert not scripted.seen


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def stored(session: str | None = None, chars: int = 10) -> Stored:
    place = None if session is None else Place("t", session)
    return Stored({}, None, None, [], "h", "l", chars, place)


def test_the_store_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_client.gateway.responses.store.MAX_RESPONSES", 4)
    monkeypatch.setattr("agent_client.gateway.responses.store.MAX_CHARS", 100)
    closed: list[Place] = []
    clock = Clock()
    store = ResponseStore(closed.append, clock)
    for name in "abcde":
        store.put(name, stored(name))
    assert [place.session_id for place in closed] == ["a"]
    store.get("b", None, "p")
    store.put("long", stored(chars=85))
    assert [place.session_id for place in closed] == ["a", "c", "d", "e"]
    clock.now = TTL_S + 1
    assert len(store) == 2
    store.put("late", stored())
    assert len(store) == 1
    assert [place.session_id for place in closed][-1] == "b"


def test_only_so_many_sessions_are_kept_open() -> None:
    closed: list[Place] = []
    store = ResponseStore(closed.append)
    for rank in range(MAX_SESSIONS + 2):
        store.put(str(rank), stored(str(rank)))
    assert [place.session_id for place in closed] == ["0", "1"]
    first, last = (store.get(name, None, "p") for name in ("0", "2"))
    assert store.take_session("0", first, "t", "h") is None
    assert store.take_session("2", last, "other", "h") is None
    assert store.take_session("2", last, "t", "other") is None
    assert store.take_session("2", last, "t", "h") == Place("t", "2")
    assert store.take_session("2", last, "t", "h") is None
