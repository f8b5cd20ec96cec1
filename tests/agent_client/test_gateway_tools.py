"""Tool loops of clients that others wrote, with a model whose calls are scripted."""

from __future__ import annotations

import httpx
import pytest
from radixloop.v1 import common_pb2

from .toy_runtime import ToyRuntime

anthropic = pytest.importorskip("anthropic", reason="make test-frameworks installs it")
openai = pytest.importorskip("openai", reason="make test-frameworks installs it")

pytestmark = pytest.mark.framework

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
SCRIPT = 'Adding. <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'


@pytest.fixture
def calling(scripted: ToyRuntime) -> ToyRuntime:
    scripted.script = SCRIPT
    scripted.tool_calls = [common_pb2.ToolCall(id="c1", name="add", arguments='{"a": 1, "b": 2}')]
    return scripted


@pytest.mark.parametrize("stream", [False, True])
def test_openai_calls_a_tool_and_sends_its_result(http: httpx.Client, calling: ToyRuntime, stream: bool) -> None:
    client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none")
    asked = {
        "model": "toy",
        "messages": [{"role": "user", "content": "1 + 2?"}],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}],
    }
    if stream:
        with client.chat.completions.stream(**asked) as events:
            told = events.get_final_completion()
    else:
        told = client.chat.completions.create(**asked)
    [choice] = told.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Adding. ")
    [call] = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 1, "b": 2}')
    calling.script, calling.tool_calls = "3.", []
    result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
    asked["messages"] += [choice.message, result]
    assert client.chat.completions.create(**asked).choices[0].message.content == "3."
    sent = calling.seen[-1].request.prompt.chat.messages
    assert [message.role for message in sent] == ["user", "assistant", "tool"]
    assert sent[1].tool_calls[0].id == sent[2].tool_call_id == "c1"


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_calls_a_tool_and_sends_its_result(http: httpx.Client, calling: ToyRuntime, stream: bool) -> None:
    client = anthropic.Anthropic(base_url=str(http.base_url), api_key="none")
    asked = {
        "model": "toy",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "1 + 2?"}],
        "tools": [{"name": "add", "input_schema": PARAMETERS}],
    }
    if stream:
        with client.messages.stream(**asked) as events:
            told = events.get_final_message()
    else:
        told = client.messages.create(**asked)
    text, call = told.content
    assert (told.stop_reason, text.text, call.name, call.input) == ("tool_use", "Adding. ", "add", {"a": 1, "b": 2})
    calling.script, calling.tool_calls = "3.", []
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
    asked["messages"] += [{"role": "assistant", "content": told.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**asked).content[0].text == "3."
    sent = calling.seen[-1].request.prompt.chat.messages
    assert [message.role for message in sent] == ["user", "assistant", "tool"]
    assert sent[1].tool_calls[0].id == sent[2].tool_call_id == "c1"
