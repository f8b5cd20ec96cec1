"""One exception class for each gRPC status that a caller can act on."""

from __future__ import annotations

from typing import Any, ClassVar

PUSHBACK_KEY = "grpc-retry-pushback-ms"


class RadixloopError(Exception):
    """Base of everything that the client raises for a call.

    `code` is the gRPC status name (``"INVALID_ARGUMENT"``), `message` the runtime's words,
    `retry_after_s` the seconds after which the runtime wants to be asked again, or None.
    """

    code: ClassVar[str] = "UNKNOWN"

    def __init__(self, message: str, *, code: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code  # type: ignore[misc]

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class InvalidArgument(RadixloopError):
    """A field holds a value outside its limit; the message names both. Also raised before anything is sent."""

    code = "INVALID_ARGUMENT"


class NotFound(RadixloopError):
    """No such session (any more)."""

    code = "NOT_FOUND"


class AlreadyExists(RadixloopError):
    """The chosen id is taken."""

    code = "ALREADY_EXISTS"


class ResourceExhausted(RadixloopError):
    """The queue is full (`retry_after_s` is set), or the request can never fit (it is None)."""

    code = "RESOURCE_EXHAUSTED"


class FailedPrecondition(RadixloopError):
    """The runtime is not in a state to do this, or the model's template refuses the messages."""

    code = "FAILED_PRECONDITION"


class Unavailable(RadixloopError):
    """No runtime answers at the target, or it is shutting down."""

    code = "UNAVAILABLE"


class DeadlineExceeded(RadixloopError):
    """The call took longer than its timeout_s."""

    code = "DEADLINE_EXCEEDED"


class Cancelled(RadixloopError):
    """The call was cancelled, here or by the runtime."""

    code = "CANCELLED"


class Aborted(RadixloopError):
    """The runtime gave the call up; nothing of it was kept."""

    code = "ABORTED"


class PermissionDenied(RadixloopError):
    """These credentials may not do this."""

    code = "PERMISSION_DENIED"


class Unauthenticated(RadixloopError):
    """The runtime wants credentials, or does not know these."""

    code = "UNAUTHENTICATED"


class Unimplemented(RadixloopError):
    """The runtime is older than this client and has no such method."""

    code = "UNIMPLEMENTED"


class Internal(RadixloopError):
    """The runtime failed; the fault is not the caller's."""

    code = "INTERNAL"


_BY_CODE: dict[str, type[RadixloopError]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        ResourceExhausted,
        FailedPrecondition,
        Unavailable,
        DeadlineExceeded,
        Cancelled,
        Aborted,
        PermissionDenied,
        Unauthenticated,
        Unimplemented,
        Internal,
    )
}


def from_rpc_error(error: Any) -> RadixloopError:
    """The typed error for a `grpc.RpcError` of either API (sync or asyncio)."""
    code = error.code()
    name = getattr(code, "name", "UNKNOWN")
    message = error.details() or "the runtime gave no reason"
    retry_after_s = _retry_after_s(error.trailing_metadata())
    kind = _BY_CODE.get(name)
    if kind is None:
        return RadixloopError(message, code=name, retry_after_s=retry_after_s)
    return kind(message, retry_after_s=retry_after_s)


def _retry_after_s(metadata: Any) -> float | None:
    for key, value in metadata or ():
        if key == PUSHBACK_KEY:
            try:
                milliseconds = int(value)
            except ValueError:
                return None
            return milliseconds / 1000 if milliseconds >= 0 else None
    return None
