"""How a request wants its tokens chosen, checked once at the door."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field

from runtime.errors import InvalidRequest

MAX_CHOICES = 64
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_LOGIT_BIASES = 1024
MAX_STOP_TOKEN_IDS = 256


@dataclass(frozen=True)
class SamplingParams:
    """Sampling settings of one request. `temperature` 0 is greedy; `top_k` 0 keeps all tokens."""

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: bool = False
    top_logprobs: int = 0
    clip_max_tokens: bool = False

    def validate(self, vocab_size: int) -> None:
        """Raise InvalidRequest for the first field outside its limit."""
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequest("sampling.max_tokens", self.max_tokens, "must be at least 1")
        _within("sampling.temperature", self.temperature, 0.0, 100.0)
        if self.top_k < 0:
            raise InvalidRequest("sampling.top_k", self.top_k, "must be at least 0 (0 keeps all)")
        _within("sampling.top_p", self.top_p, 0.0, 1.0, open_low=True)
        _within("sampling.min_p", self.min_p, 0.0, 1.0)
        # Below, a logit that is divided by it may leave the range of float32.
        _within("sampling.repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _within("sampling.presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("sampling.frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if not 1 <= self.n <= MAX_CHOICES:
            raise InvalidRequest("sampling.n", self.n, f"must be from 1 to {MAX_CHOICES}")
        if not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidRequest("sampling.top_logprobs", self.top_logprobs, f"must be from 0 to {MAX_TOP_LOGPROBS}")
        check_counts(self.stop, self.stop_token_ids, self.logit_bias)
        for text in self.stop:
            if not 1 <= len(text.encode("utf-8", "surrogatepass")) <= MAX_STOP_BYTES:
                raise InvalidRequest("sampling.stop", text, f"each stop string takes 1 to {MAX_STOP_BYTES} bytes")
        for token in self.stop_token_ids:
            _check_token("sampling.stop_token_ids", token, vocab_size)
        for token, bias in self.logit_bias.items():
            _check_token("sampling.logit_bias", token, vocab_size)
            _within(f"sampling.logit_bias[{token}]", bias, -100.0, 100.0)


def check_counts(stop: Sized, stop_token_ids: Sized, logit_bias: Sized) -> None:
    """Raise InvalidRequest where there are more of these than may be.

    For messages before they are converted: one has room for so many that this would hold up everybody's calls.
    """
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequest("sampling.stop", len(stop), f"at most {MAX_STOP_STRINGS} stop strings")
    if len(stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest("sampling.stop_token_ids", len(stop_token_ids), f"at most {MAX_STOP_TOKEN_IDS}")
    if len(logit_bias) > MAX_LOGIT_BIASES:
        raise InvalidRequest("sampling.logit_bias", len(logit_bias), f"at most {MAX_LOGIT_BIASES} entries")


def _check_token(name: str, token: int, vocab_size: int) -> None:
    if not 0 <= token < vocab_size:
        raise InvalidRequest(name, token, f"token ids of this model go from 0 to {vocab_size - 1}")


def _within(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    below = value <= low if open_low else value < low
    if not math.isfinite(value) or below or value > high:
        bracket = "(" if open_low else "["
        raise InvalidRequest(name, value, f"must be a number in {bracket}{low:g}, {high:g}]")
