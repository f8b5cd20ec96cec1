"""What every trace reader produces: sessions of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..errors import InvalidArgument
from ..messages import ChatMessage, message_to_proto

# A prompt as text, or the chat messages before a reply.
CallPrompt: TypeAlias = "str | tuple[ChatMessage, ...]"


class TraceError(Exception):
    """A trace cannot be read; the message names the file and the line."""


@dataclass(frozen=True)
class Fork:
    """Where a branch leaves its parent: right after the reply of the parent's call number `turn` (from 1)."""

    session: str
    turn: int


@dataclass(frozen=True)
class Call:
    """One call of an agent to its model.

    `prompt` is everything that was sent, `reply` the assistant message that was recorded, `tool_latency_s` the
    seconds that passed between the reply before and this call, or None when the trace does not say. `tools` are those
    that this call offered, or None where they were its session's.
    """

    prompt: CallPrompt
    reply: ChatMessage | None = None
    tool_latency_s: float | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True)
class Session:
    """Calls in order. A branch starts after its parent's turn; the parent's next call waits for it to end."""

    id: str
    calls: tuple[Call, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    parent: Fork | None = None

    def tools_of(self, call: Call) -> tuple[Mapping[str, Any], ...]:
        """What a call of this session offered the model."""
        return self.tools if call.tools is None else call.tools


@dataclass(frozen=True)
class Trace:
    """`notes` say in words what was left out and why."""

    format: str
    sessions: tuple[Session, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def calls(self) -> int:
        return sum(len(session.calls) for session in self.sessions)


def calls_from_messages(
    messages: Sequence[Any],
    where: str,
    before: tuple[ChatMessage, ...] = (),
    latencies: Mapping[int, float | None] | None = None,
) -> tuple[Call, ...]:
    """One call for each assistant message: its prompt is `before` and every message ahead of it.

    The pause before a call is the sum of `latency_s` over the messages since the reply before; `latencies` gives it
    by call number (from 0) for formats that keep it elsewhere. Raises TraceError for a message that is none.
    """
    history = list(before)
    calls: list[Call] = []
    pause: float | None = None
    for i, message in enumerate(messages):
        check_message(message, f"{where}: messages[{i}]")
        if message["role"] != "assistant" or message.get("is_demo"):
            history.append(message)
            latency = seconds(message.get("latency_s"), f"{where}: messages[{i}].latency_s")
            pause = latency if pause is None else pause + (latency or 0.0)
            continue
        if not history:
            raise TraceError(f"{where}: messages[{i}] is a reply with nothing before it")
        recorded = pause if latencies is None else latencies.get(len(calls))
        calls.append(Call(tuple(history), message, recorded))
        history.append(message)
        pause = None
    return tuple(calls)


def check_message(message: Any, where: str) -> None:
    """Raises TraceError naming the field when `message` could not be sent."""
    try:
        message_to_proto(message, where)
    except InvalidArgument as error:
        raise TraceError(error.message) from None


def seconds(value: Any, where: str) -> float | None:
    """A duration, or None for null. Raises TraceError for anything that is not a number from 0 up."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise TraceError(f"{where} is {value!r}: seconds from 0 up are needed")
    return float(value)


def unique_id(wanted: str, taken: set[str]) -> str:
    """`wanted`, with a number behind it when a session of that name came before."""
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}#{number}", number + 1
    taken.add(name)
    return name
