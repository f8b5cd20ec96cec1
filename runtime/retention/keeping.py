"""Sessions, leases and holds of one runtime, wired to each other and to its engine."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

from radix import Namespace
from runtime.config import ServeConfig
from runtime.retention.branches import Branches
from runtime.retention.conversations import Conversations
from runtime.retention.lease_desk import EngineCall, LeaseDesk
from runtime.retention.quotas import set_quota
from runtime.retention.sessions import Session, SessionTable
from runtime.retention.tool_holds import ToolHolds
from runtime.retention.tool_pauses import ToolPauses
from runtime.retention.unwatched import log_surprise
from runtime.sizes import parse_quota


@dataclass(frozen=True, slots=True)
class KeepingBooks:
    """Counts since the start, and how many wait for a tool now."""

    lease_refusals: int
    holds_granted: int
    holds_refused: int
    holds_waiting: int
    tools_known: int


class Keeping:
    """What the runtime is asked to keep, and what it knows that nobody will come back to."""

    def __init__(self, call: EngineCall, config: ServeConfig) -> None:
        self.sessions = SessionTable(config.max_sessions, config.session_idle_seconds)
        self.leases = LeaseDesk(call)
        pauses = ToolPauses(config.tool_hold_percentile)
        self.holds = ToolHolds(call, self.leases, pauses, enabled=config.tool_holds == "on")
        self.branches = Branches(call, self.sessions, Conversations())
        self.sessions.on_end += [self._stop_holding, self.branches.session_ended]

    def on_family_end(self, tell: Callable[[Hashable], None]) -> None:
        """Call `tell` with the family of a session that ended, when no session of it is open any more."""

        def ended(session: Session) -> None:
            if not self.sessions.relatives(session):
                tell(session.family)

        self.sessions.on_end.append(ended)

    def books(self) -> KeepingBooks:
        """From any thread."""
        holds = self.holds
        return KeepingBooks(self.leases.refused, holds.granted, holds.refused, len(holds), len(holds.pauses))

    def _stop_holding(self, session: Session) -> None:
        self.holds.forget(session_holder(session))


def session_holder(session: Session) -> Hashable:
    """Who a session is to the tool holds."""
    return "session", session.key


def conversation_holder(namespace: Namespace, name: str) -> Hashable:
    """Who a conversation is to the tool holds and the branches: names are the tenants' own."""
    return "conversation", namespace, name


def set_quotas(call: EngineCall, config: ServeConfig, fingerprint: str) -> None:
    """Set the quotas that the runtime is started with."""
    for salt, share in map(parse_quota, config.quota or ()):
        limited = partial(set_quota, namespace=Namespace(fingerprint, salt), share=share)
        log_surprise(call(limited), f"the quota of the salt {salt!r} could not be set")
