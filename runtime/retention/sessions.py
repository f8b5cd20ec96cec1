"""The sessions that clients hold: growing lists of token ids, and the chat that they stand for."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from radix import Namespace
from runtime.errors import InvalidRequest, RuntimeServiceError, SessionNotFound

Kind = Literal["tokens", "chat"]
# The tenant, where there are any, and the id that it gave.
SessionKey = tuple[str | None, str]
Message = dict[str, Any]


class SessionExists(RuntimeServiceError):
    """Another session goes by that id."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session_id {session_id!r} is taken by an open session: choose another or leave it unset")


class SessionBusy(RuntimeServiceError):
    """A session takes one turn at a time."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session_id {session_id!r} has a turn running and takes one at a time: wait for it, or fork the session"
        )


class SessionLimit(RuntimeServiceError):
    """As many sessions are open as the table holds."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"{limit} sessions are open, which is the limit (max_sessions): close some or wait for idle ones"
        )


class SessionRefusesPrompt(RuntimeServiceError):
    """The prompt does not continue what the session holds."""


class TurnEnd(NamedTuple):
    """Where a turn of a chat ended."""

    messages: int
    tokens: int


# How many places to cut at a refusal names.
_ENDS_NAMED = 16


class Session:
    """One session. Its tokens are append-only: a turn never changes what an earlier one left; `cut` takes some away.

    Attributes:
        owner: the tenant whose session it is; ids are each tenant's own.
        family: shared by all sessions that were forked, directly or not, from one.
        closed: no longer in the table.
        messages: grows and is cut; a message itself is never changed, since forks share it.
    """

    def __init__(self, session_id: str, namespace: Namespace, now: float, owner: str | None = None) -> None:
        self.id = session_id
        self.owner = owner
        self.family = object()
        self.closed = False
        self.namespace = namespace
        self.kind: Kind | None = None
        self.messages: list[Message] = []
        self.turn_ends: list[TurnEnd] = []
        self.tools: list[dict[str, Any]] = []
        self.template_kwargs: dict[str, Any] = {}
        self.last_used = now
        self.busy = False
        self._buffer = np.empty(256, np.int32)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def key(self) -> SessionKey:
        """What the session is found by."""
        return self.owner, self.id

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """int32 view of everything so far, read-only; appending leaves it as it is."""
        view = self._buffer[: self._length]
        view.flags.writeable = False
        return view

    def append(self, tokens: npt.NDArray[np.int32] | Sequence[int]) -> None:
        """Add int32 token ids at the end."""
        added = np.asarray(tokens, np.int32)
        needed = self._length + len(added)
        if needed > len(self._buffer):
            grown = np.empty(max(needed, 2 * len(self._buffer)), np.int32)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        self._buffer[self._length : needed] = added
        self._length = needed

    def add_chat_turn(self, new: Iterable[Message], reply: Message) -> None:
        """Add a turn's messages and what the model answered to the history; its tokens were appended before."""
        self.messages.extend(new)
        self.messages.append(reply)
        self.turn_ends.append(TurnEnd(len(self.messages), len(self)))

    def place_to_cut(self, *, tokens: int | None = None, messages: int | None = None) -> TurnEnd:
        """Where the session has to be cut to keep so many tokens or messages.

        A chat can be cut where a turn ends, other sessions anywhere. Raises InvalidRequest.
        """
        if messages is None and self.kind != "chat":
            if tokens is None or not 0 <= tokens <= len(self):
                raise InvalidRequest("tokens", tokens, f"must be from 0 to {len(self)}, the session's length")
            return TurnEnd(0, tokens)
        if self.kind == "tokens":
            raise InvalidRequest("messages", messages, "the session holds text or token ids, no chat: give tokens")
        name, wanted = ("tokens", tokens) if messages is None else ("messages", messages)
        for end in (TurnEnd(0, 0), *self.turn_ends):
            if getattr(end, name) == wanted:
                return end
        last = [0, *(getattr(end, name) for end in self.turn_ends)][-_ENDS_NAMED:]
        raise InvalidRequest(name, wanted, f"a chat is cut where a turn ends: {', '.join(map(str, last))}")

    def cut(self, end: TurnEnd) -> None:
        """Take away what follows `end`. Views of the tokens stay as they are."""
        self._buffer = self._buffer[: end.tokens].copy()
        self._length = end.tokens
        del self.messages[end.messages :]
        self.turn_ends = [kept for kept in self.turn_ends if kept.tokens <= end.tokens]
        if not end.tokens:
            self.kind = None
            self.tools = []
            self.template_kwargs = {}

    def copy_as(self, session_id: str, now: float) -> Session:
        """A session of another id that goes on from here by itself."""
        child = Session(session_id, self.namespace, now, self.owner)
        child.family = self.family
        child.kind = self.kind
        child.messages = self.messages.copy()
        child.turn_ends = self.turn_ends.copy()
        child.tools = self.tools
        child.template_kwargs = self.template_kwargs
        child.append(self.tokens)
        return child


