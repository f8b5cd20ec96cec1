"""The gateway's routes, and what goes wrong on them in each API's format."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..access import Access
from ..errors import RadixloopError
from .anthropic_writer import error_body as anthropic_error
from .endpoints import Endpoints
from .failures import CLIENT_CLOSED, INTERNAL, ApiError, from_runtime
from .fleet import Fleet
from .openai_shapes import error_body as openai_error
from .runs import ClientGone
from .tenants import Tenants

MESSAGES = "/v1/messages"

Handler = Callable[[Request], Awaitable[Response]]


def create_app(
    targets: str | Sequence[str],
    aliases: Sequence[str] = (),
    tenants: Tenants | None = None,
    access: Access | None = None,
) -> ASGIApp:
    """The ASGI application in front of the runtimes at `targets` (HOST:PORT, one or several)."""
    fleet = Fleet([targets] if isinstance(targets, str) else targets, aliases, access)
    gateway = Endpoints(fleet, tenants or Tenants())
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
