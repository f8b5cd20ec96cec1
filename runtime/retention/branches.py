"""Tells the store which branches nobody will come back to: of closed, cut and rewritten sessions and conversations."""

from __future__ import annotations

from collections.abc import Hashable
from concurrent.futures import Future

from radix import Namespace, PrefixStore, common_prefix
from runtime.retention.conversations import Conversations
from runtime.retention.lease_desk import EngineCall
from runtime.retention.sessions import Session, SessionTable
from runtime.retention.unwatched import log_surprise
from runtime.services.convert import Tokens

_UNMARKED = "a branch could not be marked as left"


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
            log_surprise(self.supersede(session.tokens, session.namespace, keep), _UNMARKED)

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
            log_surprise(self.supersede(before, namespace, shared), _UNMARKED)

    def conversation_said(self, name: Hashable, tokens: Tokens) -> None:
        """A conversation's call finished, with these tokens, prompt and output."""
        self._conversations.keep(name, tokens)

    def conversation_ended(self, name: Hashable, namespace: Namespace, tokens: Tokens) -> None:
        """A conversation's last call finished, with these tokens: what nothing else grew from may go first."""
        self._conversations.forget(name)
        log_surprise(self.supersede(tokens, namespace, 0), _UNMARKED)

    def supersede(self, tokens: Tokens, namespace: Namespace, keep: int) -> Future[int]:
        """Mark what follows position `keep` of `tokens`, as far as nothing else grew from it."""

        def mark(store: PrefixStore) -> int:
            return store.retention.supersede(tokens, namespace, keep)

        marked: Future[int] = self._call(mark)
        return marked

    def _shared_with_forks(self, session: Session, tokens: Tokens) -> int:
        """How much of `tokens` the sessions hold that were forked from this one or that it was forked from."""
        most = 0
        for other in self._sessions.relatives(session):
            most = max(most, common_prefix(other.tokens, tokens))
            if most == len(tokens):
                break
        return most
