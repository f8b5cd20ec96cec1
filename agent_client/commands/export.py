"""`agent-client export`: a trace as another tool's file of sessions."""

from __future__ import annotations

import json
from pathlib import Path

from ..access import Access
from ..client import RadixClient
from ..prompts import Chat
from ..retry import RetryPolicy
from ..traces import read_trace
from ..traces.abench import Messages, abench_sessions
from ..words import counted
from .failures import USAGE, reported, say


@reported
def run(path: Path, out: Path, format: str | None, target: str, access: Access | None = None) -> int:
    """Tokens are counted by the runtime at `target`."""
    trace = read_trace(path, format)
    for note in trace.notes:
        say(note)
    with RadixClient(target, access=access, retry=RetryPolicy(max_attempts=1)) as client:

        def count(prompt: str | Messages) -> int:
            asked = prompt if isinstance(prompt, str) else Chat(prompt)
            return len(client.tokenize(asked, add_special_tokens=False, plain=True).token_ids)

        sessions = [told for session in trace.sessions for told in abench_sessions(session, count)]
    try:
        with out.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(told, ensure_ascii=False) + "\n" for told in sessions)
    except OSError as error:
        say(f"{out}: {error.strerror or error}")
        return USAGE
    turns = sum(len(told["turns"]) for told in sessions)
    print(f"{counted(len(sessions), 'session')}, {counted(turns, 'turn')} in {out}")
    return 0
