"""What each of the runtime's errors is called in gRPC."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from radix import InvalidArgument, LeaseNotFound, LeaseRefused
from runtime.errors import (
    EngineFailed,
    EventsOff,
    InvalidRequest,
    NotErased,
    NotForTenants,
    QueueFull,
    RequestCancelled,
    RequestTooLarge,
    SessionNotFound,
    ShuttingDown,
    TemplateRefused,
    TooMany,
)
from runtime.grammar import CompilerBusy, GrammarRefused
from runtime.retention.sessions import SessionBusy, SessionExists, SessionLimit, SessionRefusesPrompt

log = logging.getLogger(__name__)

PUSHBACK_KEY = "grpc-retry-pushback-ms"
# A status travels in a header, where a character may take 12 bytes and clients refuse more than 8 KiB in all.
_MESSAGE_CHARS = 512

_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (InvalidArgument, grpc.StatusCode.INVALID_ARGUMENT),
    (TemplateRefused, grpc.StatusCode.INVALID_ARGUMENT),
    (GrammarRefused, grpc.StatusCode.INVALID_ARGUMENT),
    (CompilerBusy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (RequestTooLarge, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (QueueFull, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (SessionLimit, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (LeaseRefused, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TooMany, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (LeaseNotFound, grpc.StatusCode.NOT_FOUND),
    (SessionNotFound, grpc.StatusCode.NOT_FOUND),
    (SessionExists, grpc.StatusCode.ALREADY_EXISTS),
    (SessionBusy, grpc.StatusCode.FAILED_PRECONDITION),
    (SessionRefusesPrompt, grpc.StatusCode.FAILED_PRECONDITION),
    (NotForTenants, grpc.StatusCode.PERMISSION_DENIED),
    (EventsOff, grpc.StatusCode.FAILED_PRECONDITION),
    (ShuttingDown, grpc.StatusCode.UNAVAILABLE),
    (RequestCancelled, grpc.StatusCode.CANCELLED),
    (EngineFailed, grpc.StatusCode.INTERNAL),
    (NotErased, grpc.StatusCode.INTERNAL),
)


def status_of(error: Exception) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """The status code, message and trailing metadata for an error.

    What is not ours is INTERNAL, and its words stay in the log.
    """
    for kind, code in _CODES:
        if isinstance(error, kind):
            trailing: tuple[tuple[str, str], ...] = ()
            if isinstance(error, QueueFull | CompilerBusy):
                trailing = ((PUSHBACK_KEY, str(max(1, round(error.retry_after_s * 1000)))),)
            return code, str(error), trailing
    return grpc.StatusCode.INTERNAL, "the runtime failed on this call; its log says why", ()


@asynccontextmanager
async def answering(context: grpc.aio.ServicerContext[Any, Any], call: str) -> AsyncIterator[None]:
    """Turn errors raised inside into the call's gRPC status."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except Exception as error:
        code, message, trailing = status_of(error)
        if code is grpc.StatusCode.INTERNAL:
            log.exception("%s failed", call)
        if len(message) > _MESSAGE_CHARS:
            message = f"{message[:_MESSAGE_CHARS]}…"
        await context.abort(code, message, trailing)
