"""The gateway's routes, and what goes wrong on them in each API's format."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..access import Access
from ..errors import RadixloopError
from .anthropic_writer import error_body as anthropic_error
from .endpoints import Endpoints
from .failures import CLIENT_CLOSED, FAULT, INTERNAL, ApiError, from_runtime
from .fleet import Fleet
from .front import Front
from .json_answer import JsonAnswer
from .openai_shapes import error_body as openai_error
from .responses import ResponsesEndpoints
from .runs import ClientGone
from .tenants import Tenants

log = logging.getLogger(__name__)

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"

Handler = Callable[[Request], Awaitable[Response]]


def create_app(
    targets: str | Sequence[str],
    aliases: Sequence[str] = (),
    tenants: Tenants | None = None,
    access: Access | None = None,
) -> ASGIApp:
    """The ASGI application in front of the runtimes at `targets` (HOST:PORT, one or several)."""
    fleet = Fleet([targets] if isinstance(targets, str) else targets, aliases, access)
    front = Front(fleet, tenants or Tenants())
    gateway, responses = Endpoints(front), ResponsesEndpoints(front)
    posts = {
        "/v1/chat/completions": _answering(gateway.chat),
        "/v1/completions": _answering(gateway.completions),
        RESPONSES: _answering(responses.create),
        MESSAGES: _answering(gateway.messages, anthropic_error),
        f"{MESSAGES}/count_tokens": _answering(gateway.count_tokens, anthropic_error),
    }
    gets = {
        "/v1/models": _answering(gateway.models),
        "/v1/models/{name:path}": _answering(gateway.model),
        "/health": gateway.health,
        "/metrics": gateway.metrics,
    }
    routes = [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
    routes += [Route(path, handler, methods=["GET"]) for path, handler in gets.items()]
    routes.append(Route(f"{RESPONSES}/{{name}}", _answering(responses.kept), methods=["GET", "DELETE"]))
    handlers = {HTTPException: _no_answer, Exception: _no_answer}
    app = Starlette(routes=routes, lifespan=lambda _: fleet.connected(), exception_handlers=handlers)
    return front.metrics.around(app, {*posts, *gets})


def _answering(handler: Handler, body: Callable[[ApiError], Mapping[str, Any]] = openai_error) -> Handler:
    """Turns what `handler` raises into an answer in its API's format."""

    async def answered(http: Request) -> Response:
        try:
            return await handler(http)
        except ApiError as error:
            failed = error
        except RadixloopError as error:
            failed = from_runtime(error)
        except (ClientGone, ClientDisconnect):
            return Response(status_code=CLIENT_CLOSED)
        except HTTPException:
            raise
        except Exception:
            # Left to the server, it would also close the connection under the client's next request.
            log.exception("%s %s failed", http.method, http.url.path)
            failed = ApiError(INTERNAL, FAULT)
        return JsonAnswer(body(failed), failed.status, failed.headers())

    return answered


async def _no_answer(http: Request, error: Exception) -> Response:
    """For paths and methods that are not served, and for faults of the gateway itself."""
    status, why = INTERNAL, FAULT
    if isinstance(error, HTTPException):
        status, why = error.status_code, error.detail
    failed = ApiError(status, f"{http.method} {http.url.path}: {why}")
    body = anthropic_error if http.url.path.startswith(MESSAGES) else openai_error
    return JsonAnswer(body(failed), status, getattr(error, "headers", None))
