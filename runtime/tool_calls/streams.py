"""The text of a reply and the calls in it, told apart while it streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.tool_calls.formats import ToolFormat
from runtime.tool_calls.json_end import JsonEnd
from runtime.tool_calls.whole_text import MARKER, TAG, ParsedToolCall, new_call_id, parse_tool_calls

_BARE = '{"name"'
# Of a text's beginning, enough to tell whether it may be a bare call.
_BARE_REACH = 200
_FENCE = "```"
# So much of a mark at the end of a reply that was cut short is no text.
_SURELY_MARK = 5


@dataclass(frozen=True)
class CallPiece:
    """The next piece of call number `index`; the first one holds its name and an id."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass
class Pieces:
    """What became certain: text that belongs to no call, and pieces of calls."""

    content: str = ""
    calls: list[CallPiece] = field(default_factory=list)


class TextOnly:
    """Of a reply that makes no calls: all of it is text."""

    calls: tuple[ParsedToolCall, ...] = ()

    def feed(self, text: str) -> Pieces:
        return Pieces(text)

    def finish(self, cut: bool) -> Pieces:
        return Pieces()


class HeldCalls:
    """Of a reply that no grammar held to a format: what may be a call is kept back until the end.

    Only then is it certain which parts are calls and which are text that looks alike.
    """

    def __init__(self, *, bare: bool) -> None:
        """`bare`: a reply that is nothing but JSON of a call's shape is a call."""
        self.calls: tuple[ParsedToolCall, ...] = ()
        self._bare = bare
        self._held = ""
        self._said = False

    def feed(self, text: str) -> Pieces:
        self._held += text
        if self._bare and not self._said and _may_be_bare(self._held):
            return Pieces()
        out, self._held = _before_marks(self._held, (TAG, MARKER))
        self._said = self._said or bool(out)
        return Pieces(out)

    def finish(self, cut: bool) -> Pieces:
        marked = TAG in self._held or MARKER in self._held
        found = parse_tool_calls(self._held) if marked or (self._bare and not self._said) else []
        self.calls = tuple(found)
        if not found:
            return Pieces(self._held)
        before = min((self._held.find(mark) for mark in (TAG, MARKER) if mark in self._held), default=0)
        pieces = [CallPiece(rank, call["arguments"], call["id"], call["name"]) for rank, call in enumerate(found)]
        return Pieces(self._held[:before], pieces)


class StreamedCalls:
    """Of a reply that a grammar holds to a format: calls are told piece by piece, as they are written.

    A call that the reply's end cuts short stays one, with the arguments as far as they came; what was written of a call
    before its name was complete is dropped. Space around calls is no content.
    """

    def __init__(self, form: ToolFormat) -> None:
        self._form = form
        self._buffer = ""
        self._calls: list[ParsedToolCall] = []
        self._state: Callable[[Pieces], bool] = self._free
        self._end = JsonEnd()
        self._behind_call = False

    @property
    def calls(self) -> tuple[ParsedToolCall, ...]:
        return tuple(self._calls)

    def feed(self, text: str) -> Pieces:
        self._buffer += text
        pieces = Pieces()
        while self._state(pieces):
            pass
        return pieces

    def finish(self, cut: bool) -> Pieces:
        """`cut`: the reply did not end by itself."""
        if self._state != self._free:
            return Pieces()
        rest, self._buffer = self._buffer, ""
        begun = _begun(rest, self._form.trigger)
        if cut and begun >= (1 if self._behind_call else _SURELY_MARK):
            rest = rest[:-begun].rstrip()
        return Pieces("" if self._behind_call and not rest.strip(self._spacing) else rest)

    # Each state takes from the buffer what it can, and returns whether the next should try.

    @property
    def _spacing(self) -> str:
        return " \n\t" + self._form.separator

    def _free(self, pieces: Pieces) -> bool:
        if self._behind_call:
            self._buffer = self._buffer.lstrip(self._spacing)
        out, self._buffer = _before_marks(self._buffer, (self._form.trigger,))
        if self._buffer.startswith(self._form.trigger):
            pieces.content += out.rstrip()
            self._state = self._opening
            return True
        # Space may turn out to stand before a call.
        kept = out.rstrip()
        if kept:
            self._behind_call = False
        pieces.content += kept
        self._buffer = out[len(kept) :] + self._buffer
        return False

    def _opening(self, pieces: Pieces) -> bool:
        return self._literal(self._form.opening, self._before)

    def _before(self, pieces: Pieces) -> bool:
        return self._literal(self._form.before, self._name)

    def _name(self, pieces: Pieces) -> bool:
        name, found, rest = self._buffer.partition(self._form.between)
        if not found:
            return False
        self._buffer = rest
        call = ParsedToolCall(id=new_call_id(), name=name, arguments="")
        pieces.calls.append(CallPiece(len(self._calls), "", call["id"], name))
        self._calls.append(call)
        self._end = JsonEnd()
        self._state = self._arguments
        return True

    def _arguments(self, pieces: Pieces) -> bool:
        size = self._end.feed(self._buffer)
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        if taken:
            self._calls[-1]["arguments"] += taken
            pieces.calls.append(CallPiece(len(self._calls) - 1, taken))
        if not self._end.reached:
            return False
        self._state = self._after
        return True

    def _after(self, pieces: Pieces) -> bool:
        self._behind_call = True
        return self._literal(self._form.after, self._next if self._form.opening else self._free)

    def _next(self, pieces: Pieces) -> bool:
        """Behind a call in a list."""
        if self._buffer.startswith(self._form.closing):
            self._buffer = self._buffer[len(self._form.closing) :]
            self._state = self._free
            return True
        return self._literal(self._form.separator, self._before)

    def _literal(self, text: str, then: Callable[[Pieces], bool]) -> bool:
        """Take a text that must come, and go on with another state."""
        if self._buffer.startswith(text):
            self._buffer = self._buffer[len(text) :]
            self._state = then
            return True
        if not text.startswith(self._buffer):
            # No grammar let this through: it is told as it is.
            self._state = self._lost
            return True
        return False

    def _lost(self, pieces: Pieces) -> bool:
        pieces.content += self._buffer
        self._buffer = ""
        return False


def _before_marks(text: str, marks: tuple[str, ...]) -> tuple[str, str]:
    """Text before the first of some marks, or of what may become one, and the rest."""
    at = min((text.find(mark) for mark in marks if mark in text), default=-1)
    if at < 0:
        at = len(text) - max(_begun(text, mark) for mark in marks)
    return text[:at], text[at:]


def _begun(text: str, mark: str) -> int:
    """Characters at the end of `text` that may be the beginning of a mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)


def _may_be_bare(text: str) -> bool:
    """Whether a text that begins like this may be nothing but calls in JSON, in a code fence or not."""
    body = text.lstrip()
    if _FENCE.startswith(body[: len(_FENCE)]):
        language, newline, rest = body[len(_FENCE) :].partition("\n")
        if not newline:
            return not language or (language.isascii() and language.isalpha())
        body = rest
    head = "".join(body[:_BARE_REACH].split()).removeprefix("[")
    return head.startswith(_BARE) or _BARE.startswith(head)
