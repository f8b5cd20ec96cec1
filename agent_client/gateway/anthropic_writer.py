"""What the runtime says, in the words of Anthropic's messages: whole, or as its events in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..results import Choice, Delta, Generation, Started, ToolCall, ToolCallDelta, Usage
from .anthropic_messages import NAMES, MessagesRequest
from .failures import INTERNAL, NOT_FOUND, TOO_LARGE, TOO_LONG, TOO_MANY, UNAUTHORIZED, UNAVAILABLE, ApiError
from .frames import Frame
from .keeping import Wishes
from .openai_shapes import hint_results

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
    told = f"prompt is too long: {error.message}" if error.code == TOO_LONG else error.message
    return {"type": "error", "error": {"type": kind, "message": told}}


def usage_body(usage: Usage, written: Mapping[str, int]) -> dict[str, Any]:
    """The books: the three counts of input sum to the prompt.

    Every prompt is cached here, marked or not. What was computed counts as written to the cache as far as a
    `cache_control` marks it, by the time that it is kept for, and as plain input otherwise.
    """
    creation = sum(written.values())
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - creation,
        "cache_creation_input_tokens": creation,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation": {f"ephemeral_{ttl}_input_tokens": tokens for ttl, tokens in written.items()},
        "output_tokens": usage.output_tokens,
    }


class MessagesWriter:
    """Writes one request's answer."""

    names = NAMES

    def __init__(self, asked: MessagesRequest, request_id: str, wishes: Wishes) -> None:
        self._head = {"id": f"msg_{request_id}", "type": "message", "role": "assistant", "model": asked.model}
        self._wishes = wishes
        self._reader = asked.reader()
        # Of the stream: the block that is open or comes next, what it is, and how the reply ended.
        self._index = 0
        self._open: str | None = None
        self._stop: dict[str, Any] = {}

    def whole(self, generations: Sequence[Generation], texts: Mapping[int, str]) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        [generation] = generations
        choice = generation.choices[0]
        text, calls = self._reader.whole(choice)
        content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        # A call that the limit cut has no input that could be told.
        content += [{**_tool_use(call), "input": call.parsed()} for call in calls if call.is_whole()]
        told = {"usage": self._usage(generation.usage), **hint_results(self._wishes)}
        return {**self._head, "content": content, **_stop(choice, calls), **told}

    def begin(self, started: Sequence[Started]) -> Iterator[Frame]:
        stop = {"stop_reason": None, "stop_sequence": None}
        usage = self._usage(started[0].usage)
        yield _frame("message_start", message={**self._head, "content": [], **stop, "usage": usage})

    def delta(self, rank: int, piece: Delta, texts: Mapping[int, str]) -> Iterator[Frame]:
        text, calls = self._reader.push(piece)
        if text:
            yield from self._enter("text", {"type": "text", "text": ""})
            yield self._frame("content_block_delta", delta={"type": "text_delta", "text": text})
        for call in calls:
            yield from self._enter(f"call {call.index}", {**_tool_use(call), "input": {}})
            if call.arguments:
                delta = {"type": "input_json_delta", "partial_json": call.arguments}
                yield self._frame("content_block_delta", delta=delta)
        if piece.finish_reason is not None:
            yield from self._leave()
            self._stop = _stop(piece, self._reader.calls(piece.tool_calls))

    def end(self, usages: Sequence[Usage]) -> Iterator[Frame]:
        yield _frame("message_delta", delta=self._stop, usage=self._usage(usages[0]), **hint_results(self._wishes))
        yield _frame("message_stop")

    def broken(self, error: ApiError) -> Frame:
        return Frame(error_body(error), "error")

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return usage_body(usage, self._wishes.written(usage))

    def _frame(self, event: str, **fields: Any) -> Frame:
        return _frame(event, index=self._index, **fields)

    def _enter(self, what: str, block: Mapping[str, Any]) -> Iterator[Frame]:
        """Opens a block, unless it is the one that is open."""
        if self._open != what:
            yield from self._leave()
            self._open = what
            yield self._frame("content_block_start", content_block=block)

    def _leave(self) -> Iterator[Frame]:
        if self._open is not None:
            yield self._frame("content_block_stop")
            self._index += 1
            self._open = None


def _frame(event: str, **fields: Any) -> Frame:
    return Frame({"type": event, **fields}, event)


def _tool_use(call: ToolCall | ToolCallDelta) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name}


def _stop(said: Choice | Delta, calls: Sequence[ToolCall]) -> dict[str, Any]:
    if said.finish_reason == "length":
        reason = "max_tokens"
    elif calls and calls[-1].is_whole():
        reason = "tool_use"
    else:
        reason = "stop_sequence" if said.finish_reason == "stop" else "end_turn"
    return {"stop_reason": reason, "stop_sequence": said.stopped_by if reason == "stop_sequence" else None}
