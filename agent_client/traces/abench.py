"""Sessions as agentic-bench reads them: one JSON object each, of the schema `abench-session-jsonl-v1`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..messages import ChatMessage, message_to_proto
from .model import Call, Session

# What may stand between a prompt of text and the reply in it: "\n\nassistant: " and the like.
_LONGEST_LABEL = 40

Messages = Sequence[ChatMessage]


@dataclass
class _Chain:
    """Calls each of which goes on where the one before ended, and the messages that each brings."""

    calls: list[Call] = field(default_factory=list)
    added: list[Messages] = field(default_factory=list)


def abench_sessions(session: Session, count: Callable[[str | Messages], int]) -> Iterator[dict[str, Any]]:
    """A session in as many objects as it has histories: calls that rewrote theirs begin another.

    `count` gives the tokens of a text or of a chat. Tool definitions have no place in the schema; calls of tools are
    told as text.
    """
    for number, chain in enumerate(_chains(session), 1):
        turns = []
        sent: list[ChatMessage] = []
        for index, (call, added) in enumerate(zip(chain.calls, chain.added, strict=True)):
            reply = _text(call.reply)
            sent += _plain(added)
            turns.append(
                {
                    "index": index,
                    "input_delta": _plain(added),
                    "assistant_text": reply,
                    "input_tokens": count(sent),
                    "output_tokens": count(reply) if reply else 0,
                    "cached_tokens": 0,
                    "pre_gap_ms": (call.tool_latency_s or 0.0) * 1000,
                }
            )
            sent.append({"role": "assistant", "content": reply})
        name = session.id if number == 1 else f"{session.id}#{number}"
        yield {"session_id": name, "source": {}, "system_prompt": "", "turns": turns}


def _chains(session: Session) -> list[_Chain]:
    chains: list[_Chain] = []
    for call in session.calls:
        for chain in reversed(chains):
            added = _added(chain.calls[-1], call)
            if added is not None:
                break
        else:
            chain = _Chain()
            chains.append(chain)
            added = [{"role": "user", "content": call.prompt}] if isinstance(call.prompt, str) else call.prompt
        chain.calls.append(call)
        chain.added.append(added)
    return chains


def _added(before: Call, call: Call) -> Messages | None:
    """What comes after `before` and its reply; None where `call` does not go on from there."""
    if isinstance(before.prompt, str) and isinstance(call.prompt, str):
        reply = _text(before.reply)
        if not reply or not call.prompt.startswith(before.prompt):
            return None
        label, found, rest = call.prompt[len(before.prompt) :].partition(reply)
        if not found or not rest.strip() or len(label) > _LONGEST_LABEL:
            return None
        return [{"role": "user", "content": rest}]
    if isinstance(before.prompt, str) or isinstance(call.prompt, str):
        return None
    end = len(before.prompt)
    if call.prompt[:end] != before.prompt or len(call.prompt) < end + 2 or call.prompt[end]["role"] != "assistant":
        return None
    return call.prompt[end + 1 :]


def _plain(messages: Messages) -> list[ChatMessage]:
    return [{"role": message["role"], "content": _text(message)} for message in messages]


def _text(message: ChatMessage | None) -> str:
    """A message's content, and its tool calls as JSON behind it."""
    if message is None:
        return ""
    told = message_to_proto(message, "message")
    calls = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in told.tool_calls]
    return "\n".join(part for part in (told.content, *calls) if part)
