"""Which conversation a call belongs to: a client that sends its whole history does not say so in so many words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..prompts import Chat, Prompt

# What agents and routers send of themselves, the surest first: Claude Code, Codex, OpenCode, Dynamo.
SESSION_HEADERS = ("x-claude-code-session-id", "session-id", "x-session-id", "x-dynamo-session-id")
_HEAD_LENGTH = 256


def conversation_name(key: str | None, headers: Mapping[str, str], prompt: Prompt) -> str | None:
    """A name for the runtime, out of the body's `prompt_cache_key` or a header; None where the client sends neither.

    Agents share one key among loops, and one session among its side calls. The name therefore also depends on how the
    prompt begins: what a conversation leaves behind may be evicted first, and no loop may leave another's branch.
    """
    sent = (headers.get(name) for name in SESSION_HEADERS)
    session = key or next(filter(None, sent), None)
    if session is None:
        return None
    return hashlib.sha256(json.dumps([session, _head(prompt)]).encode()).hexdigest()[:32]


def _head(prompt: Prompt) -> Any:
    """A chat up to its first question, or the beginning of a plain prompt."""
    if not isinstance(prompt, Chat):
        return prompt[:_HEAD_LENGTH]  # type: ignore[index]
    asked = next((rank for rank, message in enumerate(prompt.messages) if message["role"] == "user"), 0)
    return prompt.messages[: asked + 1]
