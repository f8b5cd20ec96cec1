"""Tells the store which branches nobody will come back to: of closed, cut and rewritten sessions and conversations."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from concurrent.futures import Future

from radix import Namespace, PrefixStore, common_prefix
from runtime.errors import ShuttingDown
from runtime.retention.conversations import Conversations
from runtime.retention.lease_desk import EngineCall
from runtime.retention.sessions import Session, SessionTable
from runtime.services.convert import Tokens

log = logging.getLogger(__name__)


class Branches:
    """Follows sessions and conversations. Belongs to the thread that the session table does."""

    def __init__(self, call: EngineCall, sessions: SessionTable, conversations: Conversations) -> None:
        self._call = call
        self._sessions = sessions
        self._conversations = conversations

    def session_ended(self, session: Session) -> None:
        """A session was closed or forgotten: what no fork of it shares may go first."""
        if len(session):
            keep = self._shared_with_forks(session, session.tokens)
            self.supersede(session.tokens, session.namespace, keep).add_done_callback(_log_surprise)

    def session_cut(self, session: Session, before: Tokens) -> Future[int]:
        """A session that held `before` was cut back. The future gives the tokens that may go first now."""
        keep = max(len(session), self._shared_with_forks(session, before))
        return self.supersede(before, session.namespace, keep)

    def conversation_arrives(self, name: Hashable, namespace: Namespace, prompt: Tokens) -> None:
        """A conversation sent `prompt`: where that is no extension of what it sent last, the rest was left."""
        before = self._conversations.get(name)
        if before is None:
            return
        shared = common_prefix(before, prompt)
        if shared < len(before):
            self.supersede(before, namespace, shared).add_done_callback(_log_surprise)

    def conversation_said(self, name: Hashable, tokens: Tokens) -> None:
        """A conversation's call finished, with these tokens, prompt and output."""
        self._conversations.keep(name, tokens)

    def conversation_ended(self, name: Hashable, namespace: Namespace, tokens: Tokens) -> None:
        """A conversation's last call finished, with these tokens: what nothing else grew from may go first."""
        self._conversations.forget(name)
        self.supersede(tokens, namespace, 0).add_done_callback(_log_surprise)

    def supersede(self, tokens: Tokens, namespace: Namespace, keep: int) -> Future[int]:
        """Mark what follows position `keep` of `tokens`, as far as nothing else grew from it."""

        def mark(store: PrefixStore) -> int:
            return store.retention.supersede(tokens, namespace, keep)

        marked: Future[int] = self._call(mark)
        return marked

    def _shared_with_forks(self, session: Session, tokens: Tokens) -> int:
        """How much of `tokens` the sessions hold that were forked from this one or that it was forked from."""
        most = 0
        for other in self._sessions:
            if other.family is session.family and other is not session:
                most = max(most, common_prefix(other.tokens, tokens))
                if most == len(tokens):
                    break
        return most


def _log_surprise(future: Future[int]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None and not isinstance(error, ShuttingDown):
        log.warning("a branch could not be marked as left: %r", error)
