"""Why prompts hit and missed, as the runtime tells it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from radixloop.v1 import cache_pb2, common_pb2

from .prompts import ids_from_proto

# What became of a stretch of a prompt; docs/explain.md says what each means. Where several hold, the first is named.
Cause = Literal[
    "cached",
    "last_token",
    "evicted",
    "lease_expired",
    "in_flight",
    "other_namespace",
    "diverged",
    "never_seen",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)
_CAUSE_OF: dict[int, Cause] = {common_pb2.Cause.Value(f"CAUSE_{cause.upper()}"): cause for cause in CAUSES}


@dataclass(frozen=True)
class Span:
    """Positions `start` .. `end - 1` of a prompt, all for one cause.

    `gone_s`: seconds since the first of them was evicted, None when that is not known. `beside`: where the prompt
    diverged, the first tokens of what was stored there, a few branches.
    """

    start: int
    end: int
    cause: Cause
    gone_s: float | None = None
    beside: tuple[array[int], ...] = ()

    @property
    def tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Promotion:
    """What host memory and disk held of a prompt past what the pool had, and whether it was, or would be, fetched.

    `fetch_s` and `compute_s` are the runtime's estimates for what is fetched, or else for all of it; None before it has
    measured anything. `kv_dtype` is the precision of the slower tiers where it is not the pool's: then what is fetched
    may change the answer.
    """

    host_tokens: int
    disk_tokens: int
    fetch_s: float | None
    compute_s: float | None
    fetched: bool
    kv_dtype: str = ""


@dataclass(frozen=True)
class Verdict:
    """The spans cover every prompt token once, in order. `promotion` is None where slower tiers held nothing."""

    spans: tuple[Span, ...]
    promotion: Promotion | None = None

    def tokens_by_cause(self) -> dict[Cause, int]:
        """Of the causes that occur."""
        counts: dict[Cause, int] = {}
        for span in self.spans:
            counts[span.cause] = counts.get(span.cause, 0) + span.tokens
        return counts

    @property
    def missed_tokens(self) -> int:
        return sum(span.tokens for span in self.missed())

    def missed(self) -> Iterator[Span]:
        """The spans that have to be computed."""
        return (span for span in self.spans if span.cause != "cached")


# What a chat template does to histories; docs/histories.md says what each means.
DriftKind = Literal["drops_reasoning", "rewrites_history", "reads_the_clock", "rewrites_calls", "unknown"]
_DRIFT_OF: dict[int, DriftKind] = {
    common_pb2.DriftKind.Value(f"DRIFT_KIND_{kind.upper()}"): kind for kind in get_args(DriftKind) if kind != "unknown"
}


@dataclass(frozen=True)
class TemplateDrift:
    """A way in which a chat template does not go on where the turn before ended.

    `detail` goes on from "the chat template", in words. `message_index` is where a turn parts from the one before it,
    None before any message: of the chat that is explained or, for a model, of a short sample.
    """

    kind: DriftKind
    detail: str
    message_index: int | None = None


@dataclass(frozen=True)
class Divergence:
    """Where a prompt parted from what was stored.

    `position` is the first token that differs. `shared`, `prompt` and each of `stored` are decoded: the end of what
    both sides share, then how each goes on. For a chat, `message_index` and `role` name the message that holds the
    token (None before the first message), and `offset` counts the characters of its content before it (None where the
    token is not of the content). `template` says what the chat template did, where it alone is why the texts differ.
    """

    position: int
    shared: str
    prompt: str
    stored: tuple[str, ...]
    message_index: int | None = None
    role: str | None = None
    offset: int | None = None
    template: TemplateDrift | None = None


@dataclass(frozen=True)
class Explanation:
    """Why each token of a prompt would hit or miss if it were sent now.

    `estimated_s` is what the tokens that are not cached would cost, at `prefill_s_per_token`; both are None before the
    runtime has measured anything. `eviction` is the name of the policy that chose what was evicted.
    """

    prompt_tokens: int
    cached_tokens: int
    verdict: Verdict
    divergence: Divergence | None
    prefill_s_per_token: float | None
    estimated_s: float | None
    eviction: str


def verdict_from_proto(verdict: common_pb2.Verdict) -> Verdict:
    promotion = _promotion(verdict.promotion) if verdict.HasField("promotion") else None
    return Verdict(tuple(_span(span) for span in verdict.spans), promotion)


def _promotion(told: common_pb2.Promotion) -> Promotion:
    return Promotion(
        host_tokens=told.host_tokens,
        disk_tokens=told.disk_tokens,
        fetch_s=told.fetch_s if told.HasField("fetch_s") else None,
        compute_s=told.compute_s if told.HasField("compute_s") else None,
        fetched=told.fetched,
        kv_dtype=told.kv_dtype,
    )


def _span(span: common_pb2.VerdictSpan) -> Span:
    return Span(
        start=span.start,
        end=span.end,
        # A cause that this client does not know yet is a miss for a reason that it cannot name.
        cause=_CAUSE_OF.get(span.cause, "never_seen"),
        gone_s=span.gone_s if span.HasField("gone_s") else None,
        beside=tuple(ids_from_proto(branch) for branch in span.beside),
    )


def explanation_from_proto(answer: cache_pb2.ExplainResponse) -> Explanation:
    return Explanation(
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        verdict=verdict_from_proto(answer.verdict),
        divergence=divergence_from_proto(answer.divergence) if answer.HasField("divergence") else None,
        prefill_s_per_token=answer.prefill_s_per_token if answer.HasField("prefill_s_per_token") else None,
        estimated_s=answer.estimated_s if answer.HasField("estimated_s") else None,
        eviction=answer.eviction,
    )


def divergence_from_proto(told: common_pb2.Divergence) -> Divergence:
    return Divergence(
        position=told.position,
        shared=told.shared,
        prompt=told.prompt,
        stored=tuple(told.stored),
        message_index=told.message_index if told.HasField("message_index") else None,
        role=told.role if told.HasField("role") else None,
        offset=told.offset if told.HasField("offset") else None,
        template=drift_from_proto(told.template) if told.HasField("template") else None,
    )


def drift_from_proto(drift: common_pb2.TemplateDrift) -> TemplateDrift:
    return TemplateDrift(
        kind=_DRIFT_OF.get(drift.kind, "unknown"),
        detail=drift.detail,
        message_index=drift.message_index if drift.HasField("message_index") else None,
    )
