"""What a rule found."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..messages import ChatMessage, message_to_proto

_SHOWN_CHARS = 60


@dataclass(frozen=True)
class Finding:
    """Something that makes a later prompt part from an earlier one.

    `rule` is its short name. `call` counts from 1, `message` is an index from 0 (None: not in a message). `what` was
    found, `why` it costs, and `fix` how to avoid it.
    """

    rule: str
    session: str
    call: int
    message: int | None
    what: str
    why: str
    fix: str


def quoted(text: str) -> str:
    """Text on one line, cut."""
    shown = text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
    return json.dumps(shown, ensure_ascii=False)


def content_of(message: ChatMessage) -> str:
    """A message's content as the client sends it."""
    return message_to_proto(message, "message").content
