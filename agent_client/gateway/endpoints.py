"""What each route does: reads a body, sends it to a runtime, and answers in its API's words."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from radixloop.tenants import KeyHolder, salt_of
from starlette.requests import Request
from starlette.responses import Response

from ..errors import RadixloopError
from ..generate_options import GenerateOptions
from ..prompts import Prompt
from .anthropic_messages import NAMES, CountRequest, MessagesRequest, messages_options, messages_prompt
from .anthropic_writer import MessagesWriter
from .bodies import read_body
from .cache_control import breakpoints
from .conversations import loop_of
from .explain_header import asked as explanation_asked
from .failures import UNAVAILABLE, from_runtime
from .fleet import SERVING, Attempt, Calls, prompts_with
from .front import Caller, Front, caller_of
from .json_answer import JsonAnswer
from .keeping import Wishes
from .openai_chat import ChatRequest, ChatWriter, chat_options, chat_prompt
from .openai_completions import CompletionRequest, CompletionWriter, completion_options, completion_prompts
from .openai_shapes import model_body
from .sampling import SamplingFields, limit_priority


class Endpoints:
    """Holds nothing: a client sends its whole history with every call."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def health(self, http: Request) -> Response:
        """Whether a runtime serves: open to everybody, as probes carry no keys. Which one, an operator may know."""
        told = await self._front.fleet.look()
        serves = SERVING in told.values()
        body: dict[str, object] = {"status": SERVING if serves else "NOT_SERVING"}
        if self._front.tenants.operates(http.headers):
            body["runtimes"] = told
        return JsonAnswer(body, 200 if serves else UNAVAILABLE)

    async def metrics(self, http: Request) -> Response:
        return Response(self._front.metrics.text(), media_type="text/plain; version=0.0.4")

    async def models(self, http: Request) -> Response:
        self._front.tenants.of(http.headers)
        fleet = self._front.fleet
        data = [model_body(name, info, fleet.since) for name, info in await fleet.models()]
        return JsonAnswer({"object": "list", "data": data})

    async def model(self, http: Request) -> Response:
        self._front.tenants.of(http.headers)
        name, fleet = http.path_params["name"], self._front.fleet
        return JsonAnswer(model_body(name, await fleet.find(name), fleet.since))

    async def chat(self, http: Request) -> Response:
        holder = self._front.tenants.of(http.headers)
        asked = await read_body(http, ChatRequest)
        prompt, options = chat_prompt(asked), chat_options(asked)
        caller = _caller(http, holder, asked, [prompt])
        limit_priority(options, asked, caller.max_priority)
        wishes = self._front.wishes_of(caller, asked)
        request_id = uuid.uuid4().hex
        model = await self._front.fleet.find(asked.model)
        writer = ChatWriter(asked, model, request_id, int(time.time()), wishes)
        options["request_id"] = request_id
        calls = await self._calls(asked.model, [prompt], options, caller, wishes)
        return await self._front.answer(calls, writer, wishes).respond(http, stream=bool(asked.stream))

    async def completions(self, http: Request) -> Response:
        holder = self._front.tenants.of(http.headers)
        asked = await read_body(http, CompletionRequest)
        prompts, options = completion_prompts(asked), completion_options(asked)
        caller = _caller(http, holder, asked, prompts)
        limit_priority(options, asked, caller.max_priority)
        wishes = self._front.wishes_of(caller, asked)
        model = await self._front.fleet.find(asked.model)
        writer = CompletionWriter(asked, model, uuid.uuid4().hex, int(time.time()), wishes)
        calls = await self._calls(asked.model, prompts, options, caller, wishes)
        return await self._front.answer(calls, writer, wishes).respond(http, stream=bool(asked.stream))

    async def messages(self, http: Request) -> Response:
        holder = self._front.tenants.of(http.headers)
        asked = await read_body(http, MessagesRequest)
        prompt, options = messages_prompt(asked), messages_options(asked)
        caller = caller_of(
            holder,
            salt_of(holder.tenant, None),
            loop_of(http.headers),
            [prompt],
            explained=explanation_asked(http.headers),
        )
        wishes = self._front.wishes(caller, breakpoints(asked, asked.cache_control), asked.kv_hints)
        request_id = uuid.uuid4().hex
        writer = MessagesWriter(asked, request_id, wishes)
        options["request_id"] = request_id
        calls = await self._calls(asked.model, [prompt], options, caller, wishes)
        return await self._front.answer(calls, writer, wishes).respond(http, stream=bool(asked.stream))

    async def count_tokens(self, http: Request) -> Response:
        holder = self._front.tenants.of(http.headers)
        asked = await read_body(http, CountRequest)
        prompt = messages_prompt(asked)
        [member, *_] = await self._front.fleet.order(asked.model, loop_of(http.headers).place(holder.tenant, prompt))
        try:
            counted = await member.client.tokenize(prompt, salt=salt_of(holder.tenant, None))
        except RadixloopError as error:
            raise from_runtime(error, NAMES) from error
        return JsonAnswer({"input_tokens": counted.count})

    async def _calls(
        self, model: str, prompts: Sequence[Prompt], options: GenerateOptions, caller: Caller, wishes: Wishes
    ) -> Calls:
        if caller.conversation is not None:
            options["conversation"] = caller.conversation
            options["conversation_ends"] = caller.final
        if caller.salt is not None:
            options["salt"] = caller.salt
        if caller.confined:
            options["verdict_within_namespace"] = True
        if caller.explained:
            options["explain"] = True
        if wishes.any:
            options["return_prompt_ids"] = True
        send = prompts_with(prompts, options)
        members = await self._front.fleet.order(model, caller.place)
        return Calls([Attempt(member, send) for member in members])


def _caller(http: Request, holder: KeyHolder, asked: SamplingFields, prompts: Sequence[Prompt]) -> Caller:
    loop = loop_of(http.headers, asked.prompt_cache_key, asked.nvext)
    salt = salt_of(holder.tenant, asked.cache_salt)
    return caller_of(holder, salt, loop, prompts, explained=explanation_asked(http.headers))
