"""Verdicts as the API tells them."""

from __future__ import annotations

from dataclasses import asdict

from radixloop.v1 import common_pb2

from radix import Cause, Span, Verdict

# A place from which thousands of branches leave is no rarer than a system prompt.
BRANCHES_TOLD = 4

_CAUSES = {
    Cause.CACHED: common_pb2.CAUSE_CACHED,
    Cause.LAST_TOKEN: common_pb2.CAUSE_LAST_TOKEN,
    Cause.EVICTED: common_pb2.CAUSE_EVICTED,
    Cause.LEASE_EXPIRED: common_pb2.CAUSE_LEASE_EXPIRED,
    Cause.IN_FLIGHT: common_pb2.CAUSE_IN_FLIGHT,
    Cause.OTHER_NAMESPACE: common_pb2.CAUSE_OTHER_NAMESPACE,
    Cause.DIVERGED: common_pb2.CAUSE_DIVERGED,
    Cause.NEVER_SEEN: common_pb2.CAUSE_NEVER_SEEN,
}


def verdict_message(verdict: Verdict, now: float) -> common_pb2.Verdict:
    """The message; `now` on the store's clock."""
    told = common_pb2.Verdict(spans=[_span_message(span, now) for span in verdict.spans])
    if verdict.promotion is not None:
        told.promotion.CopyFrom(common_pb2.Promotion(**asdict(verdict.promotion)))
    return told


def cached_tokens(verdict: Verdict) -> int:
    """Tokens that need no computing."""
    return verdict.tokens_by_cause().get(Cause.CACHED, 0)


def diverged(verdict: Verdict) -> Span | None:
    """The span where the prompt parted from what was stored."""
    return next((span for span in verdict.spans if span.cause is Cause.DIVERGED), None)


def _span_message(span: Span, now: float) -> common_pb2.VerdictSpan:
    # Which other namespace it is, is nobody else's business.
    return common_pb2.VerdictSpan(
        start=span.start,
        end=span.end,
        cause=_CAUSES[span.cause],
        gone_s=None if span.at is None else max(0.0, now - span.at),
        beside=[common_pb2.TokenIds(ids=branch.tolist()) for branch in span.beside[:BRANCHES_TOLD]],
    )
