"""What the runtime refuses, each with the numbers that a caller needs to mend it."""

from __future__ import annotations


class RuntimeServiceError(Exception):
    """Base of every error that a caller of the runtime can cause or must handle."""


class InvalidRequest(RuntimeServiceError):
    """A field holds a value outside its limit."""

    def __init__(self, field: str, value: object, limit: str) -> None:
        # A text may be as long as a message: what is cut off is not looked at.
        shown = repr(value[:80] if isinstance(value, str) else value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{field} is {shown}: {limit}")
        self.field = field
        self.value = value
        self.limit = limit


class RequestTooLarge(RuntimeServiceError):
    """The request could not run even with the whole pool to itself."""

    def __init__(self, needed_tokens: int, limit_tokens: int) -> None:
        super().__init__(
            f"the request needs room for {needed_tokens} tokens of KV, the whole pool has room for {limit_tokens}; "
            "shorten the prompt, lower max_tokens or start the runtime with more blocks"
        )
        self.needed_tokens = needed_tokens
        self.limit_tokens = limit_tokens


class QueueFull(RuntimeServiceError):
    """More requests wait than the queue admits."""

    def __init__(self, limit: int, retry_after_s: float) -> None:
        super().__init__(f"{limit} requests wait, which is the limit (max_queue); retry in {retry_after_s:.1f} s")
        self.limit = limit
        self.retry_after_s = retry_after_s


class TooMany(RuntimeServiceError):
    """As many of something exist as the runtime keeps."""

    def __init__(self, things: str, limit: int, remedy: str) -> None:
        super().__init__(f"{limit} is the limit of {things}, and it is reached: {remedy}")
        self.limit = limit


class SessionNotFound(RuntimeServiceError):
    """No session goes by that id (any more)."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session_id {session_id!r} is unknown: it was never opened, was closed, or idled too long")
        self.session_id = session_id


class ModelNotFound(RuntimeServiceError):
    """The model's files are not where the name says."""


class ModelRefused(RuntimeServiceError):
    """The model's answers would be wrong here; the message says why."""


class TemplateRefused(RuntimeServiceError):
    """The model's chat template does not take these messages."""


class EngineFailed(RuntimeServiceError):
    """A forward pass failed; the request that saw it is lost, the engine goes on."""


class ShuttingDown(RuntimeServiceError):
    """The runtime drains and takes no new requests."""


class EventsOff(RuntimeServiceError):
    """The runtime was started without KV events."""

    def __init__(self) -> None:
        super().__init__("this runtime records no events; start it with --kv-events grpc or zmq")


class NotErased(RuntimeServiceError):
    """What was flushed is forgotten here, and a file may still hold it."""

    def __init__(self, tiers: str) -> None:
        super().__init__(
            f"what was flushed is no longer used, but its records in the {tiers} tier could not be erased and may be "
            "found again at the next start: delete the file while the runtime is stopped"
        )


class NotForTenants(RuntimeServiceError):
    """The key is a tenant's, and what was asked is about all of them."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: it takes an operator's key")


class RequestCancelled(RuntimeServiceError):
    """The caller cancelled the request or went away."""
