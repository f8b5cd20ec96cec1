"""The Inference service: generation as a stream, tokenising, and facts about the model."""

from __future__ import annotations

import uuid
from collections.abc import Hashable
from contextlib import ExitStack
from importlib.metadata import version as installed_version
from typing import Any

import grpc.aio
import numpy as np
from radixloop.v1 import inference_pb2, inference_pb2_grpc

from radix import Namespace
from runtime.access.caller import current_caller
from runtime.errors import InvalidRequest
from runtime.events import DeltaEvent, FailedEvent, FinishedEvent, StartedEvent
from runtime.prompting.prompts import EncodedPrompt, KnownTexts
from runtime.request import GenerateJob
from runtime.retention.keeping import conversation_holder, session_holder
from runtime.retention.sessions import Session
from runtime.sampling.sampling_params import SamplingParams
from runtime.services.convert import checked_id, namespace_of, sampling_params
from runtime.services.convert_retention import conversation_ends, conversation_name, priority, public_tokens
from runtime.services.divergence import divergence, drift_message
from runtime.services.replies import ReplyWriter, token_ids
from runtime.services.service_context import ServiceContext
from runtime.services.status import answering
from runtime.services.stream_buffer import StreamBuffer

Call = grpc.aio.ServicerContext[Any, Any]


