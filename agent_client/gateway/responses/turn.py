"""How a turn reaches a runtime: as the next turn of a session that holds what came before, or with all of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ... import calls
from ...aio import AsyncSession
from ...errors import FailedPrecondition, NotFound, RadixloopError, ResourceExhausted, Unavailable
from ...generate_options import GenerateOptions, namespace
from ...prompts import Chat
from ..fleet import Attempt, Member, prompts_with
from ..runs import Runs
from .store import Place

log = logging.getLogger(__name__)


class Turn:
    """One turn of a conversation.

    Attributes:
        session: the session that holds the conversation once the turn has ended well; None where none does.
    """

    session: Place | None = None

    def __init__(self, whole: Chat, new: Chat, options: GenerateOptions, salt: str | None, *, keeps: bool) -> None:
        self._whole = whole
        self._new = new
        self._options = options
        self._salt = salt
        self._keeps = keeps

    def handed_over(self) -> Place | None:
        """The session, which is the caller's to keep or to end from now on."""
        session, self.session = self.session, None
        return session

    def attempts(self, members: Sequence[Member], session: Place | None) -> list[Attempt]:
        """Where and how to try, the best first: in the session, which is at the first member, then at each anew."""
        ways = [Attempt(member, self._anew) for member in members]
        if session is not None:
            ways.insert(0, Attempt(members[0], lambda member, runs: self._go_on(member, runs, session), _is_lost))
        return ways

    async def _go_on(self, member: Member, runs: Runs, session: Place) -> None:
        self.session = session
        runs.add(self._in_session(member, session.session_id).stream(self._new, **self._options))

    async def _anew(self, member: Member, runs: Runs) -> None:
        self.session = None
        if self._keeps:
            try:
                opened = await member.client._unary(calls.open_session(None, namespace(self._salt, None)))
                self.session = Place(member.target, opened.session_id)
            except ResourceExhausted as error:
                # As many are open as may be: the conversation is sent whole with its next turn, and hits all the same.
                log.warning("no session at %s: %s", member.target, error)
        if self.session is None:
            more: GenerateOptions = {} if self._salt is None else {"salt": self._salt}
            await prompts_with([self._whole], {**self._options, **more})(member, runs)
        else:
            runs.add(self._in_session(member, self.session.session_id).stream(self._whole, **self._options))

    @staticmethod
    def _in_session(member: Member, session_id: str) -> AsyncSession:
        return AsyncSession(member.client, session_id, 0, 0.0)


def _is_lost(error: RadixloopError) -> bool:
    """Whether a session is not there, not free, or cannot be gone on from as asked."""
    return isinstance(error, NotFound | FailedPrecondition | Unavailable)
