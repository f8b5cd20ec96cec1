"""Clients that others wrote, unmodified and pointed at the gateway by their base URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .conftest import RunningServer
from .gateway_process import running_gateway

anthropic = pytest.importorskip("anthropic", reason="make test-frameworks installs it")
openai = pytest.importorskip("openai", reason="make test-frameworks installs it")

pytestmark = [pytest.mark.e2e, pytest.mark.framework]

TURNS = 4
SYSTEM = "You are an agent with two tools. " * 10
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture(scope="module")
def url(start_server: Callable[..., RunningServer]) -> Iterator[str]:
    with running_gateway(start_server().target, "--alias", "tiny") as base:
        yield base


@pytest.mark.parametrize("stream", [False, True])
def test_the_openai_sdk(url: str, salt: str, stream: bool) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    assert "tiny" in [model.id for model in client.models.list()]
    messages = [{"role": "system", "content": SYSTEM}]
    tools = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}]
    before = 0
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Turn {turn}."})
        asked = {"model": "tiny", "messages": messages, "tools": tools, "max_tokens": 8, "temperature": 0}
        asked["extra_body"] = {"cache_salt": salt, "ignore_eos": True}
        if stream:
            chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            usage = chunks[-1].usage
        else:
            told = client.chat.completions.create(**asked)
            text, usage = told.choices[0].message.content, told.usage
            assert told.choices[0].finish_reason == "length"
        messages.append({"role": "assistant", "content": text})
        assert usage.completion_tokens == 8
        assert usage.prompt_tokens_details.cached_tokens >= before
        before = usage.prompt_tokens


def test_the_openai_sdk_raises_its_own_errors(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt", prompt="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x"}], response_format={"type": "xml"}
        )
    assert caught.value.param == "response_format.type"
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="tiny", input="x", previous_response_id="resp_0")
    assert missing.value.code == "previous_response_not_found"
    text = client.completions.create(model="tiny", prompt=[10, 11, 12], max_tokens=4, logprobs=1)
    assert len(text.choices[0].logprobs.tokens) <= 4


@pytest.mark.parametrize("stream", [False, True])
def test_the_openai_sdks_responses(url: str, salt: str, stream: bool) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    tools = [{"type": "function", "name": "add", "parameters": PARAMETERS, "strict": False}]
    before, previous = 0, None
    for turn in range(TURNS):
        asked = {"model": "tiny", "instructions": SYSTEM, "input": f"Turn {turn}.", "tools": tools}
        asked |= {"max_output_tokens": 8, "temperature": 0, "previous_response_id": previous}
        asked["extra_body"] = {"cache_salt": salt, "ignore_eos": True}
        if stream:
            with client.responses.stream(**asked) as stream_of:
                events = list(stream_of)
            told = events[-1].response
            assert events[-1].type == "response.incomplete"
            assert {"response.created", "response.output_text.delta"} <= {event.type for event in events}
        else:
            told = client.responses.create(**asked)
        assert told.status == "incomplete"
        assert told.usage.output_tokens == 8
        # All of the turn before, prompt and output, but for the one token that nobody has computed.
        assert told.usage.input_tokens_details.cached_tokens >= before - 1
        before, previous = told.usage.total_tokens, told.id
    assert client.responses.retrieve(previous).output_text == told.output_text
    client.responses.delete(previous)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(previous)


@pytest.mark.parametrize("stream", [False, True])
def test_the_anthropic_sdk(url: str, stream: bool) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="none")
    # Another beginning for each case, so that they do not warm each other.
    system = [{"type": "text", "text": f"{stream}: {SYSTEM}", "cache_control": {"type": "ephemeral"}}]
    tools = [{"name": "add", "description": "Adds.", "input_schema": PARAMETERS}]
    messages: list[dict[str, object]] = []
    before = 0
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Turn {turn}."})
        asked = {"model": "tiny", "max_tokens": 8, "system": system, "messages": messages, "tools": tools}
        if stream:
            with client.messages.stream(**asked) as events:
                told = events.get_final_message()
        else:
            told = client.messages.create(**asked)
        messages.append({"role": "assistant", "content": told.content or "nothing"})
        usage = told.usage
        prompt = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
        counted = client.messages.count_tokens(model="tiny", system=system, messages=messages[:-1], tools=tools)
        assert counted.input_tokens == prompt
        assert usage.cache_read_input_tokens >= before
        before = prompt


def test_the_anthropic_sdk_raises_its_own_errors(url: str) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude", max_tokens=1, messages=[{"role": "user", "content": "x"}])
    with pytest.raises(anthropic.BadRequestError, match="stop"):
        client.messages.create(
            model="tiny", max_tokens=1, stop_sequences=[""], messages=[{"role": "user", "content": "x"}]
        )
