"""What went wrong with an HTTP request, and the status that each of the runtime's errors becomes."""

from __future__ import annotations

import logging
import math
import re

from ..errors import RadixloopError
from .field_names import RUNTIMES_NAMES, FieldNames

log = logging.getLogger(__name__)

BAD_REQUEST, UNAUTHORIZED, NOT_FOUND, TOO_LARGE, TOO_MANY = 400, 401, 404, 413, 429
# Not in the standard: the client closed the connection before the answer.
CLIENT_CLOSED = 499
INTERNAL, BAD_GATEWAY, UNAVAILABLE = 500, 502, 503
FAULT = "the gateway failed; its log says why"

_UNAVAILABLE_RETRY_S = 1.0
_STATUS = {
    "INVALID_ARGUMENT": BAD_REQUEST,
    "FAILED_PRECONDITION": BAD_REQUEST,
    "NOT_FOUND": NOT_FOUND,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "CANCELLED": CLIENT_CLOSED,
    "UNIMPLEMENTED": 501,
    # The gateway's own credentials, not the caller's.
    "UNAUTHENTICATED": BAD_GATEWAY,
    "PERMISSION_DENIED": BAD_GATEWAY,
    "UNAVAILABLE": UNAVAILABLE,
    "DEADLINE_EXCEEDED": 504,
}
# Where the runtimes are, and what the gateway is to them, is nothing to its clients: the log has their own words.
_TOLD = {
    501: "the runtime is older than the gateway and does not serve this",
    BAD_GATEWAY: "the runtime does not let the gateway in",
    UNAVAILABLE: "the runtime cannot be reached; ask again in a moment",
    504: "the runtime took too long",
}
# Clients look for this code, and Anthropic's for its words, before they shorten a history.
TOO_LONG = "context_length_exceeded"
_TOO_LONG = re.compile(r"prompt\S* is '\d+ (?:tokens|ids|bytes)': at most .* context")


class ApiError(Exception):
    """A request that is refused or failed.

    `param` names the field of the body that is at fault, `code` is a machine-readable reason, and `retry_after_s`
    the seconds after which to ask again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        return {} if self.retry_after_s is None else {"retry-after": str(max(1, math.ceil(self.retry_after_s)))}


def refused(param: str, why: str) -> ApiError:
    """A field whose value is not served."""
    return ApiError(BAD_REQUEST, f"{param}: {why}", param=param)


def from_runtime(error: RadixloopError, names: FieldNames = RUNTIMES_NAMES) -> ApiError:
    """The HTTP form of an error of the runtime, or of the client before anything was sent.

    `names` are those of the body. What the body does not tell is logged.
    """
    if error.code == "RESOURCE_EXHAUSTED":
        if error.retry_after_s is None:
            # Asking again would not help: the request can never fit.
            return ApiError(BAD_REQUEST, error.message, code=TOO_LONG)
        return ApiError(TOO_MANY, error.message, code="rate_limit_exceeded", retry_after_s=error.retry_after_s)
    status = _STATUS.get(error.code, INTERNAL)
    message, param = names.told(error.message) if status == BAD_REQUEST else (error.message, None)
    if status in _TOLD:
        log.warning("answered with %d: %s", status, error)
        message = _TOLD[status]
    code = TOO_LONG if _TOO_LONG.match(error.message) else None
    retry_after_s = (error.retry_after_s or _UNAVAILABLE_RETRY_S) if status == UNAVAILABLE else None
    return ApiError(status, message, param=param, code=code, retry_after_s=retry_after_s)
