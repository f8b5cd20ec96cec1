"""What a request adds to the logits before a token is chosen: logit bias, then the three penalties."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from runtime.sampling.sampling_params import SamplingParams


class Penalties:
    """Bias and penalties of one choice, brought up to date token by token.

    The order is that of transformers: logit bias, repetition penalty (over prompt and output, through
    transformers' own processor), then presence and frequency penalties (over the output alone, subtracted).
    """

    def __init__(self, params: SamplingParams, prompt: npt.NDArray[np.int32], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._bias_ids = torch.tensor(list(params.logit_bias.keys()), dtype=torch.int64)
        self._bias = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32)
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        self._repetition: RepetitionPenaltyLogitsProcessor | None = None
        self._prompt_ids: npt.NDArray[np.int32] = np.empty(0, np.int32)
        if params.repetition_penalty != 1.0:
            self._repetition = RepetitionPenaltyLogitsProcessor(float(params.repetition_penalty))
            known = np.unique(prompt)
            # An embedding may have more rows than the output head: such ids can never be generated.
            self._prompt_ids = known[(known >= 0) & (known < vocab_size)]
        self._reset()

    @property
    def active(self) -> bool:
        """False when `apply` would return its input."""
        return self._counts_output or self._repetition is not None or len(self._bias_ids) > 0

    def apply(self, scores: torch.Tensor, output: list[int]) -> torch.Tensor:
        """Adjusted float32 [1, vocab] scores on the CPU; `scores` is left alone. `output` is what the choice wrote."""
        self._catch_up(output)
        if len(self._bias_ids):
            scores = scores.index_add(1, self._bias_ids, self._bias[None])
        if self._repetition is not None:
            scores = self._repetition(self._seen_ids, scores)
        if self._counts_output:
            scores = scores - self._subtract
        return scores

    @property
    def _counts_output(self) -> bool:
        return self._presence != 0.0 or self._frequency != 0.0

    def _reset(self) -> None:
        self._read = 0
        self._written: set[int] = set()
        if self._repetition is not None:
            self._seen = np.zeros(self._vocab_size, dtype=np.bool_)
            self._seen[self._prompt_ids] = True
            self._refresh_seen_ids()
        if self._counts_output:
            self._subtract = torch.zeros(self._vocab_size)

    def _catch_up(self, output: list[int]) -> None:
        if len(output) < self._read:
            self._reset()
        grown = False
        for token in output[self._read :]:
            first = token not in self._written
            self._written.add(token)
            if self._counts_output:
                self._subtract[token] += self._frequency + (self._presence if first else 0.0)
            if self._repetition is not None and not self._seen[token]:
                self._seen[token] = True
                grown = True
        self._read = len(output)
        if grown:
            self._refresh_seen_ids()

    def _refresh_seen_ids(self) -> None:
        # Each id once: the penalty does not depend on how often a token occurred, and a prompt can be very long.
        self._seen_ids = torch.from_numpy(np.flatnonzero(self._seen))[None]
