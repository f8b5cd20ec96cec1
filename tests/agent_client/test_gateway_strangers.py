"""What strangers send and models write: refused by its name, or carried through; never a fault of the gateway."""

from __future__ import annotations

import json
import socket
from typing import Any

import grpc
import httpx
import pytest
from radixloop.v1 import common_pb2

from tests.timing import eventually

from .gateway_harness import error, frames, ok
from .toy_runtime import Refusal, ToyRuntime

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
SAY = [{"role": "user", "content": "x"}]
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": SAY},
    TEXT: {"prompt": "x"},
    RESPONSES: {"input": "x"},
    MESSAGES: {"messages": SAY, "max_tokens": 4},
}


def refusal(http: httpx.Client, scripted: ToyRuntime, path: str, says: str, **more: object) -> Any:
    """What becomes of a body that the runtime refuses with these words."""
    scripted.refusals["Generate"] = [Refusal(grpc.StatusCode.INVALID_ARGUMENT, says)]
    return error(http.post(path, json={"model": "toy", **BODIES[path], **more}), 400)


@pytest.mark.parametrize(
    ("path", "body", "says", "message", "param"),
    [
        (CHAT, {"max_tokens": 0}, "sampling.max_tokens is 0: at least 1", "max_tokens is", "max_tokens"),
        (CHAT, {"max_completion_tokens": 0}, "sampling.max_tokens is 0: l", "max_completion", "max_completion_tokens"),
        (RESPONSES, {"max_output_tokens": 0}, "sampling.max_tokens is 0: l", "max_output", "max_output_tokens"),
        (TEXT, {"logprobs": 99}, "sampling.top_logprobs is 99: l", "logprobs is 99", "logprobs"),
        (MESSAGES, {"stop_sequences": [""]}, "sampling.stop[0] is '': l", "stop_sequences[0] is", None),
        (MESSAGES, {}, "prompt.chat.tools[2].function.parameters/not is {}: l", "tools[2].input_schema/not is", None),
        (
            MESSAGES,
            {},
            "prompt is '9 tokens': at most 4: the context ends at 5",
            "prompt is too long: prompt is",
            None,
        ),
        (RESPONSES, {}, "prompt.chat.tools[2].function.name is '': l", "tools[2].name is", "tools[2].name"),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "json_schema/properties/a/not is {}: l",
            "response_format.json_schema.schema/properties/a/not is",
            "response_format.json_schema.schema",
        ),
        (CHAT, {"structured_outputs": {"regex": "("}}, "regex is '(': l", "structured_outputs.regex", None),
        (CHAT, {"structured_outputs": {"json": {}}}, "json_schema is 5: l", "structured_outputs.json is", None),
    ],
)
def test_a_refusal_has_the_words_of_its_own_api(
    http: httpx.Client,
    scripted: ToyRuntime,
    path: str,
    body: dict[str, Any],
    says: str,
    message: str,
    param: str | None,
) -> None:
    told = refusal(http, scripted, path, says, **body)
    assert told["message"].startswith(message)
    assert param is None or told["param"] == param


@pytest.mark.parametrize("path", BODIES)
def test_what_is_no_json_is_refused(http: httpx.Client, path: str) -> None:
    def refused(content: str | bytes) -> str:
        return str(error(http.post(path, content=content), 400)["message"])

    whole = json.dumps({"model": "toy", **BODIES[path]})
    for number in ("NaN", "Infinity", "-Infinity"):
        assert refused(whole[:-1] + f', "metadata": {{"a": {number}}}}}').startswith("the body is no JSON")
    assert "recursion limit" in refused('{"model": ' + "[" * 10_000)
    for broken in (b"", b"\xff\xfe", whole.encode()[:-1], b'{"model": "\xff"}', b'{"model": "\\ud800"}'):
        assert refused(broken).startswith("the body is no JSON")
    # As words they are like any other.
    ok(http.post(path, json={"model": "toy", **BODIES[path], "user": "NaN of the family Infinity"}))


