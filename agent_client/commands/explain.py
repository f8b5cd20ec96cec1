"""`agent-client explain`: why a prompt would hit or miss, for a person."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..access import Access
from ..client import RadixClient
from ..errors import RadixloopError
from ..explaining import explanation_lines
from ..prompts import Chat, Prompt
from ..retry import RetryPolicy
from ..traces import TraceError, read_trace
from ..traces.source import Source
from ..verdicts import Explanation
from .failures import USAGE, reported, say


@reported
def run(
    target: str,
    file: Path | None,
    *,
    text: str | None,
    chat: bool,
    system: str | None,
    recorded: str | None,
    call: int | None,
    session_id: str | None,
    salt: str | None,
    public_tokens: int | None,
    as_json: bool,
    access: Access | None = None,
) -> int:
    """`recorded` and `call` (from 1) choose a call of a trace."""
    if file is not None and text is not None:
        say("give a file or --text, not both")
        return USAGE
    prompt = _prompt_of(file, recorded, call) if file is not None else _form(text, chat, system)
    if prompt is None and session_id is None:
        say("nothing to explain: give a file, --text or --session-id")
        return USAGE
    with RadixClient(target, salt=salt, access=access, retry=RetryPolicy(max_attempts=1)) as client:
        told = client.explain(prompt, session_id=session_id, public_tokens=public_tokens)
    if as_json:
        print(json.dumps(_as_json(told), ensure_ascii=False, indent=2))
    else:
        print("\n".join(explanation_lines(told)))
    return 0


def _form(text: str | None, chat: bool, system: str | None) -> Prompt | None:
    if text == "-":
        text = sys.stdin.read()
    if text is None or not (chat or system is not None):
        return text
    head = [] if system is None else [{"role": "system", "content": system}]
    return Chat([*head, {"role": "user", "content": text}])


def _prompt_of(file: Path, recorded: str | None, number: int | None) -> Prompt:
    """A prompt in a file: the request of a chat, a call of a recorded trace, or plain text."""
    source = Source(file)
    try:
        first = source.first().value
    except TraceError:
        return _plain_text(file)
    request = first if isinstance(first, dict) else {"messages": source.document}
    messages = request.get("messages")
    if isinstance(messages, list) and recorded is None and number is None and _ends_in_a_question(messages):
        return Chat(messages, request.get("tools") or (), request.get("template_kwargs") or {})
    trace = read_trace(file)
    sessions = [session for session in trace.sessions if recorded in (None, session.id)]
    if not sessions:
        known = ", ".join(session.id for session in trace.sessions[:10])
        raise TraceError(f"{file}: no session {recorded!r}; it begins with {known}")
    session = sessions[0]
    number = number or len(session.calls)
    if number > len(session.calls):
        raise TraceError(f"{file}: session {session.id!r} has calls 1 to {len(session.calls)}, none is number {number}")
    chosen = session.calls[number - 1]
    say(f"session {session.id!r}, call {number} of {len(session.calls)}")
    return chosen.prompt if isinstance(chosen.prompt, str) else Chat(chosen.prompt, session.tools_of(chosen))


def _ends_in_a_question(messages: list[Any]) -> bool:
    return bool(messages) and isinstance(messages[-1], dict) and messages[-1].get("role") != "assistant"


def _plain_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RadixloopError(f"{file} is neither JSON nor text: {error}", code="INVALID_ARGUMENT") from None


def _as_json(told: Explanation) -> dict[str, Any]:
    spans = [{**asdict(span), "beside": [list(branch) for branch in span.beside]} for span in told.verdict.spans]
    verdict = {**asdict(told.verdict), "spans": spans}
    return {**asdict(told), "verdict": verdict, "tokens_by_cause": told.verdict.tokens_by_cause()}
