"""How a trace is replayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ReplayOptions:
    """`concurrency` is sessions in flight. `tool_latency` is the pause before each call but a session's first:
    as recorded, none, or so many seconds. `max_context` limits prompt and output together, in tokens.
    """

    concurrency: int = 4
    output_tokens: int = 32
    max_context: int | None = None
    tool_latency: Literal["recorded", "none"] | float = "none"
    live_replies: bool = False
    server_sessions: bool = False

    @property
    def ignore_eos(self) -> bool:
        """Runs compare only when every call generates as much; a live agent wants its reply to end."""
        return not self.live_replies