def test_numbers_of_any_length_are_refused_by_name(http: httpx.Client) -> None:
    for path in (CHAT, TEXT, RESPONSES):
        told = error(http.post(path, json={"model": "toy", **BODIES[path], "logit_bias": {"1" * 5000: 1}}), 400)
        assert told["param"] == "logit_bias"
        assert len(told["message"]) < 100


def test_a_method_that_is_not_served_names_those_that_are(http: httpx.Client) -> None:
    for path, allowed in ((CHAT, {"POST"}), ("/v1/models", {"GET", "HEAD"}), ("/v1/responses/x", {"GET", "DELETE"})):
        answer = http.put(path)
        assert answer.status_code == 405
        assert allowed <= set(answer.headers["allow"].split(", "))


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_fault(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def left() -> float:
        counts = [line for line in http.get("/metrics").text.splitlines() if "requests_total{" in line]
        lines = [line for line in counts if 'status="499"' in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    before = left()
    with socket.create_connection((http.base_url.host, http.base_url.port or 80)) as half:
        half.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    assert eventually(lambda: left() == before + 1)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_a_stop_string_cut_is_not_called_whole(
    http: httpx.Client, scripted: ToyRuntime, stream: bool
) -> None:
    scripted.script = '<tool_call>{"name": "f", "arguments": {"a": '
    scripted.tool_calls = [common_pb2.ToolCall(id="1", name="f", arguments='{"a": ')]
    asked = {"model": "toy", **BODIES[CHAT], "tools": [FUNCTION], "stop": ["1"], "stream": stream}
    answer = http.post(CHAT, json=asked)
    [*_, last] = [frame for frame in frames(answer)[:-1] if frame["choices"]] if stream else [ok(answer)]
    assert last["choices"][0]["finish_reason"] == "stop"
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    asked = {"model": "toy", **BODIES[MESSAGES], "tools": tools, "stop_sequences": ["1"], "stream": stream}
    answer = http.post(MESSAGES, json=asked)
    reason = frames(answer)[-2]["delta"]["stop_reason"] if stream else ok(answer)["stop_reason"]
    assert reason == "end_turn"


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', '{"a": 1e999}', '{"a": ' + "[" * 5000 + "]" * 5000 + "}"])
def test_arguments_that_python_cannot_write_as_json_are_carried_through(
    http: httpx.Client, scripted: ToyRuntime, arguments: str
) -> None:
    scripted.script = "<tool_call>"
    scripted.tool_calls = [common_pb2.ToolCall(id="1", name="f", arguments=arguments)]
    for stream in (False, True):
        answer = http.post(CHAT, json={"model": "toy", **BODIES[CHAT], "tools": [FUNCTION], "stream": stream})
        assert answer.status_code == 200
        if not stream:
            assert ok(answer)["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == arguments
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    body = ok(http.post(MESSAGES, json={"model": "toy", **BODIES[MESSAGES], "tools": tools}))
    # Too deep a call is left out, as one that was cut.
    assert [block.get("input") for block in body["content"] if block["type"] == "tool_use"] in (
        [{"a": "\ud800"}],
        [{"a": None}],
        [],
    )
    ok(http.post(RESPONSES, json={"model": "toy", "input": "x", "tools": [{"type": "function", "name": "f"}]}))


def test_a_request_s_own_words_come_back_as_json(http: httpx.Client) -> None:
    content = '{"model": "toy", "input": "x", "text": {"format": {"type": "text", "x": 1e999}}}'
    assert ok(http.post(RESPONSES, content=content))["text"]["format"] == {"type": "text", "x": None}


def test_values_that_other_servers_take_are_taken(http: httpx.Client, scripted: ToyRuntime) -> None:
    ok(http.post(CHAT, json={"model": "toy", **BODIES[CHAT], "top_k": -1, "seed": -1}))
    sampling = scripted.seen[-1].request.sampling
    assert (sampling.top_k, sampling.seed) == (0, 2**64 - 1)
    told = refusal(http, scripted, CHAT, "prompt.chat.template_kwargs is 'tools': set by the runtime")
    assert told["param"] == "chat_template_kwargs"
