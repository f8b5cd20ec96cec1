"""What the engine tells the owner of a request, in order: started, deltas, then finished or failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from radix import Verdict
from runtime.sampling.sampler import SampledToken


class FinishReason(Enum):
    """Why a choice ended: the model's end token, a stop of the request, or its token limit."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request.

    Attributes:
        cached_tokens: prompt tokens found in the cache at first admission, in whatever tier.
        host_tokens, disk_tokens: of these, fetched from host memory and from disk.
        computed_tokens: prompt tokens that went through a forward pass; more than the misses after a preemption.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    computed_tokens: int
    host_tokens: int = 0
    disk_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `queue_s` ends at first admission, `prefill_s` with the prompt's last forward pass."""

    queue_s: float
    prefill_s: float
    ttft_s: float
    itl_p50_s: float
    itl_p95_s: float
    itl_p99_s: float
    total_s: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class StartedEvent:
    """The request was admitted. `verdict`: why each prompt token hit or missed; None when it bypassed the cache."""

    usage: Usage
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class DeltaEvent:
    """New tokens of one choice. `logprobs` has one entry a token when asked for, else it is empty."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[SampledToken, ...] = ()
    finish_reason: FinishReason | None = None
    stopped_by: str | None = None


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """`outputs` holds each choice's token ids."""

    usage: Usage
    timing: Timing
    outputs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """The request ended early: a RuntimeServiceError says why."""

    error: Exception


Event: TypeAlias = StartedEvent | DeltaEvent | FinishedEvent | FailedEvent


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request that ended, for metrics. `outcome` is "finished", "cancelled" or "failed"."""

    usage: Usage
    timing: Timing
    itls: tuple[float, ...]
    outcome: str
