"""What of a reply is shown as text, and what as tool calls."""

from __future__ import annotations

from collections.abc import Sequence

from ..results import Choice, Delta, ToolCall, ToolCallDelta


class CallReader:
    """Passes on what the runtime tells apart, as far as the caller wants it.

    Args:
        reads_calls: whether the caller wants calls; all is text otherwise.
        one_call: whether all calls but the first are dropped.
    """

    def __init__(self, *, reads_calls: bool, one_call: bool) -> None:
        self._reads_calls = reads_calls
        self._one_call = one_call

    def push(self, piece: Delta) -> tuple[str, Sequence[ToolCallDelta]]:
        """Text and pieces of calls to show now."""
        if not self._reads_calls or piece.content is None:
            return piece.text, ()
        return piece.content, [call for call in piece.tool_call_deltas if not (self._one_call and call.index)]

    def whole(self, choice: Choice) -> tuple[str, Sequence[ToolCall]]:
        """The same of a choice that has ended."""
        if not self._reads_calls or choice.content is None:
            return choice.text, ()
        return choice.content, self.calls(choice.tool_calls)

    def calls(self, found: Sequence[ToolCall]) -> Sequence[ToolCall]:
        """Those of the calls that the caller wants."""
        if not self._reads_calls:
            return ()
        return found[:1] if self._one_call else found
