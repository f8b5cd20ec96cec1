"""The gateway's routes: each reads a body, makes calls of the runtime, and answers in its API's words."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from radixloop.tenants import salt_of
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..access import Access
from ..aio import AsyncGenerationStream, AsyncRadixClient
from ..errors import RadixloopError
from ..generate_options import GenerateOptions
from ..prompts import Prompt
from ..results import ModelInfo
from ..retry import RetryPolicy
from .answering import Writer, answer
from .anthropic_messages import CountRequest, MessagesRequest, messages_options, messages_prompt
from .anthropic_writer import MessagesWriter
from .anthropic_writer import error_body as anthropic_error
from .bodies import read_body
from .conversations import conversation_name
from .failures import CLIENT_CLOSED, INTERNAL, UNAVAILABLE, ApiError, from_runtime
from .metrics import GatewayMetrics
from .openai_chat import ChatRequest, ChatWriter, chat_options, chat_prompt
from .openai_completions import CompletionRequest, CompletionWriter, completion_options, completion_prompts
from .openai_shapes import error_body as openai_error
from .openai_shapes import model_body
from .runs import ClientGone, Runs
from .served_model import ServedModel
from .tenants import Tenants
from .token_texts import TokenTexts

MESSAGES = "/v1/messages"

# Whoever calls has retries of its own; two layers of them would multiply.
_ONCE = RetryPolicy(max_attempts=1)

Handler = Callable[[Request], Awaitable[Response]]


def create_app(
    target: str, aliases: Sequence[str] = (), tenants: Tenants | None = None, access: Access | None = None
) -> ASGIApp:
    """The ASGI application in front of the runtime at `target` (HOST:PORT)."""
    gateway = _Gateway(target, aliases, tenants or Tenants(), access)
    posts = {
        "/v1/chat/completions": _answering(gateway.chat),
        "/v1/completions": _answering(gateway.completions),
        MESSAGES: _answering(gateway.messages, anthropic_error),
        f"{MESSAGES}/count_tokens": _answering(gateway.count_tokens, anthropic_error),
    }
    gets = {
        "/v1/models": _answering(gateway.models),
        "/v1/models/{name:path}": _answering(gateway.model),
        "/health": gateway.health,
        "/metrics": gateway.show_metrics,
    }
    routes = [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
    routes += [Route(path, handler, methods=["GET"]) for path, handler in gets.items()]
    handlers = {HTTPException: _no_answer, Exception: _no_answer}
    app = Starlette(routes=routes, lifespan=gateway.lifespan, exception_handlers=handlers)
    return gateway.metrics.around(app, {*posts, *gets})


class _Gateway:
    """Holds nothing but its connection, its counters and what can be asked for again."""

    _client: AsyncRadixClient
    _model: ServedModel
    _texts: TokenTexts

    def __init__(self, target: str, aliases: Sequence[str], tenants: Tenants, access: Access | None) -> None:
        self._target = target
        self._access = access
        self._aliases = aliases
        self._tenants = tenants
        self.metrics = GatewayMetrics()

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        async with AsyncRadixClient(self._target, access=self._access, retry=_ONCE) as self._client:
            self._model = ServedModel(self._client, self._aliases)
            self._texts = TokenTexts(self._client)
            yield

    async def health(self, http: Request) -> Response:
        """Whether the runtime serves. Open to everybody, as probes carry no keys."""
        try:
            status = await self._client.health()
        except RadixloopError as error:
            status = str(error)
        return JSONResponse({"status": status}, 200 if status == "SERVING" else UNAVAILABLE)

    async def show_metrics(self, http: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def models(self, http: Request) -> Response:
        self._tenants.of(http.headers)
        info = await self._model.info()
        data = [model_body(name, info, self._model.since) for name in await self._model.names()]
        return JSONResponse({"object": "list", "data": data})

    async def model(self, http: Request) -> Response:
        self._tenants.of(http.headers)
        name = http.path_params["name"]
        return JSONResponse(model_body(name, await self._model.find(name), self._model.since))

    async def chat(self, http: Request) -> Response:
        tenant = self._tenants.of(http.headers)
        asked = await read_body(http, ChatRequest)
        prompt, options = chat_prompt(asked), chat_options(asked)
        info = await self._model.find(asked.model)
        request_id = uuid.uuid4().hex
        writer = ChatWriter(asked, info, request_id, int(time.time()))
        options["request_id"] = request_id
        _name_conversation(options, asked.prompt_cache_key, http, prompt)
        runs = self._open([prompt], options, salt_of(tenant, asked.cache_salt))
        return await self._answer(http, runs, writer, info, asked.stream)

    async def completions(self, http: Request) -> Response:
        tenant = self._tenants.of(http.headers)
        asked = await read_body(http, CompletionRequest)
        prompts, options = completion_prompts(asked), completion_options(asked)
        info = await self._model.find(asked.model)
        writer = CompletionWriter(asked, info, uuid.uuid4().hex, int(time.time()))
        if len(prompts) == 1:
            _name_conversation(options, asked.prompt_cache_key, http, prompts[0])
        runs = self._open(prompts, options, salt_of(tenant, asked.cache_salt))
        return await self._answer(http, runs, writer, info, asked.stream)

    async def messages(self, http: Request) -> Response:
        tenant = self._tenants.of(http.headers)
        asked = await read_body(http, MessagesRequest)
        prompt, options = messages_prompt(asked), messages_options(asked)
        info = await self._model.find(asked.model)
        request_id = uuid.uuid4().hex
        writer = MessagesWriter(asked, request_id)
        options["request_id"] = request_id
        _name_conversation(options, None, http, prompt)
        runs = self._open([prompt], options, salt_of(tenant, None))
        return await self._answer(http, runs, writer, info, asked.stream)

    async def count_tokens(self, http: Request) -> Response:
        self._tenants.of(http.headers)
        asked = await read_body(http, CountRequest)
        prompt = messages_prompt(asked)
        await self._model.find(asked.model)
        return JSONResponse({"input_tokens": (await self._client.tokenize(prompt)).count})

    def _open(self, prompts: Iterable[Prompt], options: GenerateOptions, salt: str | None) -> Runs:
        if salt is not None:
            options["salt"] = salt
        streams: list[AsyncGenerationStream] = []
        try:
            for prompt in prompts:
                streams.append(self._client.stream(prompt, **options))
        except RadixloopError:
            # One that cannot be sent at all: those before it run already.
            Runs(streams).cancel()
            raise
        return Runs(streams)

    async def _answer(
        self, http: Request, runs: Runs, writer: Writer, model: ModelInfo, stream: bool | None
    ) -> Response:
        texts = partial(self._texts.of, fingerprint=model.fingerprint)
        return await answer(http, runs, writer, texts, stream=bool(stream), ended=self.metrics.ended)


def _name_conversation(options: GenerateOptions, key: str | None, http: Request, prompt: Prompt) -> None:
    name = conversation_name(key, http.headers, prompt)
    if name is not None:
        options["conversation"] = name


def _answering(handler: Handler, body: Callable[[ApiError], Mapping[str, Any]] = openai_error) -> Handler:
    """Turns what `handler` raises into an answer in its API's format."""

    async def answered(http: Request) -> Response:
        try:
            return await handler(http)
        except ApiError as error:
            failed = error
        except RadixloopError as error:
            failed = from_runtime(error)
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED)
        return JSONResponse(body(failed), failed.status, failed.headers())

    return answered


async def _no_answer(http: Request, error: Exception) -> Response:
    """For paths and methods that are not served, and for faults of the gateway itself."""
    status, why = INTERNAL, "the gateway failed; its log says why"
    if isinstance(error, HTTPException):
        status, why = error.status_code, error.detail
    failed = ApiError(status, f"{http.method} {http.url.path}: {why}")
    body = anthropic_error if http.url.path.startswith(MESSAGES) else openai_error
    return JSONResponse(body(failed), status)
