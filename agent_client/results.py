"""What calls answer with: plain dataclasses, no protobuf message leaves the client."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .verdicts import Divergence, TemplateDrift, Verdict

FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True)
class Usage:
    """The books of one request, in tokens. `computed_tokens` went through a forward pass as prompt."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    computed_tokens: int = 0
    cached_by_tier: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """Seconds, measured by the runtime: from arrival to admission, of prefill, to the first token, between tokens."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    itl_p50_s: float = 0.0
    itl_p95_s: float = 0.0
    itl_p99_s: float = 0.0
    total_s: float = 0.0
    preemptions: int = 0


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wants made; `arguments` is JSON text, as the model wrote it."""

    name: str
    arguments: str
    id: str | None = None

    def parsed(self) -> Any:
        """The arguments as Python values. Raises ValueError when the model wrote broken JSON, or too deep a one."""
        try:
            return json.loads(self.arguments)
        except RecursionError:
            raise ValueError("the arguments are nested too deeply") from None

    def is_whole(self) -> bool:
        """Whether the arguments are JSON; those of a call that max_tokens or a stop string cut are not."""
        try:
            self.parsed()
        except ValueError:
            return False
        return True


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a tool call. `index` counts the calls of a choice; `id` and `name` come with a call's first piece.

    `arguments` is the next piece of the JSON text.
    """

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class TokenLogprob:
    """One generated token's log-probability, and the likeliest tokens' at that step as (id, logprob)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Started:
    """First event of a stream: the request was admitted, and this much of its prompt was in the cache.

    `verdict` says why each prompt token hit or missed; None when the cache was bypassed. `divergence` tells where it
    parted from what was stored, if that was asked for.
    """

    request_id: str
    usage: Usage
    prompt_ids: array[int] | None = None
    verdict: Verdict | None = None
    divergence: Divergence | None = None


@dataclass(frozen=True)
class Delta:
    """A piece of one choice. `finish_reason` and `tool_calls`, whole, are set on the choice's last one.

    Chats also have the text that belongs to no call in `content`, which may lag behind `text`, and the calls as they
    are written in `tool_call_deltas`.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stopped_by: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    content: str | None = None
    tool_call_deltas: tuple[ToolCallDelta, ...] = ()


@dataclass(frozen=True)
class Finished:
    """Last event of a stream. `session_tokens` is the session's length after this turn."""

    usage: Usage
    timing: Timing
    session_tokens: int | None = None


Event = Started | Delta | Finished


@dataclass
class Choice:
    """Everything one choice wrote. `content` is the text beside the tool calls; None where the prompt was no chat."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stopped_by: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: list[TokenLogprob] = field(default_factory=list)
    content: str | None = None

    def as_message(self) -> dict[str, Any]:
        """This reply as an assistant message, to append to the history of the next call."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text if self.content is None else self.content}
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                    **({} if call.id is None else {"id": call.id}),
                }
                for call in self.tool_calls
            ]
        return message


@dataclass
class Generation:
    """A finished call. The plain attributes are those of the first choice; `choices` has all of them."""

    request_id: str
    usage: Usage
    timing: Timing
    choices: list[Choice]
    prompt_ids: array[int] | None = None
    session_tokens: int | None = None
    verdict: Verdict | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.choices[0].finish_reason

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.choices[0].tool_calls

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return self.choices[0].logprobs

    def as_message(self) -> dict[str, Any]:
        """The first choice as an assistant message, to append to the history of the next call."""
        return self.choices[0].as_message()


@dataclass(frozen=True)
class Tokenized:
    """Token ids of a prompt; `rendered` is the text after the chat template, for a chat."""

    token_ids: array[int]
    rendered: str | None = None

    @property
    def count(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class ModelInfo:
    """What the runtime serves, and on what.

    `host_kv_dtype`: the precision of tiers behind the pool, where it is not the pool's. `weights`: how those of matrix
    products are kept. `template_drifts`: what the model's chat template does to histories that grow, so that they miss.
    """

    model: str
    architecture: str
    context_length: int
    vocab_size: int
    kv_dtype: str
    device: str
    block_size: int
    num_blocks: int
    kv_bytes_per_token: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    fingerprint: str
    attention_backend: str
    runtime_id: str
    incarnation: str
    version: str
    forward: str
    plain_kv_bytes_per_token: int = 0
    host_kv_dtype: str = ""
    weights: str = ""
    template_drifts: tuple[TemplateDrift, ...] = ()


@dataclass(frozen=True)
class TierStats:
    """A tier behind the pool now; fetched and failed since the runtime's start. One that is given up did not answer."""

    name: str
    total_blocks: int
    used_blocks: int
    fetched_tokens_total: int
    failed_blocks_total: int
    block_bytes: int
    given_up: bool = False


@dataclass(frozen=True)
class CacheStats:
    """The pool now, and counters since the runtime's start (`*_total`, in tokens where named so)."""

    total_blocks: int
    free_blocks: int
    active_blocks: int
    cached_blocks: int
    block_size: int
    cached_tokens: int
    nodes: int
    max_depth: int
    namespaces: int
    prompt_tokens_total: int
    hit_tokens_total: int
    computed_tokens_total: int
    output_tokens_total: int
    evicted_tokens_total: int
    evicted_blocks_total: int
    copied_tokens_total: int
    preemptions_total: int
    requests_total: int
    running_requests: int
    waiting_requests: int
    sessions: int
    unused_slots: int
    uptime_s: float
    cancelled_total: int
    failed_total: int
    leases: int
    leased_tokens: int
    leasable_tokens: int
    lease_refusals_total: int
    tool_holds_total: int
    tool_holds_refused_total: int
    eviction: str
    shared_blocks: int = 0
    tiers: tuple[TierStats, ...] = ()


@dataclass(frozen=True)
class CacheNode:
    """A run of tokens in the tree. `parent_id` is 0 right below a root; `start` is the run's position."""

    id: int
    parent_id: int
    salt: str | None
    adapter: str | None
    start: int
    tokens: int
    blocks: int
    hits: int
    idle_s: float
    holders: int
    children: int
    head: str


@dataclass(frozen=True)
class Flushed:
    """What a flush gave back."""

    tokens: int
    blocks: int


@dataclass(frozen=True)
class SessionOpened:
    session_id: str
    idle_timeout_s: float


@dataclass(frozen=True)
class SessionForked:
    session_id: str
    tokens: int


@dataclass(frozen=True)
class SessionClosed:
    """`closed` is False when there was no such session (any more)."""

    closed: bool
    tokens: int
