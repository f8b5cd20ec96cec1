"""What gRPC requests become, and what each bad field is told."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from radixloop.v1 import cache_pb2, common_pb2, inference_pb2

from radix import Namespace
from runtime.errors import InvalidRequest
from runtime.sampling.sampling_params import SamplingParams
from runtime.services import convert

VOCAB = 100


def test_both_forms_of_token_ids_give_the_same_array() -> None:
    ids = [0, 99, 7, 7]
    packed = convert.token_array("t", common_pb2.TokenIds(ids=ids), VOCAB)
    raw = convert.token_array("t", common_pb2.TokenIds(le_int32=np.array(ids, "<i4").tobytes()), VOCAB)
    assert packed.tolist() == raw.tolist() == ids
    assert packed.dtype == raw.dtype == np.int32


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ({}, "t is 'empty': at least one token id"),
        ({"ids": [1], "le_int32": b"\0\0\0\0"}, "give one of the two"),
        ({"le_int32": b"\0\0\0\0\0"}, "t.le_int32 is '5 bytes': four bytes"),
        ({"ids": [5, -1]}, r"t\[1\] is -1: token ids of this model go from 0 to 99"),
        ({"ids": [5, 6, 100]}, r"t\[2\] is 100: token ids of this model go from 0 to 99"),
        ({"le_int32": np.array([2**31 - 1], "<i4").tobytes()}, r"t\[0\] is 2147483647"),
    ],
)
def test_bad_token_ids(ids: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        convert.token_array("t", common_pb2.TokenIds(**ids), VOCAB)


def test_unset_sampling_takes_defaults_and_a_set_zero_means_zero() -> None:
    assert convert.sampling_params(inference_pb2.SamplingParams(), VOCAB) == SamplingParams()
    params = convert.sampling_params(
        inference_pb2.SamplingParams(seed=0, repetition_penalty=1.5, temperature=0.0, stop=["x"], logit_bias={3: -1.0}),
        VOCAB,
    )
    assert params == SamplingParams(seed=0, repetition_penalty=1.5, stop=("x",), logit_bias={3: -1.0})
    for name in ("max_tokens", "top_p", "n"):
        with pytest.raises(InvalidRequest, match=f"sampling.{name} is 0"):
            convert.sampling_params(inference_pb2.SamplingParams(**{name: 0}), VOCAB)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": math.inf}, "top_p"),
        ({"min_p": -0.5}, "min_p"),
        ({"top_k": -1}, "top_k"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": 3.0}, "presence_penalty"),
        ({"frequency_penalty": math.nan}, "frequency_penalty"),
        ({"n": 65}, "n"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x" * 257]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ({"stop_token_ids": [1] * 257}, "stop_token_ids"),
        ({"logit_bias": dict.fromkeys(range(1025), 0.0)}, "logit_bias"),
        ({"logit_bias": {-1: 0.0}}, "logit_bias"),
        ({"logit_bias": {1: math.nan}}, r"logit_bias\[1\]"),
    ],
)
def test_sampling_outside_its_limits_names_the_field(params: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^sampling.{field} is "):
        convert.sampling_params(inference_pb2.SamplingParams(**params), VOCAB)


def test_namespaces_are_typed() -> None:
    def of(**parts: str) -> Namespace:
        return convert.namespace_of(common_pb2.Namespace(**parts), "f")

    assert of() == Namespace("f", None, None)
    assert of(salt="x") != of(adapter="x")
    assert of(salt="") != of()
    with pytest.raises(InvalidRequest, match=r"namespace.salt is '2000 bytes': at most 1024"):
        of(salt="é" * 1000)


def test_a_chat_takes_the_shape_that_templates_read() -> None:
    tool = {"type": "function", "function": {"name": "read", "parameters": {}}}
    chat = common_pb2.Chat(
        messages=[
            common_pb2.Message(role="user", content="go"),
            common_pb2.Message(
                role="assistant", tool_calls=[common_pb2.ToolCall(id="c1", name="read", arguments='{"path": "é"}')]
            ),
            common_pb2.Message(role="tool", content="text", tool_call_id="c1", name="read"),
        ],
        tools=[json.dumps(tool)],
        template_kwargs='{"enable_thinking": false}',
    )
    found = convert.chat_input("chat", chat, 10)
    assert found.tools == [tool]
    assert found.template_kwargs == {"enable_thinking": False}
    assert found.messages == [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "function": {"name": "read", "arguments": '{"path": "é"}'}, "id": "c1"}
            ],
        },
        {"role": "tool", "content": "text", "tool_call_id": "c1", "name": "read"},
    ]


def assistant(**call: str) -> common_pb2.Message:
    return common_pb2.Message(role="assistant", tool_calls=[common_pb2.ToolCall(**call)])


USER = common_pb2.Message(role="user", content="x")


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        ({}, "chat.messages is 'empty'"),
        ({"messages": [USER] * 11}, "chat.messages is 11: at most 10"),
        ({"messages": [common_pb2.Message(content="x")]}, r"chat.messages\[0\].role is ''"),
        (
            {"messages": [common_pb2.Message(role="user", tool_calls=[common_pb2.ToolCall(name="f")])]},
            r"messages\[0\].tool_calls is 'user'",
        ),
        (
            {"messages": [assistant()]},
            r"tool_calls\[0\].name is ''",
        ),
        ({"messages": [USER], "tools": ["[]"]}, r"chat.tools\[0\] is .*JSON object, not list"),
        ({"messages": [USER], "tools": ["{}"]}, r"chat.tools\[0\] is .*must read"),
        ({"messages": [USER], "template_kwargs": '{"a": NaN}'}, "chat.template_kwargs is .*NaN"),
        ({"messages": [USER], "template_kwargs": "[" * 50_000}, "chat.template_kwargs is"),
        ({"messages": [USER], "template_kwargs": '{"a":' * 80 + "1" + "}" * 80}, "at most 64 levels"),
    ],
)
def test_bad_chats(chat: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        convert.chat_input("chat", common_pb2.Chat(**chat), 10)


@pytest.mark.parametrize("text", ["", "x" * 129, "a\nb", "\0"])
def test_ids_are_short_and_printable(text: str) -> None:
    with pytest.raises(InvalidRequest, match="session_id"):
        convert.checked_id("session_id", text)


def test_head_tokens() -> None:
    assert convert.head_tokens(cache_pb2.ListNodesRequest()) == 16
    assert convert.head_tokens(cache_pb2.ListNodesRequest(head_tokens=0)) == 0
    for bad in (-1, 257):
        with pytest.raises(InvalidRequest, match="head_tokens"):
            convert.head_tokens(cache_pb2.ListNodesRequest(head_tokens=bad))
