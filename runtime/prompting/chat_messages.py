"""Checking chat messages and tools, and bringing them into the one shape that templates are written for."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from runtime.errors import InvalidRequest

Message = dict[str, Any]

MESSAGES_FIELD = "prompt.chat.messages"
TOOLS_FIELD = "prompt.chat.tools"
KWARGS_FIELD = "prompt.chat.template_kwargs"
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


def check_messages(messages: Any) -> tuple[list[Message], int]:
    """The messages in the shape that templates expect, and their length in characters as JSON.

    In that shape `content` is text, and a tool call is `{"id", "type": "function", "function": {"name", "arguments"}}`
    with the arguments as an object. Arguments that are no JSON object stay text, and in those that are one U+FFFD
    replaces halves of surrogate pairs: a model writes such calls at times, and its own words must be fit to be sent
    back. Raises InvalidRequest naming the message and the key.
    """
    if not isinstance(messages, list):
        raise InvalidRequest(MESSAGES_FIELD, type(messages).__name__, "must be a list of messages")
    if not messages:
        raise InvalidRequest(MESSAGES_FIELD, 0, "must hold at least one message")
    checked: list[Message] = []
    chars = 0
    for index, message in enumerate(messages):
        field = f"{MESSAGES_FIELD}[{index}]"
        if not isinstance(message, dict):
            raise InvalidRequest(field, type(message).__name__, "must be an object with role and content")
        chars += _json_length(field, message)
        checked.append(_message(field, message))
    return checked, chars


def check_tools(tools: Any) -> tuple[list[dict[str, Any]], int]:
    """The tools in the shape `{"type": "function", "function": {...}}`, and their length in characters as JSON."""
    if tools is None:
        return [], 0
    if not isinstance(tools, list):
        raise InvalidRequest(TOOLS_FIELD, type(tools).__name__, "must be a list of tool definitions")
    checked: list[dict[str, Any]] = []
    chars = 0
    for index, tool in enumerate(tools):
        field = f"{TOOLS_FIELD}[{index}]"
        if not isinstance(tool, dict):
            raise InvalidRequest(field, type(tool).__name__, "must be an object")
        chars += _json_length(field, tool)
        whole = tool if "function" in tool else {"type": "function", "function": tool}
        function = whole["function"]
        if not isinstance(function, dict):
            raise InvalidRequest(f"{field}.function", type(function).__name__, "must be an object")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise InvalidRequest(f"{field}.function.name", function.get("name"), "must be the tool's name")
        if not isinstance(function.get("parameters", {}), dict):
            raise InvalidRequest(f"{field}.function.parameters", "no object", "must be a JSON schema object")
        checked.append({"type": "function", **whole})
    return checked, chars


def check_template_kwargs(template_kwargs: Any, reserved: Collection[str]) -> int:
    """The length in characters, as JSON, of a template's extra variables, none of which may bear a reserved name."""
    if template_kwargs is None:
        return 0
    if not isinstance(template_kwargs, dict):
        raise InvalidRequest(KWARGS_FIELD, type(template_kwargs).__name__, "must be an object")
    chars = _json_length(KWARGS_FIELD, template_kwargs)
    for name in template_kwargs:
        if name in reserved:
            raise InvalidRequest(KWARGS_FIELD, name, "is set by the runtime and cannot be given")
    return chars


def _message(field: str, message: Message) -> Message:
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise InvalidRequest(f"{field}.role", role, "must be a word such as system, user, assistant or tool")
    shaped = {key: value for key, value in message.items() if value is not None}
    calls = shaped.pop("tool_calls", None)
    if calls is not None and (not isinstance(calls, list) or (calls and role != "assistant")):
        raise InvalidRequest(f"{field}.tool_calls", type(calls).__name__, "must be a list, on an assistant message")
    for key in ("tool_call_id", "name"):
        if not isinstance(shaped.get(key, ""), str):
            raise InvalidRequest(f"{field}.{key}", shaped[key], "must be text")
    # Many templates join content to other text without asking whether there is any.
    shaped["content"] = _content(f"{field}.content", role, shaped.get("content"))
    if calls:
        shaped["tool_calls"] = [_tool_call(f"{field}.tool_calls[{rank}]", call) for rank, call in enumerate(calls)]
    return shaped


def _content(field: str, role: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if role in ("assistant", "tool"):
            return ""
        raise InvalidRequest(field, None, f"a message of role {role} needs text")
    if not isinstance(content, list):
        raise InvalidRequest(field, type(content).__name__, "must be text or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise InvalidRequest(f"{field}[{index}]", kind, 'only parts of type "text" are taken')
        texts.append(text)
    return "".join(texts)


def _tool_call(field: str, call: Any) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise InvalidRequest(field, type(call).__name__, "must be an object")
    function = call.get("function", call)
    if not isinstance(function, dict):
        raise InvalidRequest(f"{field}.function", type(function).__name__, "must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{field}.name", name, "must be the tool's name")
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, (str, dict)):
        raise InvalidRequest(
            f"{field}.arguments", type(arguments).__name__, "must be a JSON object, as text or as such"
        )
    shaped = {"type": "function", "function": {"name": name, "arguments": _as_object(arguments)}}
    return shaped if call.get("id") is None else {"id": str(call["id"]), **shaped}


def _as_object(arguments: str | dict[str, Any] | None) -> str | dict[str, Any]:
    if not isinstance(arguments, str):
        return arguments or {}
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
        return _in_unicode(value) if isinstance(value, dict) else arguments
    except (ValueError, RecursionError):
        return arguments


def _in_unicode(value: dict[str, Any]) -> dict[str, Any]:
    # JSON text may spell a lone surrogate with an escape, which cannot be tokenised once it is read.
    text = json.dumps(value, ensure_ascii=False)
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    readable: dict[str, Any] = value if whole == text else json.loads(whole)
    return readable


def _json_length(field: str, value: Any) -> int:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise InvalidRequest(field, "(deeply nested)", "is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise InvalidRequest(field, str(error), "must be JSON: text, numbers, lists and objects") from None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(field, text[error.start], "is half of a surrogate pair, so the text is no UTF-8") from None
    return len(text)