class InferenceService(inference_pb2_grpc.InferenceServicer):
    """Answers radixloop.v1.Inference."""

    def __init__(self, shared: ServiceContext) -> None:
        self._shared = shared

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Call) -> None:
        async with answering(context, "Inference.Generate"):
            with ExitStack() as held:
                await self._generate(request, context, held)

    async def Tokenize(self, request: inference_pb2.TokenizeRequest, context: Call) -> inference_pb2.TokenizeResponse:
        async with answering(context, "Inference.Tokenize"):
            encoder = self._shared.encoder
            special = request.add_special_tokens if request.HasField("add_special_tokens") else True
            namespace = namespace_of(request.namespace, self._shared.info.fingerprint)
            known = KnownTexts(namespace, public_tokens(request), only_look=True)
            encoded = await encoder.encode(
                request.prompt, add_special_tokens=special, known=None if request.plain else known
            )
            rendered = await encoder.render(request.prompt)
            return inference_pb2.TokenizeResponse(
                token_ids=token_ids(encoded.tokens), count=len(encoded.tokens), rendered=rendered
            )

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: Call
    ) -> inference_pb2.DetokenizeResponse:
        async with answering(context, "Inference.Detokenize"):
            text = await self._shared.encoder.decode(request.token_ids, keep_special_tokens=request.keep_special_tokens)
            return inference_pb2.DetokenizeResponse(text=text)

    async def GetModelInfo(
        self, request: inference_pb2.GetModelInfoRequest, context: Call
    ) -> inference_pb2.GetModelInfoResponse:
        shared, info = self._shared, self._shared.info
        return inference_pb2.GetModelInfoResponse(
            model=info.name,
            architecture=info.architecture,
            context_length=info.context_length,
            vocab_size=info.vocab_size,
            kv_dtype=info.kv_dtype,
            host_kv_dtype=info.host_kv_dtype,
            device=info.device,
            block_size=shared.config.block_size,
            num_blocks=shared.num_blocks,
            kv_bytes_per_token=info.kv_bytes_per_token,
            plain_kv_bytes_per_token=info.plain_kv_bytes_per_token,
            eos_token_ids=info.eos_token_ids,
            has_chat_template=info.has_chat_template,
            fingerprint=info.fingerprint,
            attention_backend=info.attention_backend,
            forward=info.forward,
            weights=info.weights,
            runtime_id=shared.runtime_id,
            incarnation=shared.incarnation,
            version=installed_version("radixloop"),
            template_drifts=[drift_message(drift) for drift in shared.encoder.drifts],
        )

    async def _generate(self, request: inference_pb2.GenerateRequest, context: Call, held: ExitStack) -> None:
        info, holds, branches = self._shared.info, self._shared.holds, self._shared.branches
        sampling = sampling_params(request.sampling, info.vocab_size)
        conversation, ends = conversation_name(request), conversation_ends(request)
        session: Session | None = None
        if request.HasField("session_id"):
            session = self._enter_session(request, sampling, held)
            prompt = await self._shared.encoder.encode_turn(session, request.prompt)
            tokens = np.concatenate([session.tokens, prompt.tokens])
            namespace = session.namespace
        else:
            namespace = namespace_of(request.namespace, info.fingerprint)
            known = None if request.bypass_cache else KnownTexts(namespace, public_tokens(request))
            prompt = await self._shared.encoder.encode(request.prompt, known=known)
            tokens = prompt.tokens
        holder = _holder(session, namespace, conversation)
        payer = current_caller().payer(namespace)
        rules = await self._shared.grammars.rules(request, prompt.chat, sampling, payer)
        job = GenerateJob(
            request_id=_request_id(request),
            tokens=tokens,
            namespace=namespace,
            sampling=rules.sampling,
            bypass_cache=request.bypass_cache,
            public_tokens=public_tokens(request),
            priority=priority(request, 0),
            # Forks of a session are branches of one program.
            program=holder if session is None else session.family,
            ends_program=ends,
            grammar=rules.grammar,
            verdict_within_namespace=request.verdict_within_namespace,
        )
        buffer = StreamBuffer(self._shared.wakeups)
        handle = self._shared.engine.submit(job, buffer.push)
        # Runs however this ends: by a cancelled call, a lost client, a deadline, an error, or after the last event.
        held.callback(handle.cancel)
        end_hold = holds.resume(holder) if holder is not None else None
        if end_hold is not None:
            held.callback(end_hold)
        if conversation is not None and not request.bypass_cache:
            branches.conversation_arrives(holder, namespace, tokens)
        writer = ReplyWriter(job.request_id, tokens, return_prompt_ids=request.return_prompt_ids, reader=rules.reader)
        said = [""] * sampling.n
        while True:
            for event in await buffer.take():
                if isinstance(event, FailedEvent):
                    raise event.error
                if isinstance(event, DeltaEvent):
                    said[event.index] += event.text
                if isinstance(event, FinishedEvent):
                    await self._shared.encoder.learn(prompt, event.outputs, said)
                    if session is not None:
                        keep_turn(session, prompt, event, writer)
                        if session.closed:
                            branches.session_ended(session)
                            holder = None
                    if holder is not None and not request.bypass_cache:
                        whole = np.concatenate([tokens, np.array(event.outputs[0], np.int32)])
                        if ends:
                            branches.conversation_ended(holder, namespace, whole)
                        else:
                            holds.begin_quietly(holder, whole, namespace, writer.tool_names())
                            if conversation is not None:
                                branches.conversation_said(holder, whole)
                    # The client's next turn may follow on this message's heels: everything is given back before it.
                    held.close()
                    await context.write(writer.finished(event, None if session is None else len(session)))
                    return
                if isinstance(event, StartedEvent) and end_hold is not None:
                    # The request holds its prefix itself from now on.
                    end_hold()
                if isinstance(event, StartedEvent):
                    parted = None
                    if request.explain:
                        told = prompt if session is None else None
                        parted = await divergence(self._shared.encoder, tokens, told, event.verdict)
                    await context.write(writer.started(event, parted))
                else:
                    await context.write(writer.delta(event))

    def _enter_session(
        self, request: inference_pb2.GenerateRequest, sampling: SamplingParams, held: ExitStack
    ) -> Session:
        if request.HasField("namespace"):
            raise InvalidRequest("namespace", "set", "not with session_id: a session has its namespace")
        if sampling.n > 1:
            raise InvalidRequest("sampling.n", sampling.n, "must be 1 with session_id: fork the session to branch")
        return held.enter_context(self._shared.sessions.turn(request.session_id, current_caller().tenant))


def keep_turn(session: Session, prompt: EncodedPrompt, event: FinishedEvent, writer: ReplyWriter) -> None:
    """Make a finished turn part of its session."""
    session.append(prompt.tokens)
    session.append(event.outputs[0])
    if prompt.chat is None:
        session.kind = "tokens"
        return
    session.kind = "chat"
    session.tools = prompt.chat.tools
    session.template_kwargs = prompt.chat.template_kwargs
    session.add_chat_turn(prompt.chat.messages, writer.assistant_message(0))


def _holder(session: Session | None, namespace: Namespace, conversation: str | None) -> Hashable | None:
    """Who waits for the tools that this call asks for; None where nobody can be known to come back."""
    if session is not None:
        return session_holder(session)
    return None if conversation is None else conversation_holder(namespace, conversation)


def _request_id(request: inference_pb2.GenerateRequest) -> str:
    if request.HasField("request_id"):
        return checked_id("request_id", request.request_id)
    return uuid.uuid4().hex
