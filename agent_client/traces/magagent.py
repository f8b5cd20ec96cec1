"""Magentic agents' call logs: one call a line, the prompt as text, calls of many agents in one session."""

from __future__ import annotations

from typing import Any

from .model import Call, Session, Trace, TraceError
from .source import Source

NAME = "magagent"

_MICROSECONDS = 1e6


def recognises(first: Any) -> bool:
    return isinstance(first, dict) and {"input", "output", "session", "timestamp"} <= first.keys()


def read(source: Source) -> Trace:
    """Sessions in order of appearance, their calls by time stamp.

    A record has one time stamp, so the pause before a call is the time since the stamp before and includes what the
    model took then. Raises TraceError naming the line.
    """
    by_session: dict[str, list[tuple[int, str, str]]] = {}
    empty = 0
    for record in source.records():
        value = record.value
        if not recognises(value):
            raise TraceError(f"{record.where}: a call needs input, output, session and timestamp")
        prompt, reply, session, stamp = value["input"], value["output"], value["session"], value["timestamp"]
        if not isinstance(prompt, str) or not isinstance(reply, str) or not isinstance(session, str):
            raise TraceError(f"{record.where}: input, output and session must be text")
        if isinstance(stamp, bool) or not isinstance(stamp, int):
            raise TraceError(f"{record.where}: timestamp is {stamp!r}: microseconds as an integer are needed")
        if prompt:
            by_session.setdefault(session, []).append((stamp, prompt, reply))
        else:
            empty += 1
    sessions = []
    for name, rows in by_session.items():
        rows.sort(key=lambda row: row[0])
        calls = []
        for i, (stamp, prompt, reply) in enumerate(rows):
            pause = (stamp - rows[i - 1][0]) / _MICROSECONDS if i else None
            calls.append(Call(prompt, {"role": "assistant", "content": reply}, pause))
        sessions.append(Session(name, tuple(calls)))
    notes = (f"{empty} calls were recorded without their input and are left out",) if empty else ()
    return Trace(NAME, tuple(sessions), notes)
