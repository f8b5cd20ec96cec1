"""Responses that may be gone on from: bounded in number, text and time, and gone with the process."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..failures import NOT_FOUND, ApiError
from .request import Message

TTL_S = 3600.0
MAX_RESPONSES = 8192
MAX_CHARS = 256 * 2**20
# Of the 1,024 that a runtime has by default: others may want some.
MAX_SESSIONS = 256


@dataclass(frozen=True)
class Place:
    """A session of a runtime that holds a conversation up to some response."""

    target: str
    session_id: str


@dataclass
class Stored:
    """One response.

    Attributes:
        messages: the conversation up to it, without instructions.
        head: a digest of instructions and tools, with which a session was begun.
        loop: what decides the runtime that its conversation goes to.
        chars: what it added to the conversation, about.
        session: None where nothing or somebody else holds it.
    """

    body: dict[str, Any]
    tenant: str | None
    salt: str | None
    messages: Sequence[Message]
    head: str
    loop: str
    chars: int
    session: Place | None = None
    used_s: float = field(default=0.0)


class ResponseStore:
    """Responses by id. `close` is told of sessions that are not needed any more."""

    def __init__(self, close: Callable[[Place], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._close = close
        self._clock = clock
        self._chars = 0
        # Least recently used first.
        self._responses: OrderedDict[str, Stored] = OrderedDict()
        self._sessions: OrderedDict[str, Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._responses)

    def get(self, name: str, tenant: str | None, param: str) -> Stored:
        """A response of that tenant. Raises ApiError 404 naming the field that asked for it."""
        self._trim()
        stored = self._responses.get(name)
        if stored is None or stored.tenant != tenant:
            message = f"Previous response with id {name[:80]!r} not found: it was not stored, or is forgotten."
            raise ApiError(NOT_FOUND, message, param=param, code="previous_response_not_found")
        stored.used_s = self._clock()
        self._responses.move_to_end(name)
        return stored

    def put(self, name: str, stored: Stored) -> None:
        """Keeps a response."""
        stored.used_s = self._clock()
        self._responses[name] = stored
        self._chars += stored.chars
        if stored.session is not None:
            self._sessions[name] = stored
        self._trim()

    def take_session(self, name: str, stored: Stored, target: str, head: str) -> Place | None:
        """The session at `target` that ends with this response and began with that head; the caller's from then on.

        None where there is none, or where another turn has gone on from it.
        """
        if stored.session is None or stored.session.target != target or stored.head != head:
            return None
        place, stored.session = stored.session, None
        self._sessions.pop(name, None)
        return place

    def drop(self, name: str) -> None:
        """Forgets a response."""
        stored = self._responses.pop(name)
        self._chars -= stored.chars
        self._forget_session(name, stored)

    def _forget_session(self, name: str, stored: Stored) -> None:
        self._sessions.pop(name, None)
        if stored.session is not None:
            self._close(stored.session)
            stored.session = None

    def _trim(self) -> None:
        now = self._clock()
        while self._responses:
            name, oldest = next(iter(self._responses.items()))
            full = len(self._responses) > MAX_RESPONSES or self._chars > MAX_CHARS
            if not full and now - oldest.used_s <= TTL_S:
                break
            self.drop(name)
        while len(self._sessions) > MAX_SESSIONS:
            self._forget_session(*next(iter(self._sessions.items())))
