"""SWE-agent trajectories (.traj): one session a file, its history as messages."""

from __future__ import annotations

from typing import Any

from ..messages import ChatMessage
from .model import Call, Session, Trace, TraceError, calls_from_messages, check_message, seconds
from .source import Source

NAME = "swe-agent"


def recognises(first: Any) -> bool:
    return isinstance(first, dict) and isinstance(first.get("history"), list)


def read(source: Source) -> Trace:
    """Raises TraceError when the history is none."""
    where = source.name
    document = source.document
    if not isinstance(document, dict) or not isinstance(document.get("history"), list):
        raise TraceError(f"{where} line 1: history is needed, a list of messages")
    steps = document.get("trajectory") or []
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise TraceError(f"{where} line 1: trajectory is no list of steps")
    ran = [
        seconds(step.get("execution_time"), f"{where}: trajectory[{i}].execution_time") for i, step in enumerate(steps)
    ]
    # What a step's command took is the pause before the next call.
    latencies = {i + 1: time for i, time in enumerate(ran) if time is not None}
    name = where.removesuffix(".gz").removesuffix(".traj")
    if steps and all(isinstance(step.get("query"), list) for step in steps):
        calls = tuple(_step_call(step, f"{where}: trajectory[{i}]", latencies.get(i)) for i, step in enumerate(steps))
    else:
        messages = [_message(message) for message in document["history"]]
        calls = calls_from_messages(messages, where, latencies=latencies)
    return Trace(NAME, (Session(name, calls),) if calls else ())


def _step_call(step: dict[str, Any], where: str, latency: float | None) -> Call:
    """Newer files keep what each step really sent, after the agent shortened its history."""
    query = tuple(_message(message) for message in step["query"])
    for i, message in enumerate(query):
        check_message(message, f"{where}.query[{i}]")
    reply = {"role": "assistant", "content": step.get("response")}
    check_message(reply, f"{where}.response")
    return Call(query, reply, latency)


def _message(message: Any) -> ChatMessage:
    if not isinstance(message, dict):
        raise TraceError(f"a message of the history is {type(message).__name__}: an object is needed")
    kept = {key: message[key] for key in ("role", "content", "tool_calls", "is_demo") if message.get(key) is not None}
    answered = message.get("tool_call_ids")
    if message.get("role") == "tool" and isinstance(answered, list) and answered:
        kept["tool_call_id"] = answered[0]
    return kept
