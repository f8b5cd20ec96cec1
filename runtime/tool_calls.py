"""Finding the tool calls in what a model wrote."""

from __future__ import annotations

import json
import re
import secrets
import string
from typing import Any, TypedDict


class ParsedToolCall(TypedDict):
    """`arguments` is a JSON object as text, valid UTF-8."""

    id: str
    name: str
    arguments: str


# An end tag may be missing: the model can stop at its end token right after the closing brace.
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_FENCED = re.compile(r"\A```[a-z]*\n(.*)\n```\Z", re.DOTALL)
_ID_ALPHABET = string.ascii_letters + string.digits
# Some templates (Mistral's) refuse ids of another length.
_ID_LENGTH = 9


def parse_tool_calls(text: str) -> list[ParsedToolCall]:
    """The calls in `text`, in order; empty when it holds none. Never raises.

    Two forms are read. One is any number of `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen,
    and the fallback that `chat.py` teaches). The other, where there is no such tag, is a text that is nothing but one
    JSON object of that shape or a list of them, bare or in a code fence. `parameters` is read as another word for
    `arguments`. What does not parse is no call.
    """
    if "<tool_call>" in text:
        found = [_as_calls(_load(match.group(1))) for match in _TAGGED.finditer(text)]
        return [call for calls in found for call in calls or ()]
    bare = text.strip()
    fenced = _FENCED.match(bare)
    return _as_calls(_load(fenced.group(1) if fenced else bare)) or []


def _load(text: str) -> Any:
    text = text.strip()
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _as_calls(value: Any) -> list[ParsedToolCall] | None:
    """None unless all of `value` is tool calls: an answer in JSON that merely has a list in it stays an answer."""
    calls = [_as_call(entry) for entry in (value if isinstance(value, list) else [value])]
    complete = [call for call in calls if call is not None]
    return complete if len(complete) == len(calls) else None


def _as_call(value: Any) -> ParsedToolCall | None:
    if not isinstance(value, dict):
        return None
    name = value.get("name")
    if not isinstance(name, str) or not name or not _is_unicode(name):
        return None
    if "arguments" in value:
        arguments = value["arguments"]
    elif "parameters" in value:
        arguments = value["parameters"]
    else:
        return None
    text = _arguments_text(arguments)
    return None if text is None else ParsedToolCall(id=_new_id(), name=name, arguments=text)


def _arguments_text(arguments: Any) -> str | None:
    if arguments is None:
        return "{}"
    if isinstance(arguments, str):
        arguments = _load(arguments)
    if not isinstance(arguments, dict):
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False)
        # An escaped lone surrogate in the model's JSON is legal there and cannot be sent as UTF-8 unescaped.
        return text if _is_unicode(text) else json.dumps(arguments)
    except (ValueError, RecursionError):
        return None


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _new_id() -> str:
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
