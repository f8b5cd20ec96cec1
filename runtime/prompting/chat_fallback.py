"""Tools for models whose chat template knows none: what a template can express, and the text that stands in for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime.errors import TemplateRefused
from runtime.prompting.chat_messages import Message

# Renders messages and tools through the template alone; raises TemplateRefused.
Render = Callable[[list[Message], list[dict[str, Any]]], str]

_TOOLS_INTRO = (
    "You can call the functions below, given one a line as JSON:\n<tools>\n{tools}\n</tools>\n\n"
    "To call a function, write its name and arguments as a JSON object between tags, and nothing after it:\n"
    '<tool_call>\n{{"name": <function name>, "arguments": <arguments object>}}\n</tool_call>'
)


@dataclass(frozen=True)
class TemplateAbilities:
    """What of a chat a template writes into the prompt, found out by rendering marked samples."""

    # Templates of models that also see images may read content as a list of parts only, and drop plain text.
    content_as_parts: bool
    system_role: bool
    tools: bool
    tool_calls: bool
    tool_role: bool
    # Some templates join the arguments of a call to other text: these want JSON text, the others an object.
    arguments_as_text: bool


def probe_abilities(render: Render) -> TemplateAbilities:
    """Find out what the template behind `render` can express."""

    user: Message = {"role": "user", "content": "markedquestion"}
    as_parts = not _shows(render, ["markedquestion"], [user], []) and _shows(
        render, ["markedquestion"], [_content_as_parts(user)], []
    )

    def shows(marks: list[str], messages: list[Message], tools: list[dict[str, Any]]) -> bool:
        return _shows(render, marks, [_content_as_parts(m) for m in messages] if as_parts else messages, tools)

    schema = {"type": "object", "properties": {"place": {"type": "string", "description": "where"}}}
    tool = {"type": "function", "function": {"name": "markedtool", "description": "marked", "parameters": schema}}
    result: Message = {"role": "tool", "name": "markedtool", "tool_call_id": "call00001", "content": "markedresult"}

    def calling(arguments: str | dict[str, Any]) -> Message:
        call = {"id": "call00001", "type": "function", "function": {"name": "markedtool", "arguments": arguments}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    with_object = calling({"place": "markedplace"})
    with_text = calling('{"place": "markedplace"}')
    call_marks = ["markedtool", "markedplace"]

    def shows_calls(call: Message) -> bool:
        # Without tools, so that the marks cannot come from the tool list.
        return shows(call_marks, [user, call], []) or shows(call_marks, [user, call, result], [])

    takes_object = shows_calls(with_object)
    takes_text = not takes_object and shows_calls(with_text)
    spoken: Message = {"role": "assistant", "content": "answer"}
    called = with_object if takes_object else with_text if takes_text else spoken
    return TemplateAbilities(
        content_as_parts=as_parts,
        system_role=shows(["markedsystem"], [{"role": "system", "content": "markedsystem"}, user], []),
        tools=shows(["markedtool"], [user], [tool]),
        tool_calls=takes_object or takes_text,
        tool_role=shows(["markedresult"], [user, called, result], []),
        arguments_as_text=takes_text,
    )


def adapt(
    messages: list[Message], tools: list[dict[str, Any]], abilities: TemplateAbilities
) -> tuple[list[Message], list[dict[str, Any]]]:
    """Rewrite what the template would drop or refuse as text that it keeps."""
    if not abilities.tool_calls:
        messages = [_calls_as_text(message) for message in messages]
    elif abilities.arguments_as_text:
        messages = [_arguments_as_text(message) for message in messages]
    if not abilities.tool_role:
        messages = _results_as_user(messages)
    if tools and not abilities.tools:
        messages = _tools_as_text(messages, tools, abilities.system_role)
        tools = []
    if abilities.content_as_parts:
        messages = [_content_as_parts(message) for message in messages]
    return messages, tools


def _shows(render: Render, marks: list[str], messages: list[Message], tools: list[dict[str, Any]]) -> bool:
    try:
        text = render(messages, tools)
    except TemplateRefused:
        return False
    return all(mark in text for mark in marks)


def _content_as_parts(message: Message) -> Message:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _calls_as_text(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    parts = [message["content"]] if message["content"] else []
    for call in message["tool_calls"]:
        parts.append(f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>")
    return {**rest, "content": "\n".join(parts)}


def _arguments_as_text(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": text}})
    return {**message, "tool_calls": calls}


def _results_as_user(messages: list[Message]) -> list[Message]:
    written: list[Message] = []
    after_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        content = message["content"]
        if is_result:
            content = f"<tool_response>\n{content}\n</tool_response>"
        if after_result and (is_result or message["role"] == "user"):
            # Templates without a tool role often insist that user and assistant take turns.
            written[-1] = {**written[-1], "content": f"{written[-1]['content']}\n{content}"}
        elif is_result:
            written.append({"role": "user", "content": content})
        else:
            written.append(message)
        after_result = is_result
    return written


def _tools_as_text(messages: list[Message], tools: list[dict[str, Any]], system_role: bool) -> list[Message]:
    intro = _TOOLS_INTRO.format(tools="\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools))
    if messages and messages[0]["role"] == "system":
        first = messages[0]
        return [{**first, "content": f"{first['content']}\n\n{intro}".lstrip("\n")}, *messages[1:]]
    if system_role:
        return [{"role": "system", "content": intro}, *messages]
    for index, message in enumerate(messages):
        if message["role"] == "user":
            merged = {**message, "content": f"{intro}\n\n{message['content']}"}
            return [*messages[:index], merged, *messages[index + 1 :]]
    return [{"role": "user", "content": intro}, *messages]
