"""Message lists in the OpenAI shape: one conversation a record, each assistant message a call."""

from __future__ import annotations

from typing import Any

from .model import Session, Trace, TraceError, calls_from_messages, unique_id
from .source import Record, Source

NAME = "openai-messages"

_ID_FIELDS = ("id", "session_id", "conversation_id")


def recognises(first: Any) -> bool:
    if isinstance(first, dict):
        return isinstance(first.get("messages"), list)
    return isinstance(first, list) and bool(first) and isinstance(first[0], dict) and "role" in first[0]


def read(source: Source) -> Trace:
    """Raises TraceError naming the line."""
    sessions = []
    taken: set[str] = set()
    silent = 0
    for record in source.records():
        value = record.value if isinstance(record.value, dict) else {"messages": record.value}
        messages, tools = value.get("messages"), value.get("tools") or []
        if not isinstance(messages, list):
            raise TraceError(f"{record.where}: messages is {type(messages).__name__}: a list is needed")
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise TraceError(f"{record.where}: tools is no list of objects")
        calls = calls_from_messages(messages, record.where)
        if not calls:
            silent += 1
            continue
        sessions.append(Session(unique_id(_name(record, value), taken), calls, tuple(tools)))
    notes = (f"{silent} conversations hold no assistant message and are left out",) if silent else ()
    return Trace(NAME, tuple(sessions), notes)


def _name(record: Record, value: dict[str, Any]) -> str:
    for field in _ID_FIELDS:
        if isinstance(value.get(field), str | int):
            return str(value[field])
    if "task_id" in value:
        return f"task {value['task_id']}" + (f" trial {value['trial']}" if "trial" in value else "")
    return str(record.number)
