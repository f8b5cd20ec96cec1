"""The trace formats, each a reader that turns lines into calls.

A call is a path, the sequence that identifies its input from the first token on. In a hash-id trace an element of the
path stands for a block of `unit` tokens; in a token trace it is a token. To add a format, write a reader and name it in
FORMATS beside the keys that give it away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from radix.errors import InvalidArgument
from radix.tokens import Ints
from radix.trace_values import NOTHING, BadLine, Renumber, seconds, show, token_array, token_count

MOONCAKE_BLOCK_SIZE = 512

Line: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One call to the model.

    Attributes:
        scope: which calls may share a prefix with this one; "" is shared by all.
        path: int32[n], block ids or tokens of the input.
        input_tokens: how many tokens went in.
        output: int32[m], the tokens that came out; empty in a hash-id trace, which does not record them.
        session: which session of the trace it belongs to, from 0; None where the format does not tell.
        at: seconds from the session's beginning to the call; None where the format does not tell.
        seconds: how long the call took, 0 where that was not recorded.
    """

    scope: str
    path: Ints
    input_tokens: int
    output: Ints
    session: int | None = None
    at: float | None = None
    seconds: float = 0.0


@dataclass(slots=True)
class Trace:
    """The calls of one file, in file order.

    Attributes:
        unit: tokens an element of a path stands for; 1 in a token trace.
        sessions: sessions read. A mooncake call is one, since that format does not tell which calls belong together.
        uneven: calls whose number of ids does not go with their input length at this block size.
        first_uneven: the first of them, in words.
    """

    file: Path
    format: str
    unit: int
    calls: list[Call] = field(default_factory=list)
    sessions: int = 0
    uneven: int = 0
    first_uneven: str = ""

    @property
    def has_tokens(self) -> bool:
        return self.format == "tokens"

    @property
    def input_tokens(self) -> int:
        return sum(call.input_tokens for call in self.calls)


class Reader:
    """Turns lines into calls of `trace`, those of the first `limit` sessions.

    `read` raises BadLine, or InvalidArgument for a block size that contradicts the file.
    """

    def __init__(self, trace: Trace, block_size: int | None, limit: int | None) -> None:
        self.trace = trace
        self.block_size = block_size
        self.limit = limit

    @property
    def done(self) -> bool:
        """Whether no later line can belong to the first `limit` sessions."""
        return self.trace.sessions == self.limit

    def read(self, line: Line, number: int) -> None:
        raise NotImplementedError


class _HashIds(Reader):
    def _add(
        self,
        scope: str,
        entry: Line,
        length_key: str,
        number: int,
        ids: Renumber,
        session: int | None = None,
        at: float | None = None,
        seconds: float = 0.0,
    ) -> None:
        trace = self.trace
        length = token_count(entry, length_key)
        path = ids.path(entry.get("hash_ids"), "hash_ids")
        # Some recorders list the partial last block and some do not.
        if len(path) not in {length // trace.unit, -(-length // trace.unit)}:
            trace.uneven += 1
            if not trace.first_uneven:
                trace.first_uneven = (
                    f"{trace.file}:{number}: {len(path)} hash_ids for {length_key} {length}, which is "
                    f"{-(-length // trace.unit)} blocks of {trace.unit} tokens"
                )
        trace.calls.append(Call(scope, path, length, NOTHING, session, at, seconds))


class _ClaudeCode(_HashIds):
    """A line is a session. Its calls, and those of a subagent at its place, share ids with each other only."""

    def read(self, line: Line, number: int) -> None:
        trace = self.trace
        size = token_count(line, "block_size")
        if self.block_size not in {None, size}:
            raise InvalidArgument(f"block_size is {self.block_size}: {trace.file}:{number} says {size}")
        if trace.calls and size != trace.unit:
            raise BadLine(f"block_size is {size}: the lines before have {trace.unit}")
        trace.unit = size
        # A session is its line: nothing promises that the ids of sessions are unique.
        scope = str(number) if line.get("hash_id_scope", "local") == "local" else ""
        self._walk(scope, line.get("requests"), "requests", number, Renumber(), 0.0)
        trace.sessions += 1

    def _walk(self, scope: str, entries: Any, where: str, number: int, ids: Renumber, began: float | None) -> None:
        if not isinstance(entries, list):
            raise BadLine(f"{where} is {show(entries)}: it must be a list of calls")
        for index, entry in enumerate(entries):
            place = f"{where}[{index}]"
            if not isinstance(entry, dict):
                raise BadLine(f"{place} is {show(entry)}: it must be an object")
            try:
                later, took = seconds(entry, "t"), seconds(entry, "api_time")
                at = None if began is None or later is None else began + later
                if "requests" not in entry:
                    self._add(scope, entry, "in", number, ids, self.trace.sessions, at, took or 0.0)
            except BadLine as bad:
                raise BadLine(f"{place}.{bad}") from None
            if "requests" in entry:
                self._walk(scope, entry["requests"], f"{place}.requests", number, ids, at)


class _Mooncake(_HashIds):
    """A line is a call; ids are shared by the whole file."""

    def __init__(self, trace: Trace, block_size: int | None, limit: int | None) -> None:
        super().__init__(trace, block_size, limit)
        trace.unit = block_size or MOONCAKE_BLOCK_SIZE
        self._ids = Renumber()

    def read(self, line: Line, number: int) -> None:
        self._add("", line, "input_length", number, self._ids)
        self.trace.sessions += 1


class _Tokens(Reader):
    """A line is a call: a session's name, its input tokens and, where known, its output tokens."""

    def __init__(self, trace: Trace, block_size: int | None, limit: int | None) -> None:
        super().__init__(trace, block_size, limit)
        self._sessions: dict[str, int] = {}

    @property
    def done(self) -> bool:
        return False

    def read(self, line: Line, number: int) -> None:
        session = line.get("session")
        if not isinstance(session, str):
            raise BadLine(f"session is {show(session)}: it must be a string")
        if "tokens" in line and "input_tokens" in line:
            raise BadLine("tokens and input_tokens are both given: one of them names the input")
        key = "tokens" if "tokens" in line else "input_tokens"
        path = token_array(line.get(key), key)
        if not len(path):
            raise BadLine(f"{key} is empty: a call has at least one token")
        output = token_array(line.get("output_tokens", []), "output_tokens")
        if session not in self._sessions and len(self._sessions) == self.limit:
            return
        index = self._sessions.setdefault(session, len(self._sessions))
        self.trace.sessions = len(self._sessions)
        self.trace.calls.append(Call("", path, len(path), output, index, seconds(line, "t")))


@dataclass(frozen=True)
class Format:
    """How a format is recognised, by one of these sets of keys in its first line, and read."""

    keys: tuple[set[str], ...]
    reader: Callable[[Trace, int | None, int | None], Reader]


FORMATS = {
    "claude-code": Format(({"requests"},), _ClaudeCode),
    "mooncake": Format(({"hash_ids", "input_length"},), _Mooncake),
    "tokens": Format(({"session", "tokens"}, {"session", "input_tokens"}), _Tokens),
}


def detect(line: Line) -> str:
    """Return the name of the format that a first line belongs to. Raises BadLine."""
    for name, form in FORMATS.items():
        if any(keys <= line.keys() for keys in form.keys):
            return name
    raise BadLine(
        "unknown trace format: a line has requests (claude-code), hash_ids and input_length (mooncake), or session and "
        f"tokens (token trace); this one has {', '.join(sorted(line)[:8]) or 'nothing'}. Traces of messages need a "
        "model: agent-client replay runs them"
    )
