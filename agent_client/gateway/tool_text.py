"""Telling the text of a reply from the tool calls that are written in it, while it streams."""

from __future__ import annotations

import re

TAG = "<tool_call>"
# A reply that is nothing but JSON, bare or in a code fence, may be a call; this much of one may still become that.
_MAY_BE_BARE = re.compile(r"\s*(?:\Z|[{\[]|`{1,2}\Z|```[a-z]*(?:\Z|\n\s*(?:\Z|[{\[])))")


class ToolText:
    """Passes on the text of one choice, and keeps back what may be a call until the runtime has told.

    The runtime finds the calls in the whole reply; its last piece carries them.
    """

    def __init__(self) -> None:
        self._held = ""
        self._begun = False

    def push(self, text: str) -> str:
        """Takes a piece; returns what may be shown by now."""
        self._held += text
        if not self._begun and _MAY_BE_BARE.match(self._held):
            return ""
        self._begun = True
        at = self._held.find(TAG)
        shown = len(self._held) - _started_tag(self._held) if at < 0 else at
        out, self._held = self._held[:shown], self._held[shown:]
        return out

    def end(self, has_calls: bool) -> str:
        """What is left to show: without calls all that was kept back, otherwise what stood before the first."""
        if not has_calls:
            return self._held
        before, tag, _ = self._held.partition(TAG)
        return before if tag else ""


def _started_tag(text: str) -> int:
    """Characters at the end of `text` that may be the beginning of a tag."""
    return next((size for size in range(min(len(TAG) - 1, len(text)), 0, -1) if text.endswith(TAG[:size])), 0)
