"""OpenAI's chat completions: the request as a call of the runtime, its reply and its chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..generate_options import GenerateOptions
from ..prompts import Chat
from ..results import (
    Delta,
    FinishReason,
    Generation,
    ModelInfo,
    Started,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from .bodies import Body
from .call_reader import CallReader
from .failures import ApiError, refused
from .field_names import FieldNames, constraint_names
from .frames import Frame
from .keeping import Wishes
from .openai_shapes import DONE, error_body, fingerprint, finish_reason, hint_results, token_bytes, usage_body
from .openai_tools import StructuredOutputs, read_tool_choice, set_format, set_structured, set_tools
from .sampling import SamplingFields, limit_tokens

# OpenAI's newer name for instructions; templates know the older one.
_ROLES = {"developer": "system"}


class Message(Body):
    """One message of a chat."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class ChatRequest(SamplingFields):
    """The body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    functions: list[dict[str, Any]] | None = None
    modalities: list[str] | None = None

    def names(self) -> FieldNames:
        """What this body calls the runtime's fields."""
        schema = "response_format.json_schema.schema" if self.response_format else "structured_outputs.json"
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return FieldNames({**constraint_names(schema), "max_tokens": limit, "prompt": "messages"})

    def reader(self) -> CallReader:
        """What tells one choice's text from its calls."""
        reads_calls = bool(self.tools) and self.tool_choice != "none"
        return CallReader(reads_calls=reads_calls, one_call=self.parallel_tool_calls is False)


def chat_prompt(asked: ChatRequest) -> Chat:
    """Messages and tools. Raises ApiError for what is not served."""
    _refuse_unserved(asked)
    messages = [message.model_dump(exclude_none=True) for message in asked.messages]
    for message in messages:
        message["role"] = _ROLES.get(message["role"], message["role"])
    # With tool_choice "none" the tools stay in the prompt: without them it would share no prefix with the turns before.
    return Chat(messages, asked.tools or (), asked.chat_template_kwargs or {})


def chat_options(asked: ChatRequest) -> GenerateOptions:
    """Sampling and cache options, and what the reply must be. Raises ApiError."""
    options = asked.options()
    limit_tokens(options, asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens)
    mode, names = read_tool_choice(asked.tool_choice, asked.tools or ())
    if asked.tools:
        set_tools(options, mode, names, asked.parallel_tool_calls)
    set_structured(options, asked.structured_outputs)
    set_format(options, asked.response_format, "response_format")
    if asked.top_logprobs is not None and not asked.logprobs:
        raise refused("top_logprobs", "goes with logprobs: true")
    if asked.logprobs:
        options["logprobs"] = True
        options["top_logprobs"] = asked.top_logprobs or 0
    return options


def _refuse_unserved(asked: ChatRequest) -> None:
    if asked.functions:
        raise refused("functions", "not served; tools take their place")
    if asked.modalities and asked.modalities != ["text"]:
        raise refused("modalities", "only text is served")


class ChatWriter:
    """Writes one request's answer, whole or in chunks."""

    def __init__(self, asked: ChatRequest, model: ModelInfo, request_id: str, created: int, wishes: Wishes) -> None:
        self._asked = asked
        self.names = asked.names()
        self._head = {"id": f"chatcmpl-{request_id}", "created": created, "model": asked.model}
        self._tail = {"system_fingerprint": fingerprint(model)}
        self._wishes = wishes
        self._readers: dict[int, CallReader] = {}

    def whole(self, generations: Sequence[Generation], texts: Mapping[int, str]) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        [generation] = generations
        choices = []
        for choice in generation.choices:
            text, calls = self._asked.reader().whole(choice)
            message: dict[str, Any] = {"role": "assistant", "content": None if calls and not text else text}
            message["refusal"] = None
            if calls:
                message["tool_calls"] = [_call_body(call) for call in calls]
            logprobs = _logprobs(choice.logprobs, texts) if self._asked.logprobs else None
            reason = _reason(choice.finish_reason, calls)
            choices.append({"index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": reason})
        told = {"usage": usage_body([generation.usage]), **self._tail, **hint_results(self._wishes)}
        return {**self._head, "object": "chat.completion", "choices": choices, **told}

    def begin(self, started: Sequence[Started]) -> Iterator[Frame]:
        for index in range(self._asked.n or 1):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def delta(self, rank: int, piece: Delta, texts: Mapping[int, str]) -> Iterator[Frame]:
        """The chunks that a piece of one choice becomes; none where all of it is kept back."""
        reader = self._readers.setdefault(piece.index, self._asked.reader())
        text, calls = reader.push(piece)
        logprobs = _logprobs(piece.logprobs, texts) if piece.logprobs else None
        if text or logprobs:
            yield self._chunk(piece.index, {"content": text}, logprobs)
        if calls:
            yield self._chunk(piece.index, {"tool_calls": [_call_delta(call) for call in calls]})
        if piece.finish_reason is not None:
            reason = _reason(piece.finish_reason, reader.calls(piece.tool_calls))
            yield self._chunk(piece.index, {}, reason=reason)

    def end(self, usages: Sequence[Usage]) -> Iterator[Frame]:
        hints = hint_results(self._wishes)
        if self._asked.include_usage or hints:
            usage = {"usage": usage_body(usages)} if self._asked.include_usage else {}
            kind = {"object": "chat.completion.chunk"}
            yield Frame({**self._head, **kind, "choices": [], **usage, **self._tail, **hints})
        yield DONE

    def broken(self, error: ApiError) -> Frame:
        return Frame(error_body(error))

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, Any],
        logprobs: Mapping[str, Any] | None = None,
        reason: str | None = None,
    ) -> Frame:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        usage = {"usage": None} if self._asked.include_usage else {}
        return Frame({**self._head, "object": "chat.completion.chunk", "choices": [choice], **usage, **self._tail})


def _reason(reason: FinishReason | None, calls: Sequence[ToolCall]) -> str:
    # Unless the reply was cut, also by a stop string within a call: then the last one is of no use.
    whole = bool(calls) and reason != "length" and calls[-1].is_whole()
    return "tool_calls" if whole else finish_reason(reason)


def _call_body(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _call_delta(call: ToolCallDelta) -> dict[str, Any]:
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def _logprobs(steps: Sequence[TokenLogprob], texts: Mapping[int, str]) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": texts[token], "logprob": logprob, "bytes": token_bytes(texts[token])}

    content = [
        {**entry(step.token_id, step.logprob), "top_logprobs": [entry(token, value) for token, value in step.top]}
        for step in steps
    ]
    return {"content": content, "refusal": None}
