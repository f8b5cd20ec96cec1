"""What goes out by gRPC, made from the runtime's own types."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from radixloop.v1 import common_pb2, inference_pb2

from radix import Namespace
from runtime.access.caller import current_caller
from runtime.events import DeltaEvent, FinishedEvent, FinishReason, StartedEvent, Timing, Usage
from runtime.sampling.sampler import SampledToken
from runtime.services.convert import Tokens
from runtime.services.verdicts import verdict_message
from runtime.tool_calls import CallPiece, CallReader, ParsedToolCall, Pieces

_REASONS = {
    FinishReason.EOS: inference_pb2.FINISH_REASON_EOS,
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}


class ReplyWriter:
    """Writes one request's stream. For a chat it tells the calls in each choice's text from the rest."""

    def __init__(
        self,
        request_id: str,
        prompt: Tokens,
        *,
        return_prompt_ids: bool,
        reader: Callable[[], CallReader] | None,
    ) -> None:
        """`reader` makes what finds the calls of one choice; None where the prompt is no chat."""
        self._request_id = request_id
        self._prompt = prompt
        self._return_prompt_ids = return_prompt_ids
        self._make_reader = reader
        self._readers: dict[int, CallReader] = {}
        self._texts: dict[int, list[str]] = {}

    def started(
        self, event: StartedEvent, parted: common_pb2.Divergence | None = None
    ) -> inference_pb2.GenerateResponse:
        """The first message of the stream; `parted` where its prompt parted from what is stored, if that was asked."""
        prompt_ids = token_ids(self._prompt) if self._return_prompt_ids else None
        return inference_pb2.GenerateResponse(
            started=inference_pb2.Started(
                request_id=self._request_id,
                usage=usage_message(event.usage),
                prompt_ids=prompt_ids,
                verdict=None if event.verdict is None else verdict_message(event.verdict, time.monotonic()),
                divergence=parted,
            )
        )

    def delta(self, event: DeltaEvent) -> inference_pb2.GenerateResponse:
        """New tokens of one choice; a chat choice's last one carries the whole tool calls."""
        message = inference_pb2.Delta(
            index=event.index,
            text=event.text,
            token_ids=event.token_ids,
            logprobs=[_logprob_step(step) for step in event.logprobs],
            finish_reason=None if event.finish_reason is None else _REASONS[event.finish_reason],
            stopped_by=event.stopped_by,
        )
        if self._make_reader is not None:
            self._read(self._make_reader, event, message)
        return inference_pb2.GenerateResponse(delta=message)

    def _read(self, make: Callable[[], CallReader], event: DeltaEvent, message: inference_pb2.Delta) -> None:
        self._texts.setdefault(event.index, []).append(event.text)
        reader = self._readers.get(event.index)
        if reader is None:
            reader = self._readers[event.index] = make()
        found = [reader.feed(event.text)]
        if event.finish_reason is not None:
            found.append(reader.finish(cut=event.finish_reason is not FinishReason.EOS))
            message.tool_calls.extend(common_pb2.ToolCall(**call) for call in reader.calls)
        _tell(found, message)

    def finished(self, event: FinishedEvent, session_tokens: int | None) -> inference_pb2.GenerateResponse:
        """The last message of the stream."""
        return inference_pb2.GenerateResponse(
            finished=inference_pb2.Finished(
                usage=usage_message(event.usage), timing=_timing_message(event.timing), session_tokens=session_tokens
            )
        )

    def tool_names(self) -> set[str]:
        """The tools that the finished choices call."""
        return {call["name"] for reader in self._readers.values() for call in reader.calls}

    def assistant_message(self, index: int) -> dict[str, Any]:
        """What a chat choice said, in the shape that clients send it back."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._texts.get(index, ()))}
        calls: Sequence[ParsedToolCall] = self._readers[index].calls if index in self._readers else ()
        if calls:
            message["tool_calls"] = [
                {
                    "type": "function",
                    "id": call["id"],
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in calls
            ]
        return message


def token_ids(tokens: Tokens) -> common_pb2.TokenIds:
    """Token ids as packed integers, which every client reads without help."""
    return common_pb2.TokenIds(ids=tokens.tolist())


def usage_message(usage: Usage) -> common_pb2.Usage:
    return common_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        cached_by_tier=common_pb2.CachedTokens(
            device=usage.cached_tokens - usage.host_tokens - usage.disk_tokens,
            host=usage.host_tokens,
            disk=usage.disk_tokens,
        ),
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


def _tell(found: list[Pieces], message: inference_pb2.Delta) -> None:
    message.content = "".join(pieces.content for pieces in found)
    message.tool_call_deltas.extend(_call_delta(piece) for pieces in found for piece in pieces.calls)


def _call_delta(piece: CallPiece) -> inference_pb2.ToolCallDelta:
    return inference_pb2.ToolCallDelta(index=piece.index, id=piece.id, name=piece.name, arguments=piece.arguments)


def _logprob_step(step: SampledToken) -> inference_pb2.LogprobStep:
    return inference_pb2.LogprobStep(
        sampled=inference_pb2.TokenLogprob(token_id=step.token_id, logprob=step.logprob),
        top=[inference_pb2.TokenLogprob(token_id=token, logprob=logprob) for token, logprob in step.top],
    )
