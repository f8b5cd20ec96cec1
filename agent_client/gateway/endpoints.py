"""What each route does: reads a body, sends it to a runtime, and answers in its API's words."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from radixloop.tenants import salt_of
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..generate_options import GenerateOptions
from ..prompts import Prompt
from .answering import Answer, Writer
from .anthropic_messages import CountRequest, MessagesRequest, messages_options, messages_prompt
from .anthropic_writer import MessagesWriter
from .bodies import read_body
from .cache_control import breakpoints, keep_all
from .conversations import Loop, loop_of
from .failures import UNAVAILABLE
from .fleet import Calls, Fleet, prompts_with
from .keeping import Breakpoint, HintDesk, KvHints, LeaseBook, Wishes
from .metrics import GatewayMetrics
from .openai_chat import ChatRequest, ChatWriter, chat_options, chat_prompt
from .openai_completions import CompletionRequest, CompletionWriter, completion_options, completion_prompts
from .openai_shapes import model_body
from .sampling import SamplingFields
from .tenants import Tenants


class Endpoints:
    """Holds nothing but its connections, its counters, and what can be asked for again."""

    def __init__(self, fleet: Fleet, tenants: Tenants) -> None:
        self._fleet = fleet
        self._tenants = tenants
        self.metrics = GatewayMetrics(fleet)
        self._leases = LeaseBook(self.metrics.leased)
        self._hints = HintDesk(self._leases, self.metrics.hinted)

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        async with self._fleet.connected():
            yield

    async def health(self, http: Request) -> Response:
        """Whether a runtime serves, and which. Open to everybody, as probes carry no keys."""
        told = await self._fleet.look()
        serving = [status for status in told.values() if status == "SERVING"]
        status = serving[0] if serving else "; ".join(told.values())
        return JSONResponse({"status": status, "runtimes": told}, 200 if serving else UNAVAILABLE)

    async def show_metrics(self, http: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def models(self, http: Request) -> Response:
        self._tenants.of(http.headers)
        data = [model_body(name, info, self._fleet.since) for name, info in await self._fleet.models()]
        return JSONResponse({"object": "list", "data": data})

    async def model(self, http: Request) -> Response:
        self._tenants.of(http.headers)
        name = http.path_params["name"]
        return JSONResponse(model_body(name, await self._fleet.find(name), self._fleet.since))

    async def chat(self, http: Request) -> Response:
        tenant = self._tenants.of(http.headers)
        asked = await read_body(http, ChatRequest)
        prompt, options = chat_prompt(asked), chat_options(asked)
        loop, salt = loop_of(http.headers, asked.prompt_cache_key, asked.nvext), salt_of(tenant, asked.cache_salt)
        wishes = self._wishes(salt, loop.place(tenant, prompt), _marked(asked), asked.kv_hints)
        request_id = uuid.uuid4().hex
        writer = ChatWriter(asked, await self._fleet.find(asked.model), request_id, int(time.time()), wishes)
        options["request_id"] = request_id
        calls = await self._calls(asked.model, [prompt], options, loop, tenant, salt, wishes)
        return await self._answer(calls, writer, wishes).respond(http, stream=bool(asked.stream))

    async def completions(self, http: Request) -> Response:
        tenant = self._tenants.of(http.headers)
        asked = await read_body(http, CompletionRequest)
        prompts, options = completion_prompts(asked), completion_options(asked)
        loop, salt = loop_of(http.headers, asked.prompt_cache_key, asked.nvext), salt_of(tenant, asked.cache_salt)
        wishes = self._wishes(salt, loop.place(tenant, prompts[0]), _marked(asked), asked.kv_hints)
        model = await self._fleet.find(asked.model)
        writer = CompletionWriter(asked, model, uuid.uuid4().hex, int(time.time()), wishes)
        calls = await self._calls(asked.model, prompts, options, loop, tenant, salt, wishes)
        return await self._answer(calls, writer, wishes).respond(http, stream=bool(asked.stream))

    async def messages(self, http: Request) -> Response:
        tenant = self._tenants.of(http.headers)
        asked = await read_body(http, MessagesRequest)
        prompt, options = messages_prompt(asked), messages_options(asked)
        loop, salt = loop_of(http.headers), salt_of(tenant, None)
        marked = breakpoints(asked, asked.cache_control)
        wishes = self._wishes(salt, loop.place(tenant, prompt), marked, asked.kv_hints)
        request_id = uuid.uuid4().hex
        writer = MessagesWriter(asked, request_id, wishes)
        options["request_id"] = request_id
        calls = await self._calls(asked.model, [prompt], options, loop, tenant, salt, wishes)
        return await self._answer(calls, writer, wishes).respond(http, stream=bool(asked.stream))

    async def count_tokens(self, http: Request) -> Response:
        tenant = self._tenants.of(http.headers)
        asked = await read_body(http, CountRequest)
        prompt = messages_prompt(asked)
        [member, *_] = await self._fleet.order(asked.model, loop_of(http.headers).place(tenant, prompt))
        return JSONResponse({"input_tokens": (await member.client.tokenize(prompt)).count})

    def _wishes(self, salt: str | None, place: str, marked: Sequence[Breakpoint], hints: KvHints | None) -> Wishes:
        return Wishes(self._leases, self._hints, salt=salt, loop=place, breakpoints=marked, hints=hints)

    async def _calls(
        self,
        model: str,
        prompts: Sequence[Prompt],
        options: GenerateOptions,
        loop: Loop,
        tenant: str | None,
        salt: str | None,
        wishes: Wishes,
    ) -> Calls:
        conversation = loop.conversation(prompts[0]) if len(prompts) == 1 else None
        if conversation is not None:
            options["conversation"] = conversation
            options["conversation_ends"] = loop.final
        if salt is not None:
            options["salt"] = salt
        if wishes.any:
            options["return_prompt_ids"] = True
        members = await self._fleet.order(model, loop.place(tenant, prompts[0]))
        return Calls(members, prompts_with(prompts, options))

    def _answer(self, calls: Calls, writer: Writer, wishes: Wishes) -> Answer:
        return Answer(calls, writer, wishes, self.metrics.ended)


def _marked(asked: SamplingFields) -> list[Breakpoint]:
    return keep_all(asked.nvext.cache_control if asked.nvext else None, "nvext.cache_control")
