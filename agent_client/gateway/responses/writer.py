"""What the runtime says, as a response: whole, or as its events in their order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...results import Delta, Generation, Started, TokenLogprob, ToolCall, Usage
from ..failures import INTERNAL, TOO_MANY, ApiError
from ..frames import Frame
from ..keeping import Wishes
from ..openai_shapes import hint_results, token_bytes
from .request import NAMES, Message, ResponsesRequest

# Told of a response that ended: its body, and what was said as a message of the chat.
Ended = Callable[[dict[str, Any], Message], None]


class ResponseWriter:
    """Writes one request's answer."""

    names = NAMES

    def __init__(self, asked: ResponsesRequest, request_id: str, wishes: Wishes, ended: Ended) -> None:
        self._asked = asked
        self._id = request_id
        self._wishes = wishes
        self._ended = ended
        self._reader = asked.reader()
        self._created = int(time.time())
        # Of the stream: events so far, items that are done, the one that is open, and how the reply ended.
        self._events = 0
        self._output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._opened_for: int | None = None
        self._cut = False

    def whole(self, generations: Sequence[Generation], texts: Mapping[int, str]) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        [generation] = generations
        choice = generation.choices[0]
        text, calls = self._reader.whole(choice)
        self._cut = choice.finish_reason == "length"
        if text or not calls:
            logprobs = self._logprobs(choice.logprobs, texts)
            self._output.append(self._message_item(text, logprobs, "incomplete" if self._cut else "completed"))
        for call in calls:
            self._output.append(self._call_item(len(self._output), call, _call_status(call)))
        return self._finished(generation.usage)

    def begin(self, started: Sequence[Started]) -> Iterator[Frame]:
        for event in ("created", "in_progress"):
            yield self._event(f"response.{event}", response=self._body("in_progress", [], None))

    def delta(self, rank: int, piece: Delta, texts: Mapping[int, str]) -> Iterator[Frame]:
        text, calls = self._reader.push(piece)
        if text:
            if self._open is None or self._opened_for is not None:
                yield from self._close()
                yield from self._begin_text()
            yield from self._more_text(text, self._logprobs(piece.logprobs, texts))
        for call in calls:
            if self._open is None or self._opened_for != call.index:
                yield from self._close()
                item = self._call_item(len(self._output), ToolCall(call.name or "", "", call.id), "in_progress")
                self._open, self._opened_for = item, call.index
                yield self._item_event("response.output_item.added", item=item)
            if call.arguments and self._open is not None:
                self._open["arguments"] += call.arguments
                kind = "response.function_call_arguments.delta"
                yield self._item_event(kind, item_id=self._open["id"], delta=call.arguments)
        if piece.finish_reason is not None:
            self._cut = piece.finish_reason == "length"
            if self._open is None and not self._output:
                yield from self._begin_text()
            yield from self._close()

    def end(self, usages: Sequence[Usage]) -> Iterator[Frame]:
        kind = "response.incomplete" if self._cut else "response.completed"
        yield self._event(kind, response=self._finished(usages[0]))

    def broken(self, error: ApiError) -> Frame:
        code = "rate_limit_exceeded" if error.status == TOO_MANY else "server_error"
        body = self._body("failed", self._output, None)
        body["error"] = {"code": code if error.status >= INTERNAL else "invalid_prompt", "message": error.message}
        return self._event("response.failed", response=body)

    # The answer's parts

    def _finished(self, usage: Usage) -> dict[str, Any]:
        body = self._body("incomplete" if self._cut else "completed", self._output, usage)
        text = "".join(part["text"] for item in self._output for part in item.get("content", ()))
        message: Message = {"role": "assistant", "content": text}
        calls = [item for item in self._output if item["type"] == "function_call" and item["status"] == "completed"]
        if calls:
            message["tool_calls"] = [_as_chat_call(item) for item in calls]
        self._ended(body, message)
        return body

    def _body(self, status: str, output: Sequence[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        asked = self._asked
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": asked.model,
            "output": list(output),
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": asked.previous_response_id,
            "prompt_cache_key": asked.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None},
            "store": asked.keeps,
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "text": {"format": (asked.text and asked.text.format) or {"type": "text"}},
            "tool_choice": asked.tool_choice or "auto",
            "tools": asked.tools or [],
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            "user": asked.user,
            **hint_results(self._wishes),
        }

    def _message_item(self, text: str, logprobs: list[dict[str, Any]], status: str) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
        return {
            "id": f"msg_{self._id}_{len(self._output)}",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [part],
        }

    def _call_item(self, rank: int, call: ToolCall, status: str) -> dict[str, Any]:
        return {
            "id": f"fc_{self._id}_{rank}",
            "type": "function_call",
            "status": status,
            "call_id": call.id or f"call_{self._id}_{rank}",
            "name": call.name,
            "arguments": call.arguments,
        }

    def _logprobs(self, steps: Sequence[TokenLogprob], texts: Mapping[int, str]) -> list[dict[str, Any]]:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            return {"token": texts[token], "bytes": token_bytes(texts[token]) or [], "logprob": logprob}

        return [
            {**entry(step.token_id, step.logprob), "top_logprobs": [entry(token, value) for token, value in step.top]}
            for step in steps
        ]

    # The stream

    def _begin_text(self) -> Iterator[Frame]:
        item = self._message_item("", [], "in_progress")
        self._open, self._opened_for = item, None
        yield self._item_event("response.output_item.added", item={**item, "content": []})
        part = dict(item["content"][0])
        yield self._item_event("response.content_part.added", item_id=item["id"], content_index=0, part=part)

    def _more_text(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Frame]:
        item = self._open
        if item is not None:
            item["content"][0]["text"] += text
            item["content"][0]["logprobs"] += logprobs
            place = {"item_id": item["id"], "content_index": 0}
            yield self._item_event("response.output_text.delta", **place, delta=text, logprobs=logprobs)

    def _close(self) -> Iterator[Frame]:
        item, self._open = self._open, None
        if item is None:
            return
        place = {"item_id": item["id"]}
        if item["type"] == "message":
            item["status"] = "incomplete" if self._cut else "completed"
            part = item["content"][0]
            told = {"content_index": 0, "text": part["text"], "logprobs": part["logprobs"]}
            yield self._item_event("response.output_text.done", **place, **told)
            yield self._item_event("response.content_part.done", **place, content_index=0, part=part)
        else:
            told = {"name": item["name"], "arguments": item["arguments"]}
            item["status"] = _call_status(ToolCall(**told))
            yield self._item_event("response.function_call_arguments.done", **place, **told)
        yield self._item_event("response.output_item.done", item=item)
        self._output.append(item)

    def _item_event(self, kind: str, **fields: Any) -> Frame:
        return self._event(kind, output_index=len(self._output), **fields)

    def _event(self, kind: str, **fields: Any) -> Frame:
        frame = Frame({"type": kind, "sequence_number": self._events, **fields}, kind)
        self._events += 1
        return frame


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }


def _call_status(call: ToolCall) -> str:
    return "completed" if call.is_whole() else "incomplete"


def _as_chat_call(item: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}
