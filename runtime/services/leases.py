"""The part of the Cache service that keeps prefixes on request: leases and quotas."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from radixloop.v1 import cache_pb2, cache_pb2_grpc

from radix import Namespace, PrefixStore
from runtime.access.caller import current_caller
from runtime.errors import InvalidRequest, TooMany
from runtime.prompting.prompts import KnownTexts
from runtime.retention.lease_desk import LeaseView
from runtime.retention.quotas import set_quota
from runtime.services.convert import Tokens, namespace_of
from runtime.services.convert_retention import DEFAULT_LEASE_PRIORITY, label, priority, quota_share, within_context
from runtime.services.replies import namespace_message
from runtime.services.service_context import ServiceContext
from runtime.services.status import answering

Call = grpc.aio.ServicerContext[Any, Any]

# Each quota is a queue of its own that every eviction looks at.
MAX_QUOTAS = 256


class LeaseCalls(cache_pb2_grpc.CacheServicer):
    """Answers what the Cache service is asked about leases and quotas."""

    _shared: ServiceContext

    async def Lease(self, request: cache_pb2.LeaseRequest, context: Call) -> cache_pb2.LeaseResponse:
        async with answering(context, "Cache.Lease"):
            rank, name = priority(request, DEFAULT_LEASE_PRIORITY), label(request.label)
            tokens, namespace = await self._what(request)
            leased = self._shared.leases.lease(tokens, namespace, ttl_s=request.ttl_s, priority=rank, label=name)
            lease, covered = await asyncio.wrap_future(leased)
            return cache_pb2.LeaseResponse(lease=_lease_message(lease), covered_tokens=covered)

    async def RenewLease(self, request: cache_pb2.RenewLeaseRequest, context: Call) -> cache_pb2.LeaseInfo:
        async with answering(context, "Cache.RenewLease"):
            renewed = self._shared.leases.renew(request.lease_id, request.ttl_s, current_caller().owns)
            return _lease_message(await asyncio.wrap_future(renewed))

    async def ReleaseLease(self, request: cache_pb2.ReleaseLeaseRequest, context: Call) -> cache_pb2.LeaseInfo:
        async with answering(context, "Cache.ReleaseLease"):
            released = self._shared.leases.release(request.lease_id, current_caller().owns)
            return _lease_message(await asyncio.wrap_future(released))

    async def ListLeases(self, request: cache_pb2.ListLeasesRequest, context: Call) -> cache_pb2.ListLeasesResponse:
        async with answering(context, "Cache.ListLeases"):
            leases, totals = await asyncio.wrap_future(self._shared.leases.all(current_caller().owns))
            return cache_pb2.ListLeasesResponse(
                leases=[_lease_message(lease) for lease in leases],
                leased_tokens=totals.leased_tokens,
                leasable_tokens=totals.leasable_tokens,
            )

    async def SetQuota(self, request: cache_pb2.SetQuotaRequest, context: Call) -> cache_pb2.Quota:
        async with answering(context, "Cache.SetQuota"):
            namespace = namespace_of(request.namespace, self._shared.info.fingerprint)
            share = quota_share(request)

            def limit(store: PrefixStore) -> int | None:
                quotas = store.retention.quotas
                if share is not None and namespace not in quotas and len(quotas) >= MAX_QUOTAS:
                    raise TooMany("quotas", MAX_QUOTAS, "lift some by setting them without a share")
                set_quota(store, namespace, share)
                return store.retention.quotas.get(namespace)

            blocks = await asyncio.wrap_future(self._shared.engine.call(limit))
            return self._quota_message(namespace, blocks)

    async def ListQuotas(self, request: cache_pb2.ListQuotasRequest, context: Call) -> cache_pb2.ListQuotasResponse:
        async with answering(context, "Cache.ListQuotas"):
            quotas = await asyncio.wrap_future(self._shared.engine.call(lambda store: store.retention.quotas))
            return cache_pb2.ListQuotasResponse(
                quotas=[self._quota_message(namespace, blocks) for namespace, blocks in quotas.items()]
            )

    async def _what(self, request: cache_pb2.LeaseRequest) -> tuple[Tokens, Namespace]:
        shared = self._shared
        if not request.HasField("session_id"):
            namespace = namespace_of(request.namespace, shared.info.fingerprint)
            prompt = await shared.encoder.encode(request.prompt, known=KnownTexts(namespace))
            tokens = within_context(prompt.tokens, shared.info.context_length)
            return tokens, namespace
        for field in ("prompt", "namespace"):
            if request.HasField(field):
                raise InvalidRequest(field, "set", "not with session_id: the session is what is leased")
        session = shared.sessions.get(request.session_id, current_caller().tenant)
        if not len(session):
            raise InvalidRequest("session_id", request.session_id, "the session is empty: there is nothing to lease")
        return session.tokens, session.namespace

    def _quota_message(self, namespace: Namespace, blocks: int | None) -> cache_pb2.Quota:
        share = None if blocks is None else blocks / self._shared.num_blocks
        return cache_pb2.Quota(namespace=namespace_message(namespace), share=share, blocks=blocks)


def _lease_message(lease: LeaseView) -> cache_pb2.LeaseInfo:
    return cache_pb2.LeaseInfo(
        lease_id=lease.id,
        tokens=lease.tokens,
        namespace=namespace_message(lease.namespace),
        priority=lease.priority,
        ttl_s=lease.ttl_s,
        label=lease.label,
    )
