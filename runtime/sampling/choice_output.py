"""From a sampled token to what the caller sees: text, stops and the reason to end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.events import DeltaEvent, FinishReason
from runtime.sampling.detokenizer import IncrementalDetokenizer
from runtime.sampling.sampler import SampledToken
from runtime.sampling.sampling_params import SamplingParams
from runtime.sampling.stop_strings import StopStringMatcher


class ChoiceOutput:
    """The output of one choice so far.

    Args:
        prompt: int32[n], the ids before the first generated one.
        max_tokens: generated tokens at most.
    """

    def __init__(
        self,
        index: int,
        tokenizer: Any,
        prompt: NDArray[np.int32],
        params: SamplingParams,
        max_tokens: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self.index = index
        self.token_ids: list[int] = []
        self._max_tokens = max_tokens
        self._eos = frozenset() if params.ignore_eos else eos_token_ids
        self._stop_ids = frozenset(params.stop_token_ids)
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt)
        self._stops = StopStringMatcher(params.stop)

    def push(self, token: SampledToken) -> DeltaEvent:
        """Take the next token; the returned delta carries a finish reason when it was the last."""
        token_id = token.token_id
        self.token_ids.append(token_id)
        reason: FinishReason | None = None
        stopped_by: str | None = None
        text = ""
        if token_id in self._stop_ids:
            reason, stopped_by = FinishReason.STOP, str(token_id)
        elif token_id in self._eos:
            reason = FinishReason.EOS
        else:
            text, stopped_by = self._stops.feed(self._detokenizer.append(token_id))
            if stopped_by is not None:
                reason = FinishReason.STOP
            elif len(self.token_ids) >= self._max_tokens:
                reason = FinishReason.LENGTH
        if reason is not None and (stopped_by is None or token_id in self._stop_ids):
            tail, late_stop = self._stops.feed(self._detokenizer.flush())
            text += tail
            if late_stop is None:
                text += self._stops.flush()
            else:
                reason, stopped_by = FinishReason.STOP, late_stop
        return DeltaEvent(
            index=self.index,
            text=text,
            token_ids=(token_id,),
            logprobs=(token,) if token.logprob is not None else (),
            finish_reason=reason,
            stopped_by=stopped_by,
        )
