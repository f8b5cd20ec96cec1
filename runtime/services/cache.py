"""The Cache service: what the cache holds, filling it and forgetting."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import grpc.aio
from radixloop.v1 import cache_pb2, cache_pb2_grpc

from radix import NodeInfo, PrefixStore
from runtime.convert import head_tokens, namespace_of
from runtime.events import FailedEvent, FinishedEvent
from runtime.replies import namespace_message, usage_message
from runtime.request import GenerateJob
from runtime.service_context import ServiceContext
from runtime.status import answering
from runtime.stream_buffer import StreamBuffer

Call = grpc.aio.ServicerContext[Any, Any]

# Heads decoded together: a large tree neither waits for its last node nor changes threads for each.
NODES_AT_A_TIME = 256


class CacheService(cache_pb2_grpc.CacheServicer):
    """Answers radixloop.v1.Cache."""

    def __init__(self, shared: ServiceContext) -> None:
        self._shared = shared

    async def GetStats(self, request: cache_pb2.GetStatsRequest, context: Call) -> cache_pb2.GetStatsResponse:
        async with answering(context, "Cache.GetStats"):
            stats = await asyncio.wrap_future(self._shared.engine.call(lambda store: store.stats()))
            counters = self._shared.engine.counters
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
                uptime_s=time.monotonic() - self._shared.started,
                cancelled_total=counters.cancelled,
                failed_total=counters.failed,
            )

    async def ListNodes(self, request: cache_pb2.ListNodesRequest, context: Call) -> None:
        async with answering(context, "Cache.ListNodes"):
            heads = head_tokens(request)
            only = (
                namespace_of(request.namespace, self._shared.info.fingerprint)
                if request.HasField("namespace")
                else None
            )

            def snapshot(store: PrefixStore) -> tuple[list[NodeInfo], float]:
                return list(store.nodes(only, heads)), time.monotonic()

            nodes, now = await asyncio.wrap_future(self._shared.engine.call(snapshot))
            for start in range(0, len(nodes), NODES_AT_A_TIME):
                some = nodes[start : start + NODES_AT_A_TIME]
                texts = await self._shared.encoder.decode_heads([node.head for node in some])
                for node, text in zip(some, texts, strict=True):
                    await context.write(_node_message(node, text, now))

    async def Flush(self, request: cache_pb2.FlushRequest, context: Call) -> cache_pb2.FlushResponse:
        async with answering(context, "Cache.Flush"):
            only = (
                namespace_of(request.namespace, self._shared.info.fingerprint)
                if request.HasField("namespace")
                else None
            )
            tokens, blocks = await asyncio.wrap_future(self._shared.engine.call(lambda store: store.flush(only)))
            return cache_pb2.FlushResponse(flushed_tokens=tokens, freed_blocks=blocks)

    async def Warm(self, request: cache_pb2.WarmRequest, context: Call) -> cache_pb2.WarmResponse:
        async with answering(context, "Cache.Warm"):
            info = self._shared.info
            prompt = await self._shared.encoder.encode(request.prompt)
            job = GenerateJob(
                request_id=uuid.uuid4().hex,
                tokens=prompt.tokens,
                namespace=namespace_of(request.namespace, info.fingerprint),
                prefill_only=True,
            )
            buffer = StreamBuffer(asyncio.get_running_loop())
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
