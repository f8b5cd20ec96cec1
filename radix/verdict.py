"""Why a prompt missed: one cause for every token."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from radix.namespace import Namespace
from radix.tokens import Ints


class Cause(Enum):
    """What became of a stretch of a prompt.

    Where several hold, the first in this order is named.
    """

    CACHED = "cached"
    LAST_TOKEN = "last_token"
    EVICTED = "evicted"
    LEASE_EXPIRED = "lease_expired"
    IN_FLIGHT = "in_flight"
    OTHER_NAMESPACE = "other_namespace"
    DIVERGED = "diverged"
    NEVER_SEEN = "never_seen"


@dataclass(frozen=True, slots=True)
class Span:
    """Positions `start` .. `end - 1` of the prompt, all for one cause.

    Attributes:
        at: EVICTED and LEASE_EXPIRED: when the first of them went, on the store's clock; None when that is forgotten.
        namespace: OTHER_NAMESPACE: where they are cached.
        beside: DIVERGED: what was stored where the prompt went another way, the first tokens of each branch.
    """

    start: int
    end: int
    cause: Cause
    at: float | None = None
    namespace: Namespace | None = None
    beside: tuple[Ints, ...] = ()


@dataclass(frozen=True, slots=True)
class Promotion:
    """What slower tiers held of a prompt past what the device had, and whether it was worth fetching.

    Attributes:
        host_tokens, disk_tokens: found in each.
        fetch_s, compute_s: estimates for what was fetched, or else for all of it; None where nothing was measured yet.
        fetched: it was cheaper to fetch than to compute, or nobody knew.
        kv_dtype: the precision of tiers, where it is not the device's: what was fetched may change the answer.
    """

    host_tokens: int
    disk_tokens: int
    fetch_s: float | None
    compute_s: float | None
    fetched: bool
    kv_dtype: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`spans` cover every token of the prompt once, in order. `promotion` is None where slower tiers held nothing."""

    prompt_tokens: int
    spans: tuple[Span, ...] = field(default_factory=tuple)
    promotion: Promotion | None = None

    def tokens_by_cause(self) -> dict[Cause, int]:
        """Return the number of tokens of each cause that occurs."""
        counts: dict[Cause, int] = {}
        for span in self.spans:
            counts[span.cause] = counts.get(span.cause, 0) + span.end - span.start
        return counts


@dataclass(frozen=True, slots=True)
class Findings:
    """How far into a prompt each thing holds; what `assemble` makes a verdict of.

    Attributes:
        cached: tokens in the cache now.
        stored: tokens that were ever stored under this namespace, as far as that is remembered.
        in_flight: tokens that a running request is about to commit.
        elsewhere: tokens cached in another namespace, and which.
    """

    prompt_tokens: int
    cached: int
    stored: int
    evicted_at: float | None
    lease_lapsed: bool
    in_flight: int
    elsewhere: int
    other_namespace: Namespace | None
    beside: tuple[Ints, ...]


def assemble(found: Findings) -> Verdict:
    """Lay the findings over the prompt, each token under the first cause that holds for it."""
    spans: list[Span] = []
    n = found.prompt_tokens
    # The logits of the last token are needed, so it is computed however much is cached.
    _lay(spans, min(found.cached, n - 1), Span(0, 0, Cause.CACHED))
    if found.cached >= n:
        spans.append(Span(n - 1, n, Cause.LAST_TOKEN))
        return Verdict(n, tuple(spans))
    gone = Cause.LEASE_EXPIRED if found.lease_lapsed else Cause.EVICTED
    _lay(spans, found.stored, Span(0, 0, gone, at=found.evicted_at))
    _lay(spans, found.in_flight, Span(0, 0, Cause.IN_FLIGHT))
    _lay(spans, found.elsewhere, Span(0, 0, Cause.OTHER_NAMESPACE, namespace=found.other_namespace))
    if found.beside and 0 < found.stored == _covered(spans):
        _lay(spans, n, Span(0, 0, Cause.DIVERGED, beside=found.beside))
    _lay(spans, n, Span(0, 0, Cause.NEVER_SEEN))
    return Verdict(n, tuple(spans))


def _covered(spans: list[Span]) -> int:
    return spans[-1].end if spans else 0


def _lay(spans: list[Span], end: int, like: Span) -> None:
    start = _covered(spans)
    if end > start:
        spans.append(Span(start, end, like.cause, like.at, like.namespace, like.beside))
