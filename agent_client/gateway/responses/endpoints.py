"""POST /v1/responses, and GET and DELETE of those that are kept."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from radixloop.tenants import salt_of
from starlette.requests import Request
from starlette.responses import Response

from ...aio import AsyncRadixClient
from ...calls import close_session
from ...errors import RadixloopError
from ..bodies import read_body
from ..conversations import loop_of
from ..explain_header import asked as explanation_asked
from ..fleet import Calls
from ..fleet.places import digest
from ..front import Front, caller_of
from ..json_answer import JsonAnswer
from ..sampling import limit_priority
from .request import Message, ResponsesRequest, chat_of, new_messages, turn_options
from .store import Place, ResponseStore, Stored
from .turn import Turn
from .writer import ResponseWriter


class ResponsesEndpoints:
    """Keeps the conversations that may be gone on from, here and as sessions of the runtimes."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._store = ResponseStore(self._close)
        self._closing: set[asyncio.Task[None]] = set()

    async def create(self, http: Request) -> Response:
        front, holder = self._front, self._front.tenants.of(http.headers)
        tenant = holder.tenant
        asked = await read_body(http, ResponsesRequest)
        asked.refuse_unserved()
        tools, new = asked.chat_tools(), new_messages(asked)
        options = turn_options(asked, tools)
        loop = loop_of(http.headers, asked.prompt_cache_key, asked.nvext)
        previous = self._previous(asked, tenant)
        # A conversation stays in the namespace in which it began.
        salt = previous.salt if previous else salt_of(tenant, asked.cache_salt)
        history: Sequence[Message] = previous.messages if previous else ()
        whole = chat_of(asked.instructions, history, new, tools)
        asked_why = explanation_asked(http.headers)
        caller, head = caller_of(holder, salt, loop, [whole], explained=asked_why), digest([asked.instructions, tools])
        if previous is not None:
            caller = replace(caller, place=previous.loop)
        limit_priority(options, asked, caller.max_priority)
        wishes = front.wishes_of(caller, asked)
        if caller.confined:
            options["verdict_within_namespace"] = True
        if caller.explained:
            options["explain"] = True
        if wishes.any:
            options["return_prompt_ids"] = True
        request_id = uuid.uuid4().hex
        options["request_id"] = request_id
        members = await front.fleet.order(asked.model, caller.place)
        keeps = asked.keeps and not caller.final
        turn = Turn(whole, chat_of(None, (), new, tools), options, salt, keeps=keeps)
        if caller.conversation is not None and not keeps:
            options["conversation"] = caller.conversation
            options["conversation_ends"] = caller.final
        session = None
        if previous is not None and (keeps or caller.final):
            session = self._store.take_session(previous.body["id"], previous, members[0].target, head)
        if session is not None and caller.final:
            self._close(session)
            session = None

        def ended(body: dict[str, Any], said: Message) -> None:
            if asked.keeps:
                messages, chars = [*history, *new, said], len(str(body)) + len(str(new))
                stored = Stored(body, tenant, salt, messages, head, caller.place, chars, turn.handed_over())
                self._store.put(body["id"], stored)

        def closed() -> None:
            left = turn.handed_over()
            if left is not None:
                self._close(left)

        writer = ResponseWriter(asked, request_id, wishes, ended)
        answer = front.answer(Calls(turn.attempts(members, session)), writer, wishes, closed)
        return await answer.respond(http, stream=bool(asked.stream))

    async def kept(self, http: Request) -> Response:
        """GET and DELETE of a response."""
        body = self._asked_for(http).body
        if http.method != "DELETE":
            return JsonAnswer(body)
        name = body["id"]
        self._store.drop(name)
        return JsonAnswer({"id": name, "object": "response", "deleted": True})

    def _asked_for(self, http: Request) -> Stored:
        tenant = self._front.tenants.of(http.headers).tenant
        return self._store.get(http.path_params["name"], tenant, "response_id")

    def _previous(self, asked: ResponsesRequest, tenant: str | None) -> Stored | None:
        if asked.previous_response_id is None:
            return None
        return self._store.get(asked.previous_response_id, tenant, "previous_response_id")

    def _close(self, place: Place) -> None:
        """Ends a session in the background; one that cannot be reached idles out by itself."""
        member = next((member for member in self._front.fleet.members if member.target == place.target), None)
        if member is not None:
            task = asyncio.create_task(_close_session(member.client, place.session_id))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


async def _close_session(client: AsyncRadixClient, session_id: str) -> None:
    try:
        await client._unary(close_session(session_id))
    except RadixloopError:
        return
