"""The OpenAI API over HTTP, in front of the toy runtime."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
import pytest
from radixloop.v1 import common_pb2

from agent_client.gateway import create_app
from tests.timing import eventually

from .gateway_harness import error, frames, ok, serving_http
from .toy_runtime import Refusal, ToyRuntime

HELLO = {"model": "toy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
TEXT = {"model": "toy", "prompt": "hello", "max_tokens": 3}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def test_models_go_by_the_runtimes_name_and_by_aliases(http: httpx.Client) -> None:
    assert [model["id"] for model in ok(http.get("/v1/models"))["data"]] == ["toy", "other"]
    assert ok(http.get("/v1/models/toy"))["max_model_len"] == 100_000
    assert ok(http.post(CHAT, json=HELLO | {"model": "other"}))["model"] == "other"
    for answer in (http.get("/v1/models/gpt"), http.post(CHAT, json=HELLO | {"model": "gpt"})):
        told = error(answer, 404)
        assert (told["code"], told["param"]) == ("model_not_found", "model")
        assert "'toy'" in told["message"]


def test_a_chat_is_answered_whole_with_what_the_cache_gave(http: httpx.Client) -> None:
    first, second = (ok(http.post(CHAT, json=HELLO)) for _ in range(2))
    [choice] = first["choices"]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 3
    assert choice["finish_reason"] == "length"
    tokens = len("<user>hello<assistant>")
    assert first["usage"] == {
        "prompt_tokens": tokens,
        "completion_tokens": 3,
        "total_tokens": tokens + 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": tokens - 1}


def test_a_stream_says_what_the_whole_answer_says(http: httpx.Client) -> None:
    whole = ok(http.post(CHAT, json=HELLO))
    asked = HELLO | {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage, done = frames(http.post(CHAT, json=asked))
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == usage["usage"]["prompt_tokens"] - 1
    assert len({chunk["id"] for chunk in (*chunks, usage)}) == 1
    assert all("usage" not in chunk for chunk in frames(http.post(CHAT, json=HELLO | {"stream": True}))[:-1])


def test_choices_stream_side_by_side(http: httpx.Client) -> None:
    whole = ok(http.post(CHAT, json=HELLO | {"n": 2}))
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    chunks = frames(http.post(CHAT, json=HELLO | {"n": 2, "stream": True}))[:-1]
    ended = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(ended) == [0, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_leave_the_text(http: httpx.Client, scripted: ToyRuntime, stream: bool) -> None:
    scripted.script = 'Let me see. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    scripted.tool_calls = [common_pb2.ToolCall(id=f"c{i}", name="add", arguments='{"a": 1}') for i in range(2)]
    body = HELLO | {"tools": [TOOL], "tool_choice": "auto"}

    def reply(**more: Any) -> tuple[str, list[Any], str]:
        if not stream:
            [choice] = ok(http.post(CHAT, json=body | more))["choices"]
            return choice["message"]["content"], choice["message"].get("tool_calls", []), choice["finish_reason"]
        deltas = [c["choices"][0] for c in frames(http.post(CHAT, json=body | more | {"stream": True}))[:-1]]
        text = "".join(choice["delta"].get("content") or "" for choice in deltas)
        calls: list[Any] = []
        for piece in (piece for choice in deltas for piece in choice["delta"].get("tool_calls", [])):
            if "id" in piece:
                calls.append(piece)
            else:
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
        return text, calls, deltas[-1]["finish_reason"]

    text, calls, reason = reply()
    assert (text, reason) == ("Let me see. ", "tool_calls")
    assert [(call["id"], call["function"]) for call in calls] == [
        (f"c{i}", {"name": "add", "arguments": '{"a": 1}'}) for i in range(2)
    ]
    assert scripted.seen[-1].request.prompt.chat.tools
    assert len(reply(parallel_tool_calls=False)[1]) == 1
    # The tools stay in the prompt, so that it goes on from the turns before; what is written is text.
    assert reply(tool_choice="none") == (scripted.script, [], "stop")
    assert scripted.seen[-1].request.prompt.chat.tools


def test_a_history_with_calls_and_results_reaches_the_template(http: httpx.Client, scripted: ToyRuntime) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    ok(http.post(CHAT, json=HELLO | {"messages": messages, "chat_template_kwargs": {"thinking": False}}))
    chat = scripted.seen[-1].request.prompt.chat
    assert [message.role for message in chat.messages] == ["system", "user", "assistant", "tool"]
    assert chat.messages[0].content == "Be brief."
    assert chat.messages[2].tool_calls[0].id == chat.messages[3].tool_call_id == "c1"
    assert chat.template_kwargs == '{"thinking": false}'


def test_log_probabilities_by_text(http: httpx.Client) -> None:
    body = HELLO | {"logprobs": True, "top_logprobs": 2}
    [choice] = ok(http.post(CHAT, json=body))["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(step["token"] for step in content) == choice["message"]["content"]
    assert content[0]["bytes"] == [ord(content[0]["token"])]
    assert [top["logprob"] for top in content[0]["top_logprobs"]] == [-0.5, -1.5]
    chunks = [c["choices"][0] for c in frames(http.post(CHAT, json=body | {"stream": True}))[:-1]]
    assert [step for chunk in chunks if chunk["logprobs"] for step in chunk["logprobs"]["content"]] == content
    [choice] = ok(http.post(COMPLETIONS, json=TEXT | {"logprobs": 2}))["choices"]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert list(choice["logprobs"]["top_logprobs"][0].values()) == [-1.5, -0.5]


def test_what_a_request_asks_for_reaches_the_runtime(http: httpx.Client, scripted: ToyRuntime) -> None:
    asked = {
        "max_completion_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "seed": 7,
        "stop": "x",
        "presence_penalty": 0.25,
        "frequency_penalty": 0.75,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": -1},
        "stop_token_ids": [9],
        "ignore_eos": True,
        "prompt_cache_key": "loop-1",
        "cache_salt": "mine",
        "priority": 3,
        "user": "ignored",
    }
    ok(http.post(CHAT, json=HELLO | asked))
    request = scripted.seen[-1].request
    for name in ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"):
        assert getattr(request.sampling, name) == asked[name]
    assert request.sampling.max_tokens == 2
    assert request.sampling.repetition_penalty == 1.5
    assert list(request.sampling.stop) == ["x"]
    assert list(request.sampling.stop_token_ids) == [9]
    assert dict(request.sampling.logit_bias) == {5: -1.0}
    assert request.sampling.ignore_eos
    assert request.HasField("conversation")
    assert (request.namespace.salt, request.priority) == ("mine", 3)
    ok(http.post(CHAT, json=HELLO))
    assert scripted.seen[-1].request.sampling.temperature == 1.0
    assert not scripted.seen[-1].request.HasField("conversation")
    assert not scripted.seen[-1].request.namespace.HasField("salt")


@pytest.mark.parametrize("prompt", ["hello", [1, 2, 3]], ids=["text", "token ids"])
def test_a_completion_of_text_or_token_ids(http: httpx.Client, scripted: ToyRuntime, prompt: Any) -> None:
    done = ok(http.post(COMPLETIONS, json=TEXT | {"prompt": prompt}))
    assert scripted.seen[-1].prompt == (prompt.encode() if isinstance(prompt, str) else bytes(prompt))
    assert done["usage"]["prompt_tokens"] == len(prompt)
    asked = TEXT | {"prompt": prompt, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage, end = frames(http.post(COMPLETIONS, json=asked))
    assert end == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == done["choices"][0]["text"]
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == len(prompt) - 1


def test_several_prompts_run_side_by_side(http: httpx.Client, scripted: ToyRuntime) -> None:
    asked = TEXT | {"prompt": ["a", "bcd"], "n": 2}
    done = ok(http.post(COMPLETIONS, json=asked))
    assert [choice["index"] for choice in done["choices"]] == [0, 1, 2, 3]
    assert done["usage"]["prompt_tokens"] == 4
    assert done["usage"]["completion_tokens"] == 12
    texts = dict.fromkeys(range(4), "")
    for chunk in frames(http.post(COMPLETIONS, json=asked | {"stream": True}))[:-1]:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert list(texts.values()) == [choice["text"] for choice in done["choices"]]


@pytest.mark.parametrize(
    ("path", "change", "param"),
    [
        (CHAT, {"messages": "hello"}, "messages"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        (CHAT, {"temperature": "hot"}, "temperature"),
        (CHAT, {"max_tokens": 1.5}, "max_tokens"),
        (CHAT, {"stream": 1}, "stream"),
        (CHAT, {"stop": [1]}, "stop[0]"),
        (CHAT, {"seed": 2**64}, "seed"),
        (CHAT, {"max_tokens": "3"}, "max_tokens"),
        (CHAT, {"n": 2**70}, "n"),
        (CHAT, {"prompt_cache_key": 5}, "prompt_cache_key"),
        (CHAT, {"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        (CHAT, {"logit_bias": {"x": 1}}, "logit_bias"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"tool_choice": "required"}, "tool_choice"),
        (CHAT, {"tools": [TOOL], "tool_choice": "must"}, "tool_choice"),
        (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        (CHAT, {"tools": [TOOL], "tool_choice": {"type": "custom"}}, "tool_choice"),
        (CHAT, {"tools": [{"function": {"name": []}}, {}], "tool_choice": {"function": {"name": "f"}}}, "tool_choice"),
        (CHAT, {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice"),
        (CHAT, {"response_format": {"type": "xml"}}, "response_format.type"),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        (CHAT, {"response_format": "json"}, "response_format"),
        (CHAT, {"kv_hints": {"actions": []}}, "kv_hints.protocol_version"),
        (CHAT, {"kv_hints": {"protocol_version": "0.1", "actions": [{}] * 17}}, "kv_hints.actions"),
        (CHAT, {"nvext": {"agent_hints": {"priority": "high"}}}, "nvext.agent_hints.priority"),
        (CHAT, {"nvext": {"cache_control": {"type": "for ever"}}}, "nvext.cache_control"),
        (CHAT, {"functions": [{"name": "add"}]}, "functions"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": [1, "a"]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": None}, "prompt"),
        (COMPLETIONS, {"echo": True}, "echo"),
        (COMPLETIONS, {"best_of": 3}, "best_of"),
    ],
)
def test_what_is_refused_is_named(
    http: httpx.Client, scripted: ToyRuntime, path: str, change: dict[str, Any], param: str
) -> None:
    told = error(http.post(path, json=(HELLO if path == CHAT else TEXT) | change), 400)
    assert told["type"] == "invalid_request_error"
    assert told["param"].startswith(param)
    assert param in told["message"]
    assert not scripted.seen


def test_a_body_that_is_too_long(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_client.gateway.bodies.MAX_MESSAGE_BYTES", 100)
    assert "100 bytes" in error(http.post(CHAT, content=b" " * 101), 413)["message"]


def test_a_fault_of_the_gateway_is_told_in_the_apis_format(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("agent_client.gateway.endpoints.chat_prompt", broken)
    told = error(http.post(CHAT, json=HELLO), 500)
    assert told["type"] == "server_error"
    assert "secret" not in told["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"[" * 100_000, b'{"model": "\xff"}', b'{"model": "\\ud800"}', b"null"]
)
def test_a_body_that_is_no_request(http: httpx.Client, body: bytes) -> None:
    assert error(http.post(CHAT, content=body), 400)["type"] == "invalid_request_error"


def test_a_field_that_is_left_out_is_named(http: httpx.Client) -> None:
    for name in ("model", "messages"):
        assert error(http.post(CHAT, json={k: v for k, v in HELLO.items() if k != name}), 400)["param"] == name


@pytest.mark.parametrize(
    ("refusal", "status", "retry_after"),
    [
        (Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue", pushback_ms="1500"), 429, "2"),
        (Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large"), 400, None),
        (Refusal(grpc.StatusCode.INVALID_ARGUMENT, "sampling.top_p is 2: must be in (0, 1]"), 400, None),
        (Refusal(grpc.StatusCode.UNAVAILABLE), 503, "1"),
        (Refusal(grpc.StatusCode.INTERNAL), 500, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_of_the_runtime_have_their_status(
    http: httpx.Client, scripted: ToyRuntime, refusal: Refusal, status: int, retry_after: str | None, stream: bool
) -> None:
    scripted.refusals["Generate"] = [refusal]
    answer = http.post(CHAT, json=HELLO | {"stream": stream})
    told = error(answer, status)
    unavailable = "the runtime cannot be reached; ask again in a moment"
    assert told["message"] == (unavailable if status == 503 else refusal.message.removeprefix("sampling."))
    assert answer.headers.get("retry-after") == retry_after
    assert told["param"] == ("top_p" if "top_p" in refusal.message else None)
    assert scripted.calls("Generate") == 1


def test_a_stream_that_breaks_says_so(http: httpx.Client, scripted: ToyRuntime) -> None:
    scripted.refusals["Generate"] = [Refusal(grpc.StatusCode.INTERNAL, "broken", after_messages=2)]
    told = frames(http.post(CHAT, json=HELLO | {"stream": True}))
    assert told[-1]["error"]["message"] == "broken"
    assert "[DONE]" not in told


def test_a_runtime_that_is_gone() -> None:
    with serving_http(create_app("127.0.0.1:1")) as url:
        assert error(httpx.post(url + CHAT, json=HELLO, timeout=30), 503)["type"] == "server_error"


def test_other_paths_and_methods(http: httpx.Client) -> None:
    assert "/v1/embeddings" in error(http.post("/v1/embeddings", json={}), 404)["message"]
    assert error(http.get(CHAT), 405)["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [1, 3])
def test_a_client_that_leaves_ends_the_work(
    http: httpx.Client, scripted: ToyRuntime, stream: bool, prompts: int
) -> None:
    scripted.token_delay_s = 0.02
    body = TEXT | {"prompt": ["a"] * prompts, "max_tokens": 5000, "stream": stream}
    if stream:
        with http.stream("POST", COMPLETIONS, json=body) as answer:
            next(answer.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            http.post(COMPLETIONS, json=body, timeout=httpx.Timeout(10, read=0.5))
    assert eventually(lambda: len(scripted.seen) == prompts and all(seen.cancelled for seen in scripted.seen))
    assert not any(seen.ended_s for seen in scripted.seen)


def test_a_prompt_that_cannot_be_sent_ends_those_before_it(http: httpx.Client, scripted: ToyRuntime) -> None:
    scripted.token_delay_s = 0.02
    body = TEXT | {"prompt": [[1], [2**40]], "max_tokens": 5000}
    assert "int32" in error(http.post(COMPLETIONS, json=body), 400)["message"]
    assert eventually(lambda: all(seen.cancelled for seen in scripted.seen))
    assert not any(seen.ended_s for seen in scripted.seen)
