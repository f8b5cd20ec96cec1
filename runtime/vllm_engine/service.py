"""The VllmEngine service: what a router that speaks gRPC asks of an engine."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from datetime import datetime, timezone
from importlib.metadata import version as installed_version
from typing import Any

import grpc
import grpc.aio
from radixloop.v1 import common_pb2 as radixloop_pb2
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from runtime.errors import EventsOff, InvalidRequest, RequestCancelled
from runtime.events import FailedEvent, FinishedEvent, StartedEvent
from runtime.grammar.desk import ReplyRules
from runtime.request import GenerateJob
from runtime.services.convert import Tokens, checked_id, namespace_of
from runtime.services.flushing import flush
from runtime.services.service_context import ServiceContext
from runtime.services.status import answering
from runtime.services.stream_buffer import StreamBuffer
from runtime.vllm_engine.kv_stream import KvStream
from runtime.vllm_engine.loads import LoadBook, LoadRecords, scheduler_load
from runtime.vllm_engine.replies import VllmReplyWriter
from runtime.vllm_engine.requests import demanded, input_ids, named_as_sent, refuse_unsupported, sampling_params
from runtime.vllm_engine.running import RunningRequest, RunningRequests
from runtime.vllm_engine.tokenizer_bundle import chunks, tokenizer_bundle

Call = grpc.aio.ServicerContext[Any, Any]

SERVICE_NAME: str = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"].full_name
MAX_FLUSH_WAIT_S = 3600.0
_FLUSH_RETRY_S = 0.05


class VllmEngineService(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """Answers vllm.grpc.engine.VllmEngine.

    Args:
        serving: whether new requests are taken, as grpc.health tells it.
    """

    def __init__(self, shared: ServiceContext, serving: Callable[[], bool]) -> None:
        self._shared = shared
        self._serving = serving
        self._running = RunningRequests()
        self._loads = LoadBook(shared)
        self._tokenizer: asyncio.Future[bytes] | None = None

    async def Generate(self, request: vllm_engine_pb2.GenerateRequest, context: Call) -> None:
        async with answering(context, "VllmEngine.Generate"):
            request_id = checked_id("request_id", request.request_id) if request.request_id else uuid.uuid4().hex
            with ExitStack() as held:
                mine = held.enter_context(self._running.entered(request_id))
                await self._generate(request_id, request, mine, held, context)

    async def _generate(
        self,
        request_id: str,
        request: vllm_engine_pb2.GenerateRequest,
        mine: RunningRequest,
        held: ExitStack,
        context: Call,
    ) -> None:
        engine, info = self._shared.engine, self._shared.info
        refuse_unsupported(request)
        sampling = sampling_params(request.sampling_params, info)
        tokens = await self._prompt(request)
        rules = ReplyRules(None, sampling)
        if request.sampling_params.WhichOneof("constraint") is not None:
            # A long schema takes a while to read, and others are answered meanwhile.
            text = await asyncio.to_thread(demanded, request.sampling_params)
            rules = await self._shared.grammars.constrain(text, sampling)
        job = GenerateJob(
            request_id=request_id,
            tokens=tokens,
            namespace=namespace_of(radixloop_pb2.Namespace(), info.fingerprint),
            sampling=rules.sampling,
            grammar=rules.grammar,
        )
        buffer = StreamBuffer(self._shared.wakeups)
        with named_as_sent("text" if request.HasField("text") else "tokenized.input_ids"):
            handle = engine.submit(job, buffer.push)
        # Runs however this ends: by a cancelled call, a lost router, a deadline, an error, or after the last event.
        held.callback(handle.cancel)
        mine.submitted(handle)
        writer = VllmReplyWriter(len(tokens), sampling, stream=request.stream)
        while True:
            for event in await buffer.take():
                if isinstance(event, FinishedEvent):
                    return
                if isinstance(event, FailedEvent):
                    if not (mine.aborted and isinstance(event.error, RequestCancelled)):
                        raise event.error
                    for message in writer.aborted():
                        await context.write(message)
                    return
                if isinstance(event, StartedEvent):
                    writer.started(event)
                    continue
                for message in writer.delta(event):
                    await context.write(message)

    async def _prompt(self, request: vllm_engine_pb2.GenerateRequest) -> Tokens:
        form = request.WhichOneof("input")
        if form == "tokenized":
            return input_ids(request, self._shared.info)
        if form is None:
            raise InvalidRequest("input", "unset", "give one of tokenized or text")
        with named_as_sent("text"):
            return (await self._shared.encoder.encode(radixloop_pb2.Prompt(text=request.text))).tokens

    async def Abort(self, request: vllm_engine_pb2.AbortRequest, context: Call) -> vllm_engine_pb2.AbortResponse:
        self._running.abort(request.request_ids)
        return vllm_engine_pb2.AbortResponse()

    async def Embed(self, request: vllm_engine_pb2.EmbedRequest, context: Call) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this runtime generates text and embeds none")

    async def StartProfile(self, request: common_pb2.StartProfileRequest, context: Call) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, _NO_PROFILER)

    async def StopProfile(self, request: common_pb2.StopProfileRequest, context: Call) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, _NO_PROFILER)

    async def HealthCheck(
        self, request: vllm_engine_pb2.HealthCheckRequest, context: Call
    ) -> vllm_engine_pb2.HealthCheckResponse:
        healthy = self._serving() and self._shared.engine.alive
        return vllm_engine_pb2.HealthCheckResponse(healthy=healthy, message="" if healthy else "takes no new requests")

    async def FlushCache(self, request: common_pb2.FlushCacheRequest, context: Call) -> common_pb2.FlushCacheResponse:
        async with answering(context, "VllmEngine.FlushCache"):
            if not (math.isfinite(request.timeout_s) and 0 <= request.timeout_s <= MAX_FLUSH_WAIT_S):
                raise InvalidRequest("timeout_s", request.timeout_s, f"must be from 0 to {MAX_FLUSH_WAIT_S:g}")
            engine, until = self._shared.engine, time.monotonic() + request.timeout_s
            while True:
                counters = engine.counters
                busy = counters.running + counters.waiting
                if not busy:
                    tokens, blocks = await flush(engine)
                    return common_pb2.FlushCacheResponse(
                        success=True, message=f"{tokens} tokens forgotten, {blocks} blocks freed"
                    )
                if time.monotonic() >= until:
                    return common_pb2.FlushCacheResponse(
                        success=False, message=f"{busy} sequences run or wait: nothing was flushed"
                    )
                await asyncio.sleep(_FLUSH_RETRY_S)

    async def GetModelInfo(
        self, request: vllm_engine_pb2.GetModelInfoRequest, context: Call
    ) -> vllm_engine_pb2.GetModelInfoResponse:
        info, tokenizer = self._shared.info, self._shared.loaded.tokenizer
        return vllm_engine_pb2.GetModelInfoResponse(
            model_path=info.name,
            served_model_name=info.name,
            tokenizer_path=info.name,
            is_generation=True,
            max_context_length=info.context_length,
            vocab_size=info.vocab_size,
            model_type=getattr(self._shared.loaded.model.config, "model_type", ""),
            architectures=[info.architecture],
            eos_token_ids=info.eos_token_ids,
            pad_token_id=getattr(tokenizer, "pad_token_id", None),
            bos_token_id=getattr(tokenizer, "bos_token_id", None),
            # One token is to be generated.
            max_req_input_len=info.context_length - 1,
        )

    async def GetServerInfo(
        self, request: vllm_engine_pb2.GetServerInfoRequest, context: Call
    ) -> vllm_engine_pb2.GetServerInfoResponse:
        shared, info = self._shared, self._shared.info
        return vllm_engine_pb2.GetServerInfoResponse(
            active_requests=len(self._running),
            last_receive_timestamp=self._running.last_received,
            uptime_seconds=time.monotonic() - shared.started,
            server_type="radixloop",
            data_parallel_size=1,
            kv_cache_dtype=info.kv_dtype,
            block_size=shared.config.block_size,
            attention_backend=info.attention_backend,
            model_dtype=f"torch.{info.dtype}",
            max_num_seqs=shared.config.max_running,
            constrained_decoding_start="first_token",
        )

    async def GetLoads(
        self, request: vllm_engine_pb2.GetLoadsRequest, context: Call
    ) -> vllm_engine_pb2.GetLoadsResponse:
        async with answering(context, "VllmEngine.GetLoads"):
            if request.HasField("dp_rank") and request.dp_rank != 0:
                raise InvalidRequest("dp_rank", request.dp_rank, "0 is the only rank there is")
            return vllm_engine_pb2.GetLoadsResponse(
                timestamp=datetime.now(timezone.utc).isoformat(),
                version=installed_version("radixloop"),
                dp_rank_count=1,
                loads=[scheduler_load(self._loads.read())],
            )

    async def GetTokenizer(self, request: common_pb2.GetTokenizerRequest, context: Call) -> None:
        async with answering(context, "VllmEngine.GetTokenizer"):
            for chunk in chunks(await self._archive()):
                await context.write(chunk)

    async def _archive(self) -> bytes:
        """Made once; who asks meanwhile waits for the same, and who leaves does not take it with him."""
        made = self._tokenizer
        if made is None or (made.done() and (made.cancelled() or made.exception() is not None)):
            making = asyncio.to_thread(tokenizer_bundle, self._shared.loaded)
            made = self._tokenizer = asyncio.ensure_future(making)
        return await asyncio.shield(made)

    async def SubscribeKvEvents(self, request: common_pb2.SubscribeKvEventsRequest, context: Call) -> None:
        async with answering(context, "VllmEngine.SubscribeKvEvents"):
            shared, hub = self._shared, self._shared.events
            if hub is None:
                # A router that is told so stops asking, and goes by what it has sent where.
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, str(EventsOff()))
                return
            # Without it within two seconds the router takes the runtime for lost, and a step may be longer.
            await context.send_initial_metadata(())
            stream = KvStream(hub, lambda: shared.engine.call(hub.snapshot), LoadRecords(self._loads.read))
            async with aclosing(stream.batches(request.start_sequence_number)) as batches:
                async for batch in batches:
                    await context.write(batch)


_NO_PROFILER = "this runtime has no profiler; its metrics have the time of each part of a step"
