"""What the runtime says, in the words of Anthropic's messages: whole, or as its events in their order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..results import Choice, Delta, Generation, Started, ToolCall, Usage
from .anthropic_messages import MessagesRequest
from .failures import INTERNAL, NOT_FOUND, TOO_LARGE, TOO_MANY, UNAUTHORIZED, UNAVAILABLE, ApiError
from .frames import Frame
from .tool_text import ToolText

_ERROR_TYPES = {
    UNAUTHORIZED: "authentication_error",
    NOT_FOUND: "not_found_error",
    TOO_LARGE: "request_too_large",
    TOO_MANY: "rate_limit_error",
    UNAVAILABLE: "overloaded_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """An error in Anthropic's format."""
    kind = _ERROR_TYPES.get(error.status, "api_error" if error.status >= INTERNAL else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def usage_body(usage: Usage, marks_cache: bool) -> dict[str, Any]:
    """The books: the three counts of input sum to the prompt.

    Every prompt is cached here, marked or not. What was computed counts as written to the cache where the request
    asked for that by `cache_control`, and as plain input otherwise.
    """
    computed = usage.prompt_tokens - usage.cached_tokens
    return {
        "input_tokens": 0 if marks_cache else computed,
        "cache_creation_input_tokens": computed if marks_cache else 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }


class MessagesWriter:
    """Writes one request's answer."""

    def __init__(self, asked: MessagesRequest, request_id: str) -> None:
        self._asked = asked
        self._head = {"id": f"msg_{request_id}", "type": "message", "role": "assistant", "model": asked.model}
        self._marks_cache = asked.marks_cache
        self._text = ToolText()
        # Of the stream: the block that is open or comes next, and how the reply ended.
        self._index = 0
        self._open = False
        self._stop: dict[str, Any] = {}

    def whole(self, generations: Sequence[Generation], texts: Mapping[int, str]) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        [generation] = generations
        choice = generation.choices[0]
        text, calls = choice.text, self._calls(choice.tool_calls)
        if self._asked.reads_calls:
            text = self._text.push(text) + self._text.end(bool(calls))
        content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        content += [{**_tool_use(call), "input": json.loads(call.arguments)} for call in calls]
        usage = usage_body(generation.usage, self._marks_cache)
        return {**self._head, "content": content, **_stop(choice, calls), "usage": usage}

    def begin(self, started: Sequence[Started]) -> Iterator[Frame]:
        stop = {"stop_reason": None, "stop_sequence": None}
        message: dict[str, Any] = {
            **self._head,
            "content": [],
            **stop,
            "usage": usage_body(started[0].usage, self._marks_cache),
        }
        yield _frame("message_start", message=message)

    def delta(self, rank: int, piece: Delta, texts: Mapping[int, str]) -> Iterator[Frame]:
        text, calls = piece.text, self._calls(piece.tool_calls)
        if self._asked.reads_calls:
            text = self._text.push(text)
            if piece.finish_reason is not None:
                text += self._text.end(bool(calls))
        if text:
            if not self._open:
                self._open = True
                yield self._frame("content_block_start", content_block={"type": "text", "text": ""})
            yield self._frame("content_block_delta", delta={"type": "text_delta", "text": text})
        if piece.finish_reason is None:
            return
        if self._open:
            yield from self._close()
        for call in calls:
            yield self._frame("content_block_start", content_block={**_tool_use(call), "input": {}})
            delta = {"type": "input_json_delta", "partial_json": call.arguments}
            yield self._frame("content_block_delta", delta=delta)
            yield from self._close()
        self._stop = _stop(piece, calls)

    def end(self, usages: Sequence[Usage]) -> Iterator[Frame]:
        yield _frame("message_delta", delta=self._stop, usage=usage_body(usages[0], self._marks_cache))
        yield _frame("message_stop")

    def broken(self, error: ApiError) -> Frame:
        return Frame(error_body(error), "error")

    def _calls(self, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
        if not self._asked.reads_calls:
            return ()
        return calls[:1] if self._asked.one_call else calls

    def _frame(self, event: str, **fields: Any) -> Frame:
        return _frame(event, index=self._index, **fields)

    def _close(self) -> Iterator[Frame]:
        yield self._frame("content_block_stop")
        self._index += 1
        self._open = False


def _frame(event: str, **fields: Any) -> Frame:
    return Frame({"type": event, **fields}, event)


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name}


def _stop(said: Choice | Delta, calls: Sequence[ToolCall]) -> dict[str, Any]:
    if said.finish_reason == "length":
        reason = "max_tokens"
    elif calls:
        reason = "tool_use"
    else:
        reason = "stop_sequence" if said.finish_reason == "stop" else "end_turn"
    return {"stop_reason": reason, "stop_sequence": said.stopped_by if reason == "stop_sequence" else None}
