"""A stream's messages as events, and all of them folded into one result."""

from __future__ import annotations

from radixloop.v1 import common_pb2, inference_pb2

from .errors import Internal
from .prompts import ids_from_proto
from .results import (
    Choice,
    Delta,
    Event,
    Finished,
    FinishReason,
    Generation,
    Started,
    Timing,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
)
from .results import Usage as UsageResult
from .verdicts import divergence_from_proto, verdict_from_proto

_FINISH: dict[int, FinishReason] = {
    inference_pb2.FINISH_REASON_EOS: "eos",
    inference_pb2.FINISH_REASON_STOP: "stop",
    inference_pb2.FINISH_REASON_LENGTH: "length",
}


def usage_from_proto(usage: common_pb2.Usage) -> UsageResult:
    tiers = {field.name: value for field, value in usage.cached_by_tier.ListFields()}
    return UsageResult(usage.prompt_tokens, usage.cached_tokens, usage.output_tokens, usage.computed_tokens, tiers)


def event_from_proto(message: inference_pb2.GenerateResponse) -> Event | None:
    """The event in a stream message; None for a kind that this client does not know yet."""
    kind = message.WhichOneof("event")
    if kind == "delta":
        return _delta(message.delta)
    if kind == "started":
        started = message.started
        ids = ids_from_proto(started.prompt_ids) if started.HasField("prompt_ids") else None
        verdict = verdict_from_proto(started.verdict) if started.HasField("verdict") else None
        parted = divergence_from_proto(started.divergence) if started.HasField("divergence") else None
        return Started(started.request_id, usage_from_proto(started.usage), ids, verdict, parted)
    if kind == "finished":
        finished = message.finished
        timing = Timing(**{name: getattr(finished.timing, name) for name in Timing.__dataclass_fields__})
        session_tokens = finished.session_tokens if finished.HasField("session_tokens") else None
        return Finished(usage_from_proto(finished.usage), timing, session_tokens)
    return None


def _delta(delta: inference_pb2.Delta) -> Delta:
    return Delta(
        index=delta.index,
        text=delta.text,
        token_ids=tuple(delta.token_ids),
        logprobs=tuple(
            TokenLogprob(step.sampled.token_id, step.sampled.logprob, tuple((t.token_id, t.logprob) for t in step.top))
            for step in delta.logprobs
        ),
        finish_reason=_FINISH.get(delta.finish_reason) if delta.HasField("finish_reason") else None,
        stopped_by=delta.stopped_by if delta.HasField("stopped_by") else None,
        tool_calls=tuple(
            ToolCall(call.name, call.arguments, call.id if call.HasField("id") else None) for call in delta.tool_calls
        ),
        content=delta.content if delta.HasField("content") else None,
        tool_call_deltas=tuple(map(_tool_call_delta, delta.tool_call_deltas)),
    )


def _tool_call_delta(piece: inference_pb2.ToolCallDelta) -> ToolCallDelta:
    return ToolCallDelta(
        piece.index,
        piece.arguments,
        piece.id if piece.HasField("id") else None,
        piece.name if piece.HasField("name") else None,
    )


class Fold:
    """Collects a stream's events into a `Generation`."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.finished: Finished | None = None
        self._choices: dict[int, Choice] = {}
        self._texts: dict[int, list[str]] = {}
        self._contents: dict[int, list[str]] = {}

    def add(self, event: Event) -> None:
        if isinstance(event, Delta):
            choice = self._choices.get(event.index)
            if choice is None:
                choice = self._choices[event.index] = Choice(event.index)
                self._texts[event.index] = []
            self._texts[event.index].append(event.text)
            choice.token_ids.extend(event.token_ids)
            choice.logprobs.extend(event.logprobs)
            choice.finish_reason = event.finish_reason or choice.finish_reason
            choice.stopped_by = event.stopped_by if event.stopped_by is not None else choice.stopped_by
            choice.tool_calls += event.tool_calls
            if event.content is not None:
                self._contents.setdefault(event.index, []).append(event.content)
        elif isinstance(event, Started):
            self.started = event
        else:
            self.finished = event

    def result(self) -> Generation:
        """Raises Internal when the stream ended before its last message."""
        if self.started is None or self.finished is None:
            raise Internal("the stream ended before its last message")
        for index, texts in self._texts.items():
            self._choices[index].text = "".join(texts)
        for index, contents in self._contents.items():
            self._choices[index].content = "".join(contents)
        return Generation(
            request_id=self.started.request_id,
            usage=self.finished.usage,
            timing=self.finished.timing,
            choices=[self._choices[index] for index in sorted(self._choices)] or [Choice(0)],
            prompt_ids=self.started.prompt_ids,
            session_tokens=self.finished.session_tokens,
            verdict=self.started.verdict,
        )