class SessionTable:
    """Open sessions by owner and id, at most `limit`, each forgotten after `idle_s` seconds without use.

    Belongs to one thread (the event loop's); others may take its length and iterate. An idle session goes when the
    table is next used or told to `expire`.

    Attributes:
        on_end: called with each session that was closed or forgotten.
    """

    def __init__(self, limit: int, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.idle_s = idle_s
        self.on_end: list[Callable[[Session], None]] = []
        self._clock = clock
        # Least recently used first, so that expiry looks at the front only.
        self._sessions: dict[SessionKey, Session] = {}
        self._families: dict[object, dict[SessionKey, Session]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        """Over a copy, least recently used first."""
        return iter(list(self._sessions.values()))

    def open(self, namespace: Namespace, session_id: str | None = None, owner: str | None = None) -> Session:
        """A new, empty session. Raises SessionExists or SessionLimit."""
        session_id = self._new_id(session_id, owner)
        return self._add(Session(session_id, namespace, self._clock(), owner))

    def fork(self, session_id: str, new_id: str | None = None, owner: str | None = None) -> Session:
        """A copy of a session as its last whole turn left it. Raises SessionNotFound, SessionExists or SessionLimit."""
        parent = self.get(session_id, owner)
        child = self._add(parent.copy_as(self._new_id(new_id, owner), self._clock()))
        self._touch(parent)
        return child

    def close(self, session_id: str, owner: str | None = None) -> Session | None:
        """Forget a session; a turn that runs goes on to its end. None where there was no such session."""
        self.expire()
        session = self._sessions.pop((owner, session_id), None)
        if session is not None:
            self._end(session)
        return session

    def get(self, session_id: str, owner: str | None = None) -> Session:
        """A session to look at. Raises SessionNotFound."""
        self.expire()
        session = self._sessions.get((owner, session_id))
        if session is None:
            raise SessionNotFound(session_id)
        return session

    def relatives(self, session: Session) -> list[Session]:
        """The other open sessions of a session's family."""
        return [other for other in self._families.get(session.family, {}).values() if other is not session]

    @contextmanager
    def turn(self, session_id: str, owner: str | None = None) -> Iterator[Session]:
        """Hold a session for one turn. What the turn wants to leave behind it appends itself, at its end:
        a turn that fails or is cancelled leaves the session as it was. Raises SessionNotFound or SessionBusy."""
        session = self.get(session_id, owner)
        if session.busy:
            raise SessionBusy(session_id)
        session.busy = True
        try:
            yield session
        finally:
            session.busy = False
            self._touch(session)

    def expire(self) -> None:
        """Forget the sessions that idled too long."""
        now = self._clock()
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.last_used <= self.idle_s:
                break
            if oldest.busy:
                self._touch(oldest)
            else:
                del self._sessions[oldest.key]
                self._end(oldest)

    def _add(self, session: Session) -> Session:
        self._sessions[session.key] = session
        self._families.setdefault(session.family, {})[session.key] = session
        return session

    def _end(self, session: Session) -> None:
        session.closed = True
        family = self._families[session.family]
        del family[session.key]
        if not family:
            del self._families[session.family]
        for callback in self.on_end:
            callback(session)

    def _new_id(self, session_id: str | None, owner: str | None) -> str:
        self.expire()
        if session_id is not None and (owner, session_id) in self._sessions:
            raise SessionExists(session_id)
        if len(self._sessions) >= self.limit:
            raise SessionLimit(self.limit)
        return session_id if session_id is not None else uuid.uuid4().hex

    def _touch(self, session: Session) -> None:
        session.last_used = self._clock()
        if self._sessions.get(session.key) is session:
            self._sessions[session.key] = self._sessions.pop(session.key)
