"""What Python hands over as a prompt, and what goes over the wire."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from radixloop.v1 import common_pb2, inference_pb2

from agent_client import Chat, InvalidArgument
from agent_client.generate_options import generate_request
from agent_client.prompts import ids_from_proto, ids_to_proto, prompt_to_proto

WIRE = b"\x01\x00\x00\x00\xff\xff\xff\x7f\x00\x01\x00\x00"
IDS = [1, 2**31 - 1, 256]


@pytest.mark.parametrize(
    "ids",
    [
        IDS,
        tuple(IDS),
        range(1, 2),
        array("i", IDS),
        array("q", IDS),
        np.array(IDS, dtype=np.int32),
        np.array(IDS, dtype=np.int64),
        np.array(IDS, dtype=np.uint32),
        np.array([IDS, IDS], dtype=np.int32).T[:, 0],
        WIRE,
        bytearray(WIRE),
        memoryview(np.array(IDS, dtype=np.int32)),
    ],
    ids=lambda ids: type(ids).__name__,
)
def test_token_ids_of_every_kind_are_little_endian_int32(ids: Any) -> None:
    expected = WIRE if not isinstance(ids, range) else WIRE[:4]
    assert ids_to_proto(ids).le_int32 == expected


@pytest.mark.parametrize(
    ("ids", "word"),
    [
        ([2**31], "int32"),
        (np.array([-(2**40)]), "int32"),
        (np.array([1.5]), "integers"),
        (np.zeros((2, 2), dtype=np.int32), "one row"),
        (b"\x01\x00\x00", "multiple of 4"),
        ([1.5], "prompt"),
        (3, "prompt is int"),
        (None, "NoneType"),
        ([None], "prompt"),
    ],
)
def test_what_is_no_prompt_is_refused_before_it_is_sent(ids: Any, word: str) -> None:
    with pytest.raises(InvalidArgument, match=word):
        prompt_to_proto(ids)


@pytest.mark.parametrize("proto", [common_pb2.TokenIds(ids=IDS), common_pb2.TokenIds(le_int32=WIRE)])
def test_ids_come_back_from_either_form(proto: common_pb2.TokenIds) -> None:
    assert list(ids_from_proto(proto)) == IDS


def test_a_chat_keeps_null_content_tool_calls_and_tools() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "tool_call_id": "1", "name": "f", "content": ""},
    ]
    chat = prompt_to_proto(Chat(messages, tools=[{"name": "f", "parameters": {}}])).chat
    user, assistant, tool = chat.messages
    assert user.content == "ab"
    assert not assistant.HasField("content")
    assert (assistant.tool_calls[0].name, assistant.tool_calls[0].arguments) == ("f", '{"x": 1}')
    assert tool.HasField("content")
    assert tool.tool_call_id == "1"
    assert list(chat.tools) == ['{"type": "function", "function": {"name": "f", "parameters": {}}}']


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ({"content": "x"}, r"messages\[0\].role is None"),
        ({"role": "user", "content": "\ud800"}, r"messages\[0\] holds half a surrogate pair"),
        ({"role": "user", "content": 3}, r"messages\[0\].content is int"),
        ({"role": "user", "content": [{"type": "image_url"}]}, r"content\[0\] is a part of type 'image_url'"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, r"tool_calls\[0\].function.name"),
        ({"role": "assistant", "tool_calls": ["x"]}, r"tool_calls\[0\] is str"),
        ({"role": "tool", "tool_call_id": 3}, "tool_call_id is int"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {1, 2}}}]}, "as JSON"),
    ],
)
def test_a_bad_message_is_named(message: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidArgument, match=word):
        prompt_to_proto([message])


def test_options_left_out_stay_unset_and_zeros_are_sent() -> None:
    request = generate_request("x", {"temperature": 0.0, "stop": "end", "logit_bias": {5: -1.0}, "seed": None})
    assert request.sampling.HasField("temperature")
    assert not request.sampling.HasField("max_tokens")
    assert not request.sampling.HasField("seed")
    assert list(request.sampling.stop) == ["end"]
    assert dict(request.sampling.logit_bias) == {5: -1.0}
    assert not request.HasField("namespace")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max_tokens": "many"}, "sampling.max_tokens is 'many'"),
        ({"max_tokens": 2**40}, "sampling.max_tokens"),
        ({"stop_token_ids": ["a"]}, "sampling.stop_token_ids"),
        ({"stop": 3}, "sampling.stop is 3"),
        ({"logit_bias": [1]}, "sampling.logit_bias"),
        ({"salt": 3}, "namespace.salt is 3"),
        ({"tool_choice": "must"}, "tool_choice is 'must': one of auto, none, required"),
        ({"tool_names": [3]}, "tool_choice.names"),
        ({"json_schema": {"a": {1}}}, "json_schema"),
        ({"regex": "a", "json_object": True}, "json_object and regex"),
    ],
)
def test_an_option_of_the_wrong_type_is_named(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidArgument, match=word):
        generate_request("x", options)


def test_a_constraint_and_a_choice_of_tools() -> None:
    schema = {"type": "object", "title": "é"}
    assert generate_request("x", {"json_schema": schema}).json_schema == '{"type": "object", "title": "é"}'
    assert generate_request("x", {"json_schema": "true"}).json_schema == "true"
    assert list(generate_request("x", {"choice": ["a", "b"]}).choice.texts) == ["a", "b"]
    assert generate_request("x", {"json_object": True}).WhichOneof("constraint") == "json_object"
    request = generate_request("x", {"tool_choice": "required", "tool_names": ["f"], "parallel_tool_calls": False})
    assert request.tool_choice.mode == inference_pb2.TOOL_MODE_REQUIRED
    assert list(request.tool_choice.names) == ["f"]
    assert request.HasField("parallel_tool_calls")
    plain = generate_request("x", {})
    assert not plain.HasField("tool_choice")
    assert plain.WhichOneof("constraint") is None


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unknown option 'max_token'; known are max_tokens"):
        generate_request("x", {"max_token": 3})


def test_a_turn_cannot_leave_its_sessions_namespace() -> None:
    with pytest.raises(InvalidArgument, match="belong to the session"):
        generate_request("x", {"salt": "a"}, session_id="s")
