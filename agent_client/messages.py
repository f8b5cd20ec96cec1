"""Chat messages and tools in the OpenAI shape, checked and turned into the API's messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from radixloop.v1 import common_pb2 as pb

from .errors import InvalidArgument

ChatMessage = Mapping[str, Any]


def chat_to_proto(
    messages: Sequence[ChatMessage],
    tools: Sequence[Mapping[str, Any] | str] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> pb.Chat:
    """Messages, tools and template variables as one prompt. Raises InvalidArgument naming what is wrong."""
    chat = pb.Chat(messages=[message_to_proto(message, f"messages[{i}]") for i, message in enumerate(messages)])
    chat.tools.extend(tool_to_text(tool, f"tools[{i}]") for i, tool in enumerate(tools or ()))
    if template_kwargs:
        chat.template_kwargs = _dump(template_kwargs, "template_kwargs")
    return chat


def message_to_proto(message: ChatMessage, where: str) -> pb.Message:
    """One message. `content` may be text, null, or a list of text parts. Raises InvalidArgument."""
    try:
        return _message_to_proto(message, where)
    except UnicodeEncodeError:
        raise InvalidArgument(f"{where} holds half a surrogate pair, which is no text in UTF-8") from None


def _message_to_proto(message: ChatMessage, where: str) -> pb.Message:
    if not isinstance(message, Mapping):
        raise InvalidArgument(f"{where} is {type(message).__name__}: a mapping with role and content is needed")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidArgument(f"{where}.role is {role!r}: a name such as 'user' is needed")
    out = pb.Message(role=role)
    content = content_to_text(message.get("content"), f"{where}.content")
    if content is not None:
        out.content = content
    for i, call in enumerate(message.get("tool_calls") or ()):
        out.tool_calls.append(_tool_call_to_proto(call, f"{where}.tool_calls[{i}]"))
    for name in ("tool_call_id", "name"):
        value = message.get(name)
        if value is None:
            continue
        if not isinstance(value, str):
            raise InvalidArgument(f"{where}.{name} is {type(value).__name__}: text is needed")
        setattr(out, name, value)
    return out


def content_to_text(content: Any, where: str) -> str | None:
    """Message content as one text; null stays null. Raises InvalidArgument for anything but text."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidArgument(f"{where} is {type(content).__name__}: text, null or a list of text parts is needed")
    texts = []
    for i, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InvalidArgument(f"{where}[{i}] is a part of type {kind!r}: only text parts are understood")
    return "".join(texts)


def tool_to_text(tool: Mapping[str, Any] | str, where: str) -> str:
    """A tool definition as JSON text; a function given bare is wrapped in the OpenAI shape."""
    if isinstance(tool, str):
        return tool
    if not isinstance(tool, Mapping):
        raise InvalidArgument(f"{where} is {type(tool).__name__}: a mapping or JSON text is needed")
    if "function" not in tool and "name" in tool:
        tool = {"type": "function", "function": dict(tool)}
    return _dump(tool, where)


def _tool_call_to_proto(call: Any, where: str) -> pb.ToolCall:
    if not isinstance(call, Mapping):
        raise InvalidArgument(f"{where} is {type(call).__name__}: a mapping is needed")
    function = call.get("function", call)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidArgument(f"{where}.function.name is missing")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        arguments = _dump(arguments, f"{where}.function.arguments")
    out = pb.ToolCall(name=function["name"], arguments=arguments)
    if isinstance(call.get("id"), str):
        out.id = call["id"]
    return out


def _dump(value: Any, where: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{where} cannot be written as JSON: {error}") from None
