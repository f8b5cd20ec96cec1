"""Telling the text of a reply from the tool calls that are written in it, while it streams."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..results import Choice, Delta, ToolCall, ToolCallDelta

TAG = "<tool_call>"
# A reply that is nothing but JSON, bare or in a code fence, may be a call; this much of one may still become that.
_MAY_BE_BARE = re.compile(r"\s*(?:\Z|[{\[]|`{1,2}\Z|```[a-z]*(?:\Z|\n\s*(?:\Z|[{\[])))")


class CallReader:
    """What of one choice is shown as text, and its calls in pieces, as the runtime tells them apart.

    Args:
        reads_calls: whether the caller wants calls; all is text otherwise.
        one_call: whether all calls but the first are dropped.
    """

    def __init__(self, *, reads_calls: bool, one_call: bool) -> None:
        self._reads_calls = reads_calls
        self._one_call = one_call
        self._text = ToolText()

    def push(self, piece: Delta) -> tuple[str, Sequence[ToolCallDelta]]:
        """Text and pieces of calls to show now."""
        if not self._reads_calls:
            return piece.text, ()
        if piece.content is not None:
            return piece.content, [call for call in piece.tool_call_deltas if not (self._one_call and call.index)]
        text = self._text.push(piece.text)
        if piece.finish_reason is not None:
            text += self._text.end(bool(piece.tool_calls))
        calls = self.calls(piece.tool_calls)
        return text, [ToolCallDelta(rank, call.arguments, call.id, call.name) for rank, call in enumerate(calls)]

    def whole(self, choice: Choice) -> tuple[str, Sequence[ToolCall]]:
        """The same of a choice that has ended."""
        if not self._reads_calls:
            return choice.text, ()
        text = choice.content
        if text is None:
            text = self._text.push(choice.text) + self._text.end(bool(choice.tool_calls))
        return text, self.calls(choice.tool_calls)

    def calls(self, found: Sequence[ToolCall]) -> Sequence[ToolCall]:
        """Those of the calls that the caller wants."""
        if not self._reads_calls:
            return ()
        return found[:1] if self._one_call else found


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
