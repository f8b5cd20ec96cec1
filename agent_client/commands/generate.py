"""`agent-client generate`: one prompt, its text as it comes, what it cost on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..access import Access
from ..client import GenerationStream, RadixClient
from ..prompts import Chat, Prompt
from ..results import Delta, Generation, ToolCall
from ..words import usage_line
from .failures import USAGE, reported, say


@reported
def run(
    target: str,
    prompt: str | None,
    *,
    chat: bool,
    system: str | None,
    tools: Sequence[Mapping[str, Any]] = (),
    salt: str | None,
    as_json: bool,
    options: dict[str, Any],
    access: Access | None = None,
) -> int:
    if prompt is None:
        prompt = sys.stdin.read()
    if not prompt:
        say("the prompt is empty")
        return USAGE
    form = _form(prompt, chat, system, tools)
    with RadixClient(target, salt=salt, access=access) as client, client.stream(form, **options) as stream:
        if as_json:
            print(json.dumps(_as_json(stream.result()), ensure_ascii=False, indent=2))
            return 0
        print_stream(stream)
        print(usage_line(stream.result()), file=sys.stderr)
    return 0


def print_stream(stream: GenerationStream) -> None:
    """The text of a stream on standard output, piece by piece, a newline, and the calls in it, one a line."""
    calls: list[ToolCall] = []
    for event in stream:
        if isinstance(event, Delta):
            print(event.text if event.content is None else event.content, end="", flush=True)
            calls += event.tool_calls
    print()
    for call in calls:
        print(f"{call.name} {call.arguments}")


def _form(prompt: str, chat: bool, system: str | None, tools: Sequence[Mapping[str, Any]]) -> Prompt:
    if not chat and system is None and not tools:
        return prompt
    head = [] if system is None else [{"role": "system", "content": system}]
    return Chat([*head, {"role": "user", "content": prompt}], tools)


def _as_json(generation: Generation) -> dict[str, Any]:
    return {
        "request_id": generation.request_id,
        "choices": [asdict(choice) for choice in generation.choices],
        "usage": asdict(generation.usage),
        "timing": asdict(generation.timing),
    }
