"""Which loop a call belongs to: a client that sends its whole history does not say so in so many words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from radixloop.tenants import MAX_PRIORITY

from ..prompts import Prompt
from .bodies import Body
from .fleet.places import digest, prompt_head

# What agents and routers send of themselves, the surest first: Claude Code, Codex, OpenCode, Dynamo.
SESSION_HEADERS = ("x-claude-code-session-id", "session-id", "x-session-id", "x-dynamo-session-id")
# A loop that was branched off, within its session or as a session of its own.
AGENT_HEADERS = ("x-claude-code-agent-id",)
PARENT_AGENT_HEADERS = ("x-claude-code-parent-agent-id",)
PARENT_SESSION_HEADERS = ("x-parent-session-id", "x-dynamo-parent-session-id")
FINAL_HEADER = "x-dynamo-session-final"
_TRUE = ("1", "true", "yes")


class AgentHints(Body):
    """What of Dynamo's `nvext.agent_hints` means something here."""

    priority: int | None = None


class SessionControl(Body):
    """Dynamo's `nvext.session_control`."""

    session_id: str | None = None
    action: str | None = None


class Nvext(Body):
    """Dynamo's extension of OpenAI's requests."""

    agent_hints: AgentHints | None = None
    session_control: SessionControl | None = None
    cache_control: dict[str, object] | None = None

    @property
    def priority(self) -> int | None:
        """Within the runtime's bounds."""
        wanted = self.agent_hints.priority if self.agent_hints else None
        return None if wanted is None else min(max(wanted, 0), MAX_PRIORITY)


@dataclass(frozen=True)
class Loop:
    """Who sends a call, as far as headers and body say.

    Attributes:
        session: None where nothing names it.
        branch: what tells this loop from others of the session or of the parent's.
        parent: the session that this one was branched from.
        key: `prompt_cache_key`.
        final: whether this is the last call.
    """

    session: str | None = None
    branch: tuple[str | None, ...] = ()
    parent: str | None = None
    key: str | None = None
    final: bool = False

    def conversation(self, prompt: Prompt) -> str | None:
        """A name for the runtime; None where the client names nothing.

        Agents share one key among loops, and one session among its side calls. The name therefore also depends on how
        the prompt begins: what a conversation leaves behind may be evicted first, and no loop may leave another's.
        """
        named = self.session or self.key or self.parent
        return None if named is None else digest([named, self.branch, prompt_head(prompt)])

    def place(self, tenant: str | None, prompt: Prompt) -> str:
        """The same for calls that should meet at one runtime: of a session, else of those that begin alike.

        A branch goes where its parent is.
        """
        session = self.parent or self.session
        return digest([tenant, session] if session else [tenant, self.key, prompt_head(prompt)])


def loop_of(headers: Mapping[str, str], key: str | None = None, nvext: Nvext | None = None) -> Loop:
    """Reads the headers, the body's `prompt_cache_key` and Dynamo's fields; headers come first."""

    def sent(*names: str) -> str | None:
        return next(filter(None, map(headers.get, names)), None)

    control = (nvext.session_control if nvext else None) or SessionControl()
    agent, parent = sent(*AGENT_HEADERS), sent(*PARENT_SESSION_HEADERS)
    return Loop(
        session=sent(*SESSION_HEADERS) or control.session_id or None,
        branch=(agent, sent(*PARENT_AGENT_HEADERS), parent),
        parent=parent,
        key=key or None,
        final=(sent(FINAL_HEADER) or "").lower() in _TRUE or control.action == "close",
    )
