"""What goes out by gRPC, made from the runtime's own types."""

from __future__ import annotations

import time
from typing import Any

from radixloop.v1 import common_pb2, inference_pb2

from radix import Namespace
from runtime.access.caller import current_caller
from runtime.convert import Tokens
from runtime.events import DeltaEvent, FinishedEvent, FinishReason, StartedEvent, Timing, Usage
from runtime.sampler import SampledToken
from runtime.tool_calls import ParsedToolCall, parse_tool_calls
from runtime.verdicts import verdict_message

_REASONS = {
    FinishReason.EOS: inference_pb2.FINISH_REASON_EOS,
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}


class ReplyWriter:
    """Writes one request's stream. For a chat it keeps the text of each choice, to find the tool calls in it."""

    def __init__(self, request_id: str, prompt: Tokens, *, return_prompt_ids: bool, chat: bool) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._return_prompt_ids = return_prompt_ids
        self._texts: dict[int, list[str]] | None = {} if chat else None
        self._calls: dict[int, list[ParsedToolCall]] = {}

    def started(self, event: StartedEvent) -> inference_pb2.GenerateResponse:
        """The first message of the stream."""
        prompt_ids = token_ids(self._prompt) if self._return_prompt_ids else None
        return inference_pb2.GenerateResponse(
            started=inference_pb2.Started(
                request_id=self._request_id,
                usage=usage_message(event.usage),
                prompt_ids=prompt_ids,
                verdict=None if event.verdict is None else verdict_message(event.verdict, time.monotonic()),
            )
        )

    def delta(self, event: DeltaEvent) -> inference_pb2.GenerateResponse:
        """New tokens of one choice; a chat choice's last one carries the tool calls."""
        calls: list[ParsedToolCall] = []
        if self._texts is not None:
            self._texts.setdefault(event.index, []).append(event.text)
            if event.finish_reason is not None:
                calls = self._calls[event.index] = parse_tool_calls(self._text(event.index))
        return inference_pb2.GenerateResponse(
            delta=inference_pb2.Delta(
                index=event.index,
                text=event.text,
                token_ids=event.token_ids,
                logprobs=[_logprob_step(step) for step in event.logprobs],
                finish_reason=None if event.finish_reason is None else _REASONS[event.finish_reason],
                stopped_by=event.stopped_by,
                tool_calls=[common_pb2.ToolCall(**call) for call in calls],
            )
        )

    def finished(self, event: FinishedEvent, session_tokens: int | None) -> inference_pb2.GenerateResponse:
        """The last message of the stream."""
        return inference_pb2.GenerateResponse(
            finished=inference_pb2.Finished(
                usage=usage_message(event.usage), timing=_timing_message(event.timing), session_tokens=session_tokens
            )
        )

    def tool_names(self) -> set[str]:
        """The tools that the finished choices call."""
        return {call["name"] for calls in self._calls.values() for call in calls}

    def assistant_message(self, index: int) -> dict[str, Any]:
        """What a chat choice said, in the shape that clients send it back."""
        message: dict[str, Any] = {"role": "assistant", "content": self._text(index)}
        if calls := self._calls.get(index):
            message["tool_calls"] = [
                {
                    "type": "function",
                    "id": call["id"],
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in calls
            ]
        return message

    def _text(self, index: int) -> str:
        return "".join(self._texts.get(index, ())) if self._texts is not None else ""


def token_ids(tokens: Tokens) -> common_pb2.TokenIds:
    """Token ids as packed integers, which every client reads without help."""
    return common_pb2.TokenIds(ids=tokens.tolist())


def usage_message(usage: Usage) -> common_pb2.Usage:
    return common_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        cached_by_tier=common_pb2.CachedTokens(device=usage.cached_tokens),
        output_tokens=usage.output_tokens,
        computed_tokens=usage.computed_tokens,
    )


def namespace_message(namespace: Namespace) -> common_pb2.Namespace:
    """The parts of a namespace that clients set, as the caller that is answered calls them."""
    return common_pb2.Namespace(salt=current_caller().salt_told(namespace), adapter=namespace.adapter)


def _timing_message(timing: Timing) -> inference_pb2.Timing:
    return inference_pb2.Timing(
        queue_s=timing.queue_s,
        prefill_s=timing.prefill_s,
        ttft_s=timing.ttft_s,
        itl_p50_s=timing.itl_p50_s,
        itl_p95_s=timing.itl_p95_s,
        itl_p99_s=timing.itl_p99_s,
        total_s=timing.total_s,
        preemptions=timing.preemptions,
    )


def _logprob_step(step: SampledToken) -> inference_pb2.LogprobStep:
    return inference_pb2.LogprobStep(
        sampled=inference_pb2.TokenLogprob(token_id=step.token_id, logprob=step.logprob),
        top=[inference_pb2.TokenLogprob(token_id=token, logprob=logprob) for token, logprob in step.top],
    )
