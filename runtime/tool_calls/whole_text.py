"""Finding the tool calls in a text that no grammar held to a form."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Iterator
from typing import Any, TypedDict


class ParsedToolCall(TypedDict):
    """`arguments` is a JSON object as text, valid UTF-8."""

    id: str
    name: str
    arguments: str


TAG = "<tool_call>"
MARKER = "[TOOL_CALLS]"
# What may follow a call. An end tag may be missing: the model can stop at its end token right after the closing brace.
_END_OF_TAGGED = re.compile(r"\s*(?:</tool_call>|(?=<tool_call>)|\Z)")
_SPACE = re.compile(r"\s*")
_FENCED = re.compile(r"\A```[a-z]*\n(.*)\n```\Z", re.DOTALL)
# Newer models of Mistral write the name before the object.
_NAMED = re.compile(r"\s*([^\s\[\]{}\"]+)(?:\[ARGS\])?\s*(?=\{)")
_PYTHON_TAG = "<|python_tag|>"
_ID_ALPHABET = string.ascii_letters + string.digits
# Some templates (Mistral's) refuse ids of another length.
_ID_LENGTH = 9


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_tool_calls(text: str) -> list[ParsedToolCall]:
    """The calls in `text`, in order; empty when it holds none. Never raises.

    Four forms are read: any number of `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen, and the
    fallback that `chat_fallback` teaches); `[TOOL_CALLS]` before a list of such objects, or before `name[ARGS]{...}`
    (Mistral); and, where there is no such mark, a text that is nothing but one JSON object of that shape or a list of
    them, bare or in a code fence, or some of them with semicolons between (Llama 3, whose mark `<|python_tag|>` may
    stand before). `parameters` is read as another word for `arguments`. What does not parse is no call.
    """
    if TAG in text:
        return [call for part in _tagged(text) for call in _as_calls(part) or ()]
    if MARKER in text:
        return [call for part in text.split(MARKER)[1:] for call in _of_mistral(part)]
    bare = text.strip().removeprefix(_PYTHON_TAG)
    fenced = _FENCED.match(bare)
    return _as_calls(_load(fenced.group(1) if fenced else bare)) or _in_a_row(bare)


def _tagged(text: str) -> Iterator[Any]:
    """The JSON behind each tag. A string in it may hold the tags as text."""
    at = text.find(TAG)
    while at >= 0:
        at += len(TAG)
        begin = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if text.startswith(("{", "["), begin):
            try:
                value, end = _DECODER.raw_decode(text, begin)
            except (ValueError, RecursionError):
                pass
            else:
                if _END_OF_TAGGED.match(text, end):
                    yield value
                    at = end
        at = text.find(TAG, at)


def _of_mistral(part: str) -> list[ParsedToolCall]:
    named = _NAMED.match(part)
    body = part[named.end() :] if named else part.lstrip()
    if not body.startswith(("{", "[")):
        return []
    try:
        value, _ = _DECODER.raw_decode(body)
    except (ValueError, RecursionError):
        return []
    return _as_calls({"name": named.group(1), "arguments": value} if named else value) or []


def _in_a_row(text: str) -> list[ParsedToolCall]:
    """The calls of objects that stand one after the other; none unless the text is nothing else."""
    calls: list[ParsedToolCall] = []
    at = 0
    while text.startswith("{", at):
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        call = _as_call(value)
        if call is None:
            return []
        calls.append(call)
        while text.startswith((" ", "\n", ";"), at):
            at += 1
    return calls if at == len(text) else []


def _load(text: str) -> Any:
    text = text.strip()
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


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
    return None if text is None else ParsedToolCall(id=new_call_id(), name=name, arguments=text)


def _arguments_text(arguments: Any) -> str | None:
    if arguments is None:
        return "{}"
    if isinstance(arguments, str):
        arguments = _load(arguments)
    if not isinstance(arguments, dict):
        return None
    try:
        # A number beyond what a float holds has no text in JSON.
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        # An escaped lone surrogate in the model's JSON is legal there and cannot be sent as UTF-8 unescaped.
        return text if _is_unicode(text) else json.dumps(arguments)
    except (ValueError, RecursionError):
        return None


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def new_call_id() -> str:
    """Nine random letters and digits."""
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
