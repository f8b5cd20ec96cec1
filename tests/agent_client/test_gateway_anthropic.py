"""Anthropic's API over HTTP, in front of the toy runtime."""

from __future__ import annotations

import json
from typing import Any

import grpc
import httpx
import pytest
from radixloop.v1 import common_pb2

from tests.timing import eventually

from .gateway_harness import error, frames, ok
from .toy_runtime import Refusal, ToyRuntime

MESSAGES = "/v1/messages"
HELLO = {"model": "toy", "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}]}
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}


def prompt_tokens(usage: dict[str, int]) -> int:
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


def test_a_message_is_answered_whole_and_its_books_sum_to_the_prompt(http: httpx.Client) -> None:
    tokens = len("<user>hello<assistant>")
    first, second = (ok(http.post(MESSAGES, json=HELLO)) for _ in range(2))
    assert (first["type"], first["role"], first["model"]) == ("message", "assistant", "toy")
    assert [block["type"] for block in first["content"]] == ["text"]
    assert (first["stop_reason"], first["stop_sequence"]) == ("max_tokens", None)
    assert first["usage"] == {
        "input_tokens": tokens,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 3,
    }
    assert second["usage"]["cache_read_input_tokens"] == tokens - 1
    assert prompt_tokens(second["usage"]) == tokens


def test_a_history_with_tools_reaches_the_template(http: httpx.Client, scripted: ToyRuntime) -> None:
    messages = [
        {"role": "user", "content": "add"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "Yes."},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "3"}]},
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    asked = HELLO | {
        "messages": messages,
        "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind"}],
    }
    ok(http.post(MESSAGES, json=asked | {"tools": [TOOL], "tool_choice": {"type": "auto"}, "stop_sequences": ["x"]}))
    request = scripted.seen[-1].request
    chat = request.prompt.chat
    assert [(m.role, m.content) for m in chat.messages] == [
        ("system", "Be kind"),
        ("user", "add"),
        ("assistant", "Yes."),
        ("tool", "3"),
        ("user", "Go on."),
    ]
    assert (chat.messages[2].tool_calls[0].id, chat.messages[2].tool_calls[0].arguments) == ("c1", '{"a": 1}')
    assert chat.messages[3].tool_call_id == "c1"
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    assert json.loads(chat.tools[0]) == {"type": "function", "function": function}
    assert list(request.sampling.stop) == ["x"]
    assert request.sampling.temperature == 1.0


def test_the_events_of_a_stream_are_in_order(http: httpx.Client, scripted: ToyRuntime) -> None:
    scripted.script = 'Sure. <tool_call>{"name": "add"}</tool_call>'
    scripted.tool_calls = [common_pb2.ToolCall(id=f"c{i}", name="add", arguments='{"a": 1}') for i in range(2)]
    asked = HELLO | {"tools": [TOOL], "stream": True}
    answer = http.post(MESSAGES, json=asked)
    names = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    told = frames(answer)
    assert names == [event["type"] for event in told]
    shape = [name for i, name in enumerate(names) if name != names[i - 1]]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert shape == ["message_start", *block * 3, "message_delta", "message_stop"]
    deltas = [event["delta"] for event in told if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "Sure. "
    assert "".join(d["partial_json"] for d in deltas if d["type"] == "input_json_delta") == '{"a": 1}' * 2
    assert [e["index"] for e in told if e["type"] == "content_block_start"] == [0, 1, 2]
    assert told[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert told[-2]["usage"]["output_tokens"] == len(scripted.script)
    assert prompt_tokens(told[0]["message"]["usage"]) == prompt_tokens(told[-2]["usage"])
    whole = ok(http.post(MESSAGES, json=asked | {"stream": False}))
    assert [block["type"] for block in whole["content"]] == ["text", "tool_use", "tool_use"]
    assert whole["content"][1]["input"] == {"a": 1}
    one = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    assert len(ok(http.post(MESSAGES, json=asked | one | {"stream": False}))["content"]) == 2
    none = ok(http.post(MESSAGES, json=asked | {"tool_choice": {"type": "none"}, "stream": False}))
    assert none["content"] == [{"type": "text", "text": scripted.script}]
    assert none["stop_reason"] == "end_turn"


def test_a_call_that_was_cut_is_left_out(http: httpx.Client, scripted: ToyRuntime) -> None:
    scripted.script = 'Sure. <tool_call>{"name": "add"}</tool_call>'
    scripted.tool_calls = [common_pb2.ToolCall(id="c", name="add", arguments='{"a')]
    assert ok(http.post(MESSAGES, json=HELLO | {"tools": [TOOL]}))["content"] == [{"type": "text", "text": "Sure. "}]


def test_tokens_are_counted_as_the_message_would_have_them(http: httpx.Client) -> None:
    asked = {name: value for name, value in HELLO.items() if name != "max_tokens"} | {"tools": [TOOL], "system": "Hi."}
    counted = ok(http.post(f"{MESSAGES}/count_tokens", json=asked))
    assert counted == {"input_tokens": prompt_tokens(ok(http.post(MESSAGES, json=asked | {"max_tokens": 1}))["usage"])}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": "3"}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]}, "].input"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "must"}}, "tool_choice.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"stop_sequences": "x"}, "stop_sequences"),
    ],
)
def test_what_is_refused_is_named(http: httpx.Client, scripted: ToyRuntime, change: dict[str, Any], named: str) -> None:
    answer = http.post(MESSAGES, json=HELLO | change)
    told = error(answer, 400)
    assert answer.json()["type"] == "error"
    assert told["type"] == "invalid_request_error"
    assert named in told["message"]
    assert not scripted.seen


@pytest.mark.parametrize(
    ("refusal", "status", "kind"),
    [
        (Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, pushback_ms="100"), 429, "rate_limit_error"),
        (Refusal(grpc.StatusCode.UNAVAILABLE), 503, "overloaded_error"),
        (Refusal(grpc.StatusCode.INTERNAL), 500, "api_error"),
    ],
)
def test_errors_have_anthropics_names(
    http: httpx.Client, scripted: ToyRuntime, refusal: Refusal, status: int, kind: str
) -> None:
    scripted.refusals["Generate"] = [refusal]
    assert error(http.post(MESSAGES, json=HELLO), status)["type"] == kind
    assert error(http.post(MESSAGES, json=HELLO | {"model": "claude"}), 404)["type"] == "not_found_error"
    assert error(http.get(MESSAGES), 405)["type"] == "invalid_request_error"


def test_a_stream_that_breaks_says_so(http: httpx.Client, scripted: ToyRuntime) -> None:
    scripted.refusals["Generate"] = [Refusal(grpc.StatusCode.INTERNAL, "broken", after_messages=2)]
    told = frames(http.post(MESSAGES, json=HELLO | {"stream": True}))
    assert told[-1] == {"type": "error", "error": {"type": "api_error", "message": "broken"}}


def test_a_client_that_leaves_ends_the_work(http: httpx.Client, scripted: ToyRuntime) -> None:
    scripted.token_delay_s = 0.02
    with http.stream("POST", MESSAGES, json=HELLO | {"max_tokens": 5000, "stream": True}) as answer:
        next(answer.iter_lines())
    assert eventually(lambda: scripted.seen and scripted.seen[0].cancelled)
