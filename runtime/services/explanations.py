"""The part of the Cache service that says why a prompt would miss."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc.aio
import numpy as np
from radixloop.v1 import cache_pb2, cache_pb2_grpc

from runtime.access.caller import current_caller
from runtime.errors import InvalidRequest
from runtime.prompting.prompts import EncodedPrompt, KnownTexts
from runtime.request import GenerateJob
from runtime.services.convert import namespace_of
from runtime.services.convert_retention import public_tokens, within_context
from runtime.services.divergence import divergence
from runtime.services.service_context import ServiceContext
from runtime.services.status import answering
from runtime.services.verdicts import cached_tokens, verdict_message

Call = grpc.aio.ServicerContext[Any, Any]


class ExplanationCalls(cache_pb2_grpc.CacheServicer):
    """Answers Cache.Explain."""

    _shared: ServiceContext

    async def Explain(self, request: cache_pb2.ExplainRequest, context: Call) -> cache_pb2.ExplainResponse:
        async with answering(context, "Cache.Explain"):
            shared = self._shared
            job, prompt = await self._job(request)
            verdict = await asyncio.wrap_future(shared.engine.explain(job))
            cached = cached_tokens(verdict)
            pace = shared.pace.seconds_a_token
            return cache_pb2.ExplainResponse(
                prompt_tokens=len(job.tokens),
                cached_tokens=cached,
                verdict=verdict_message(verdict, time.monotonic()),
                divergence=await divergence(shared.encoder, job.tokens, prompt, verdict),
                prefill_s_per_token=pace,
                estimated_s=None if pace is None else pace * (len(job.tokens) - cached),
                eviction=shared.config.eviction,
            )

    async def _job(self, request: cache_pb2.ExplainRequest) -> tuple[GenerateJob, EncodedPrompt | None]:
        """What would be admitted, and the prompt where it starts anew."""
        shared = self._shared
        prompt: EncodedPrompt | None = None
        if request.HasField("session_id"):
            if request.HasField("namespace"):
                raise InvalidRequest("namespace", "set", "not with session_id: a session has its namespace")
            session = shared.sessions.get(request.session_id, current_caller().tenant)
            namespace, tokens = session.namespace, session.tokens
            if request.HasField("prompt"):
                turn = await shared.encoder.encode_turn(session, request.prompt)
                tokens = np.concatenate([tokens, turn.tokens])
            elif not len(tokens):
                raise InvalidRequest("prompt", "unset", "the session is empty: there is nothing to explain")
        else:
            namespace = namespace_of(request.namespace, shared.info.fingerprint)
            known = KnownTexts(namespace, public_tokens(request), only_look=True)
            prompt = await shared.encoder.encode(request.prompt, known=known)
            tokens = prompt.tokens
        job = GenerateJob(
            request_id="explain",
            tokens=within_context(tokens, shared.info.context_length),
            namespace=namespace,
            public_tokens=public_tokens(request),
        )
        return job, prompt
