"""The Sessions service: open, fork, cut, hold and close."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from radixloop.v1 import sessions_pb2, sessions_pb2_grpc

from runtime.access.caller import current_caller
from runtime.errors import InvalidRequest
from runtime.retention.keeping import session_holder
from runtime.retention.sessions import SessionBusy
from runtime.services.convert import checked_id, namespace_of
from runtime.services.service_context import ServiceContext
from runtime.services.status import answering

Call = grpc.aio.ServicerContext[Any, Any]


class SessionsService(sessions_pb2_grpc.SessionsServicer):
    """Answers radixloop.v1.Sessions."""

    def __init__(self, shared: ServiceContext) -> None:
        self._shared = shared

    async def Open(self, request: sessions_pb2.OpenSessionRequest, context: Call) -> sessions_pb2.OpenSessionResponse:
        async with answering(context, "Sessions.Open"):
            wanted = checked_id("session_id", request.session_id) if request.HasField("session_id") else None
            namespace = namespace_of(request.namespace, self._shared.info.fingerprint)
            session = self._shared.sessions.open(namespace, wanted, current_caller().tenant)
            return sessions_pb2.OpenSessionResponse(session_id=session.id, idle_timeout_s=self._shared.sessions.idle_s)

    async def Fork(self, request: sessions_pb2.ForkSessionRequest, context: Call) -> sessions_pb2.ForkSessionResponse:
        async with answering(context, "Sessions.Fork"):
            wanted = (
                checked_id("new_session_id", request.new_session_id) if request.HasField("new_session_id") else None
            )
            child = self._shared.sessions.fork(request.session_id, wanted, current_caller().tenant)
            return sessions_pb2.ForkSessionResponse(session_id=child.id, tokens=len(child))

    async def Truncate(
        self, request: sessions_pb2.TruncateSessionRequest, context: Call
    ) -> sessions_pb2.TruncateSessionResponse:
        async with answering(context, "Sessions.Truncate"):
            kept = request.WhichOneof("keep")
            if kept is None:
                raise InvalidRequest("keep", "unset", "give one of tokens or messages")
            with self._shared.sessions.turn(request.session_id, current_caller().tenant) as session:
                before = session.tokens
                session.cut(session.place_to_cut(**{kept: getattr(request, kept)}))
                # What was held for a tool is not what the next turn will go on from.
                self._shared.holds.forget(session_holder(session))
                marked = await asyncio.wrap_future(self._shared.branches.session_cut(session, before))
                return sessions_pb2.TruncateSessionResponse(
                    tokens=len(session), messages=len(session.messages), superseded_tokens=marked
                )

    async def Hold(self, request: sessions_pb2.HoldSessionRequest, context: Call) -> sessions_pb2.HoldSessionResponse:
        async with answering(context, "Sessions.Hold"):
            tool = checked_id("tool", request.tool)
            session = self._shared.sessions.get(request.session_id, current_caller().tenant)
            if session.busy:
                raise SessionBusy(session.id)
            if not len(session):
                raise InvalidRequest("session_id", session.id, "the session is empty: there is nothing to hold")
            held = self._shared.holds.begin(session_holder(session), session.tokens, session.namespace, [tool])
            lease, covered = await asyncio.wrap_future(held)
            return sessions_pb2.HoldSessionResponse(lease_id=lease.id, ttl_s=lease.ttl_s, tokens=covered)

    async def Close(
        self, request: sessions_pb2.CloseSessionRequest, context: Call
    ) -> sessions_pb2.CloseSessionResponse:
        async with answering(context, "Sessions.Close"):
            session = self._shared.sessions.close(request.session_id, current_caller().tenant)
            return sessions_pb2.CloseSessionResponse(
                closed=session is not None, tokens=0 if session is None else len(session)
            )
