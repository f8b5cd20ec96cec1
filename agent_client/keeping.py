"""What a runtime keeps on request: leases, quotas, holds; and the calls that ask for it."""

from __future__ import annotations

from dataclasses import dataclass

from radixloop.v1 import cache_pb2, common_pb2, sessions_pb2

from .calls import Unary
from .errors import InvalidArgument
from .generate_options import namespace_parts
from .prompts import Prompt, prompt_to_proto
from .retry import Safety
from .verdicts import Explanation, explanation_from_proto


@dataclass(frozen=True)
class Lease:
    """A claim on a prompt's cached prefix: it goes after everything that is not leased.

    `tokens` is the length of the prompt, `covered_tokens` what of it was cached when the lease was made (None in
    answers that do not say). `ttl_s`: seconds until it ends, as of the answer.
    """

    id: int
    tokens: int
    salt: str | None
    adapter: str | None
    priority: int
    ttl_s: float
    label: str
    covered_tokens: int | None = None


@dataclass(frozen=True)
class Leases:
    """Every lease that has not ended; `leased_tokens` counts each cached token once, `leasable_tokens` is the cap."""

    leases: tuple[Lease, ...]
    leased_tokens: int
    leasable_tokens: int


@dataclass(frozen=True)
class Quota:
    """The share of the pool, and the blocks, that a namespace's prefixes may take; None: no quota."""

    salt: str | None
    adapter: str | None
    share: float | None
    blocks: int | None


@dataclass(frozen=True)
class SessionCut:
    """What is left of a session, and how many tokens may be evicted first now."""

    tokens: int
    messages: int
    superseded_tokens: int


@dataclass(frozen=True)
class ToolHold:
    """A session's lease while it waits for a tool; it ends with the session's next turn, or after `ttl_s` seconds."""

    lease_id: int
    ttl_s: float
    tokens: int


def explain(
    prompt: Prompt | None, session_id: str | None, space: common_pb2.Namespace | None, public_tokens: int | None
) -> Unary[Explanation]:
    request = cache_pb2.ExplainRequest(
        prompt=None if prompt is None else prompt_to_proto(prompt),
        session_id=session_id,
        namespace=None if session_id is not None else space,
        public_tokens=public_tokens,
    )
    return Unary("Cache", "Explain", request, explanation_from_proto)


def lease(
    prompt: Prompt | None,
    session_id: str | None,
    space: common_pb2.Namespace,
    *,
    ttl_s: float,
    priority: int | None,
    label: str,
) -> Unary[Lease]:
    if (prompt is None) == (session_id is None):
        raise InvalidArgument("give one of prompt and session_id: either can be leased")
    request = cache_pb2.LeaseRequest(
        prompt=None if prompt is None else prompt_to_proto(prompt),
        session_id=session_id,
        namespace=None if session_id is not None else space,
        ttl_s=ttl_s,
        priority=priority,
        label=label,
    )
    return Unary("Cache", "Lease", request, lambda made: _lease(made.lease, made.covered_tokens), Safety.ONCE)


def renew_lease(lease_id: int, ttl_s: float) -> Unary[Lease]:
    return Unary("Cache", "RenewLease", cache_pb2.RenewLeaseRequest(lease_id=lease_id, ttl_s=ttl_s), _lease)


def release_lease(lease_id: int) -> Unary[Lease]:
    return Unary("Cache", "ReleaseLease", cache_pb2.ReleaseLeaseRequest(lease_id=lease_id), _lease, Safety.ONCE)


def leases() -> Unary[Leases]:
    return Unary("Cache", "ListLeases", cache_pb2.ListLeasesRequest(), _leases)


def set_quota(space: common_pb2.Namespace, share: float | None) -> Unary[Quota]:
    return Unary("Cache", "SetQuota", cache_pb2.SetQuotaRequest(namespace=space, share=share), _quota)


def quotas() -> Unary[tuple[Quota, ...]]:
    return Unary("Cache", "ListQuotas", cache_pb2.ListQuotasRequest(), lambda told: tuple(map(_quota, told.quotas)))


def truncate_session(session_id: str, tokens: int | None, messages: int | None) -> Unary[SessionCut]:
    if (tokens is None) == (messages is None):
        raise InvalidArgument("give one of tokens and messages: how much to keep")
    request = sessions_pb2.TruncateSessionRequest(session_id=session_id, tokens=tokens, messages=messages)
    return Unary("Sessions", "Truncate", request, _cut)


def hold_session(session_id: str, tool: str) -> Unary[ToolHold]:
    request = sessions_pb2.HoldSessionRequest(session_id=session_id, tool=tool)
    return Unary("Sessions", "Hold", request, lambda held: ToolHold(held.lease_id, held.ttl_s, held.tokens))


def _cut(done: sessions_pb2.TruncateSessionResponse) -> SessionCut:
    return SessionCut(done.tokens, done.messages, done.superseded_tokens)


def _lease(told: cache_pb2.LeaseInfo, covered_tokens: int | None = None) -> Lease:
    salt, adapter = namespace_parts(told.namespace)
    return Lease(told.lease_id, told.tokens, salt, adapter, told.priority, told.ttl_s, told.label, covered_tokens)


def _leases(told: cache_pb2.ListLeasesResponse) -> Leases:
    return Leases(tuple(map(_lease, told.leases)), told.leased_tokens, told.leasable_tokens)


def _quota(told: cache_pb2.Quota) -> Quota:
    share = told.share if told.HasField("share") else None
    return Quota(*namespace_parts(told.namespace), share, told.blocks if told.HasField("blocks") else None)
