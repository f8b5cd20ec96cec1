"""What goes out by VllmEngine's Generate, made from the engine's events."""

from __future__ import annotations

from collections.abc import Iterator

from smg_grpc_proto import vllm_engine_pb2

from runtime.events import DeltaEvent, FinishReason, StartedEvent
from runtime.sampling.sampler import SampledToken
from runtime.sampling.sampling_params import SamplingParams

_REASONS = {FinishReason.EOS: "stop", FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class VllmReplyWriter:
    """Writes one request's stream: chunks with what is new, where the caller streams, and at the end of each choice
    everything that it holds.

    In a stream the whole choice comes without its logprobs, which the chunks carried.
    """

    def __init__(self, prompt_tokens: int, sampling: SamplingParams, *, stream: bool) -> None:
        self._prompt_tokens = prompt_tokens
        self._sampling = sampling
        self._stream = stream
        self._cached_tokens = 0
        self._ids: dict[int, list[int]] = {index: [] for index in range(sampling.n)}
        self._logprobs: dict[int, list[SampledToken]] = {index: [] for index in range(sampling.n)}
        self._open = set(range(sampling.n))

    def started(self, event: StartedEvent) -> None:
        """Take note of what the cache gave: every message says it."""
        self._cached_tokens = event.usage.cached_tokens

    def delta(self, event: DeltaEvent) -> Iterator[vllm_engine_pb2.GenerateResponse]:
        """The messages for new tokens of one choice."""
        self._ids[event.index] += event.token_ids
        if self._stream:
            yield vllm_engine_pb2.GenerateResponse(
                chunk=vllm_engine_pb2.GenerateStreamChunk(
                    token_ids=event.token_ids,
                    prompt_tokens=self._prompt_tokens,
                    # As vLLM counts: those of this chunk, which the caller adds up.
                    completion_tokens=len(event.token_ids),
                    cached_tokens=self._cached_tokens,
                    output_logprobs=self._logprobs_message(event.logprobs),
                    index=event.index,
                )
            )
        else:
            self._logprobs[event.index] += event.logprobs
        if event.finish_reason is not None:
            yield self._complete(event.index, _REASONS[event.finish_reason], event)

    def aborted(self) -> Iterator[vllm_engine_pb2.GenerateResponse]:
        """The messages that end the choices which were not done."""
        for index in sorted(self._open):
            yield self._complete(index, "abort", None)

    def _complete(self, index: int, reason: str, last: DeltaEvent | None) -> vllm_engine_pb2.GenerateResponse:
        self._open.discard(index)
        ids = self._ids[index]
        complete = vllm_engine_pb2.GenerateComplete(
            output_ids=ids,
            finish_reason=reason,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(ids),
            cached_tokens=self._cached_tokens,
            output_logprobs=self._logprobs_message(self._logprobs[index]),
            index=index,
        )
        if last is not None and last.stopped_by is not None:
            if ids[-1] in self._sampling.stop_token_ids:
                complete.matched_token_id = ids[-1]
            else:
                complete.matched_stop_str = last.stopped_by
        return vllm_engine_pb2.GenerateResponse(complete=complete)

    def _logprobs_message(
        self, tokens: list[SampledToken] | tuple[SampledToken, ...]
    ) -> vllm_engine_pb2.OutputLogProbs | None:
        if not tokens:
            return None
        return vllm_engine_pb2.OutputLogProbs(
            token_logprobs=[token.logprob for token in tokens],
            token_ids=[token.token_id for token in tokens],
            top_logprobs=[
                vllm_engine_pb2.TopLogProbs(
                    values=[logprob for _, logprob in token.top], token_ids=[i for i, _ in token.top]
                )
                for token in tokens
                if self._sampling.top_logprobs
            ],
        )
