"""Our own trace format, version 1: JSON lines, a header and then one line a session. docs/replay.md describes it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from ..messages import ChatMessage
from .model import Call, Fork, Session, Trace, TraceError, calls_from_messages, check_message, seconds
from .source import Record, Source

if TYPE_CHECKING:
    from typing_extensions import Self

NAME = "radixloop-trace"
VERSION = 1


def recognises(first: Any) -> bool:
    return isinstance(first, dict) and first.get("format") == NAME


def read(source: Source) -> Trace:
    """Raises TraceError naming the line."""
    records = source.records()
    tools = _header(next(records))
    sessions: dict[str, Session] = {}
    for record in records:
        session = _session(record, tools, sessions)
        sessions[session.id] = session
    return Trace(NAME, tuple(sessions.values()))


def _header(record: Record) -> tuple[Mapping[str, Any], ...]:
    version = record.value.get("version")
    if version != VERSION:
        raise TraceError(f"{record.where}: version is {version!r}: this client reads version {VERSION}")
    return _tools(record.value.get("tools"), record.where)


def _session(record: Record, header_tools: tuple[Mapping[str, Any], ...], known: Mapping[str, Session]) -> Session:
    where, value = record.where, record.value
    if not isinstance(value, dict):
        raise TraceError(f"{where}: a session is a JSON object, this is {type(value).__name__}")
    name = value.get("session")
    if not isinstance(name, str) or not name:
        raise TraceError(f"{where}: session is {name!r}: a name is needed")
    if name in known:
        raise TraceError(f"{where}: session {name!r} stands on an earlier line already")
    parent = _parent(value.get("parent"), where)
    if parent is not None:
        _check_parent(parent, where, known)
    tools = _tools(value["tools"], where) if "tools" in value else header_tools
    messages, calls = value.get("messages"), value.get("calls")
    if isinstance(messages, list) and calls is None:
        return Session(name, calls_from_messages(messages, where, _history(parent, where, known)), tools, parent)
    if isinstance(calls, list) and messages is None:
        return Session(name, tuple(_call(call, f"{where}: calls[{i}]") for i, call in enumerate(calls)), tools, parent)
    raise TraceError(f"{where}: exactly one of messages and calls is needed, a list")


def _tools(value: Any, where: str) -> tuple[Mapping[str, Any], ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise TraceError(f"{where}: tools is no list of objects")
    return tuple(value)


def _parent(value: Any, where: str) -> Fork | None:
    if value is None:
        return None
    name, turn = (value.get("session"), value.get("turn")) if isinstance(value, dict) else (None, None)
    if not isinstance(name, str) or isinstance(turn, bool) or not isinstance(turn, int):
        raise TraceError(f"{where}: parent needs session (a name) and turn (a number)")
    return Fork(name, turn)


def _check_parent(parent: Fork, where: str, known: Mapping[str, Session]) -> None:
    if parent.session not in known:
        raise TraceError(f"{where}: parent.session is {parent.session!r}: no earlier session has that name")
    calls = len(known[parent.session].calls)
    if not 1 <= parent.turn <= calls:
        raise TraceError(f"{where}: parent.turn is {parent.turn}: {parent.session!r} has turns 1 to {calls}")


def _history(parent: Fork | None, where: str, known: Mapping[str, Session]) -> tuple[ChatMessage, ...]:
    if parent is None:
        return ()
    call = known[parent.session].calls[parent.turn - 1]
    if isinstance(call.prompt, str) or call.reply is None:
        raise TraceError(
            f"{where}: parent {parent.session!r} has no messages at turn {parent.turn}: give calls instead"
        )
    return (*call.prompt, call.reply)


def _call(value: Any, where: str) -> Call:
    if not isinstance(value, dict):
        raise TraceError(f"{where} is {type(value).__name__}: an object is needed")
    text, messages, reply = value.get("text"), value.get("messages"), value.get("reply")
    prompt: str | tuple[ChatMessage, ...]
    if isinstance(text, str) and text and messages is None:
        prompt = text
    elif isinstance(messages, list) and messages and text is None:
        for i, message in enumerate(messages):
            check_message(message, f"{where}.messages[{i}]")
        prompt = tuple(messages)
    else:
        raise TraceError(f"{where}: exactly one of text and messages is needed, not empty")
    if reply is not None:
        check_message(reply, f"{where}.reply")
    tools = _tools(value["tools"], where) if "tools" in value else None
    return Call(prompt, reply, seconds(value.get("latency_s"), f"{where}.latency_s"), tools)


class TraceWriter:
    """Writes a trace line by line; every finished session is on disk before the next is written.

    `tools` are the tool definitions of every session that does not bring its own; `about` is kept in the header
    (model, date, task …) for whoever reads the file. A name that ends in .gz is compressed.
    """

    def __init__(
        self, path: str | Path, *, tools: Sequence[Mapping[str, Any]] = (), about: Mapping[str, Any] | None = None
    ) -> None:
        opener: Any = gzip.open if str(path).endswith(".gz") else open
        self._file: IO[str] = opener(path, "wt", encoding="utf-8")
        self._written: dict[str, Session] = {}
        self._write({"format": NAME, "version": VERSION, "tools": list(tools), **(about or {})})

    def write_messages(
        self,
        session: str,
        messages: Sequence[ChatMessage],
        *,
        parent: Fork | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """One session whose every call sends the whole history. Tool messages may carry `latency_s`.

        A branch gives only its own messages, and must come after its parent. Raises TraceError for what the reader
        would refuse.
        """
        where = f"session {session!r}"
        self._check_new(where, session, parent)
        calls = calls_from_messages(messages, where, _history(parent, where, self._written))
        self._write_session(Session(session, calls, parent=parent), {"messages": list(messages)}, tools)

    def write_calls(
        self,
        session: str,
        calls: Sequence[Call],
        *,
        parent: Fork | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """One session whose calls do not simply append: each is written with its whole prompt."""
        self._check_new(f"session {session!r}", session, parent)
        body = {"calls": [_call_json(call) for call in calls]}
        self._write_session(Session(session, tuple(calls), parent=parent), body, tools)

    def close(self) -> None:
        self._file.close()

    def _check_new(self, where: str, name: str, parent: Fork | None) -> None:
        if name in self._written:
            raise TraceError(f"{where}: a session of that name was written already")
        if parent is not None:
            _check_parent(parent, where, self._written)

    def _write_session(self, session: Session, body: dict[str, Any], tools: Sequence[Mapping[str, Any]] | None) -> None:
        line: dict[str, Any] = {"session": session.id}
        if session.parent is not None:
            line["parent"] = {"session": session.parent.session, "turn": session.parent.turn}
        if tools is not None:
            line["tools"] = list(tools)
        self._write({**line, **body})
        self._written[session.id] = session

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _call_json(call: Call) -> dict[str, Any]:
    out: dict[str, Any] = {"text": call.prompt} if isinstance(call.prompt, str) else {"messages": list(call.prompt)}
    if call.reply is not None:
        out["reply"] = call.reply
    if call.tool_latency_s is not None:
        out["latency_s"] = call.tool_latency_s
    if call.tools is not None:
        out["tools"] = list(call.tools)
    return out
