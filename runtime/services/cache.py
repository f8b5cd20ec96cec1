"""The Cache service: what the cache holds, filling it and forgetting."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import aclosing
from typing import Any

import grpc.aio
from radixloop.v1 import cache_pb2, events_pb2

from radix import Namespace, NodeInfo, PrefixStore
from runtime.access.caller import current_caller
from runtime.errors import EventsOff
from runtime.events import FailedEvent, FinishedEvent
from runtime.prompting.prompts import KnownTexts
from runtime.publishing.event_stream import first_wanted, heartbeat_of, watch
from runtime.publishing.kv_events import medium_of
from runtime.request import GenerateJob
from runtime.services.convert import head_tokens, namespace_of
from runtime.services.explanations import ExplanationCalls
from runtime.services.flushing import flush
from runtime.services.leases import LeaseCalls
from runtime.services.replies import namespace_message, usage_message
from runtime.services.service_context import ServiceContext
from runtime.services.status import answering
from runtime.services.stream_buffer import StreamBuffer
from runtime.tiers.books import TierBooks

Call = grpc.aio.ServicerContext[Any, Any]

# Heads decoded together: a large tree neither waits for its last node nor changes threads for each.
NODES_AT_A_TIME = 256


class CacheService(ExplanationCalls, LeaseCalls):
    """Answers radixloop.v1.Cache."""

    def __init__(self, shared: ServiceContext) -> None:
        self._shared = shared

    async def GetStats(self, request: cache_pb2.GetStatsRequest, context: Call) -> cache_pb2.GetStatsResponse:
        async with answering(context, "Cache.GetStats"):
            stats, leasable = await asyncio.wrap_future(
                self._shared.engine.call(lambda store: (store.stats(), store.retention.cap_tokens))
            )
            counters, tiers = self._shared.engine.counters, self._shared.engine.tiers
            return cache_pb2.GetStatsResponse(
                total_blocks=stats.total_blocks,
                free_blocks=stats.free_blocks,
                active_blocks=stats.active_blocks,
                cached_blocks=stats.cached_blocks,
                block_size=stats.block_size,
                cached_tokens=stats.cached_tokens,
                nodes=stats.nodes,
                max_depth=stats.max_depth,
                namespaces=stats.namespaces,
                prompt_tokens_total=counters.prompt_tokens,
                hit_tokens_total=counters.hit_tokens,
                computed_tokens_total=counters.computed_tokens,
                output_tokens_total=counters.output_tokens,
                evicted_tokens_total=stats.evicted_tokens,
                evicted_blocks_total=stats.evicted_blocks,
                copied_tokens_total=stats.copied_tokens,
                preemptions_total=counters.preemptions,
                requests_total=counters.requests,
                running_requests=counters.running,
                waiting_requests=counters.waiting,
                sessions=len(self._shared.sessions),
                unused_slots=stats.unused_slots,
                shared_blocks=stats.shared_blocks,
                uptime_s=time.monotonic() - self._shared.started,
                cancelled_total=counters.cancelled,
                failed_total=counters.failed,
                leases=stats.leases,
                leased_tokens=stats.leased_tokens,
                leasable_tokens=leasable,
                lease_refusals_total=self._shared.leases.refused,
                tool_holds_total=self._shared.holds.granted,
                tool_holds_refused_total=self._shared.holds.refused,
                eviction=self._shared.config.eviction,
                tiers=[] if tiers is None else map(_tier_message, tiers.books().tiers),
            )

    async def ListNodes(self, request: cache_pb2.ListNodesRequest, context: Call) -> None:
        async with answering(context, "Cache.ListNodes"):
            heads, only, caller = head_tokens(request), self._only(request), current_caller()

            def snapshot(store: PrefixStore) -> tuple[list[NodeInfo], float]:
                # A tenant waits for its own nodes to be told, and so does everybody: not for those of all.
                owned = (name for name in (store.namespaces if only is None else [only]) if caller.owns(name))
                return [node for name in owned for node in store.nodes(name, heads)], time.monotonic()

            nodes, now = await asyncio.wrap_future(self._shared.engine.call(snapshot))
            for start in range(0, len(nodes), NODES_AT_A_TIME):
                some = nodes[start : start + NODES_AT_A_TIME]
                texts = await self._shared.encoder.decode_heads([node.head for node in some])
                for node, text in zip(some, texts, strict=True):
                    await context.write(_node_message(node, text, now))

    async def Flush(self, request: cache_pb2.FlushRequest, context: Call) -> cache_pb2.FlushResponse:
        async with answering(context, "Cache.Flush"):
            only, caller = self._only(request), current_caller()

            def which(store: PrefixStore) -> list[Namespace | None]:
                if only is not None or caller.tenant is None:
                    return [only]
                seen = {Namespace(self._shared.info.fingerprint, caller.salt(None)), *store.namespaces}
                if store.demoter is not None:
                    seen |= store.demoter.namespaces.keys()
                return [namespace for namespace in seen if caller.owns(namespace)]

            tokens, blocks = await flush(self._shared.engine, which)
            return cache_pb2.FlushResponse(flushed_tokens=tokens, freed_blocks=blocks)

    async def Warm(self, request: cache_pb2.WarmRequest, context: Call) -> cache_pb2.WarmResponse:
        async with answering(context, "Cache.Warm"):
            info = self._shared.info
            namespace = namespace_of(request.namespace, info.fingerprint)
            prompt = await self._shared.encoder.encode(request.prompt, known=KnownTexts(namespace))
            job = GenerateJob(
                request_id=uuid.uuid4().hex,
                tokens=prompt.tokens,
                namespace=namespace,
                prefill_only=True,
            )
            buffer = StreamBuffer(self._shared.wakeups)
            handle = self._shared.engine.submit(job, buffer.push)
            try:
                while True:
                    for event in await buffer.take():
                        if isinstance(event, FailedEvent):
                            raise event.error
                        if isinstance(event, FinishedEvent):
                            return cache_pb2.WarmResponse(usage=usage_message(event.usage))
            finally:
                handle.cancel()

    async def WatchEvents(self, request: events_pb2.WatchEventsRequest, context: Call) -> None:
        async with answering(context, "Cache.WatchEvents"):
            shared, hub = self._shared, self._shared.events
            if hub is None:
                raise EventsOff
            start, heartbeat_s = first_wanted(hub, request), heartbeat_of(request)
            # The caller learns at once that it is heard, though the first batch may wait for a long step.
            await context.send_initial_metadata(())
            batches = watch(
                hub, lambda: shared.engine.call(hub.snapshot), start, heartbeat_s, medium_of(shared.info.device)
            )
            async with aclosing(batches):
                async for batch in batches:
                    await context.write(batch)

    def _only(self, request: cache_pb2.ListNodesRequest | cache_pb2.FlushRequest) -> Namespace | None:
        """The namespace that is asked about; None for all of the caller's."""
        if not request.HasField("namespace"):
            return None
        return namespace_of(request.namespace, self._shared.info.fingerprint)


def _tier_message(tier: TierBooks) -> cache_pb2.TierStats:
    return cache_pb2.TierStats(
        name=tier.name,
        total_blocks=tier.blocks,
        used_blocks=tier.used_blocks,
        fetched_tokens_total=tier.fetched_tokens,
        failed_blocks_total=tier.failed_blocks,
        block_bytes=tier.block_bytes,
        given_up=tier.given_up,
    )


def _node_message(node: NodeInfo, head: str, now: float) -> cache_pb2.Node:
    return cache_pb2.Node(
        id=node.id,
        parent_id=node.parent_id,
        namespace=namespace_message(node.namespace),
        start=node.start,
        tokens=node.tokens,
        blocks=node.blocks,
        hits=node.hits,
        idle_s=max(0.0, now - node.last_used),
        holders=node.holders,
        children=node.children,
        head=head,
    )
