"""Anthropic's messages as a call of the runtime: what is asked, turned into a chat with tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..generate_options import GenerateOptions
from ..prompts import Chat
from .bodies import Body
from .failures import refused

# What Anthropic's API takes where a request names none; the runtime's own default is greedy.
DEFAULT_TEMPERATURE = 1.0
NEEDS_GRAMMAR = "this runtime has no constrained decoding, which alone could promise it"
# A model's private thoughts are not sent back to it, as with Anthropic's own models in later turns.
_THOUGHTS = ("thinking", "redacted_thinking")


class Message(Body):
    """One turn: text, or blocks of text, tool use and tool results."""

    role: str
    content: str | list[dict[str, Any]]


class Tool(Body):
    """A tool that the caller runs."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class ToolChoice(Body):
    """Whether tools may be called."""

    type: str
    disable_parallel_tool_use: bool | None = None


class CountRequest(Body):
    """The body of POST /v1/messages/count_tokens."""

    model: str
    messages: list[Message]
    system: str | list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None


class MessagesRequest(CountRequest):
    """The body of POST /v1/messages."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    cache_control: dict[str, Any] | None = None

    @property
    def reads_calls(self) -> bool:
        """Whether tool calls are looked for in the reply."""
        return bool(self.tools) and not (self.tool_choice and self.tool_choice.type == "none")

    @property
    def one_call(self) -> bool:
        """Whether the caller takes one tool call at most."""
        return bool(self.tool_choice and self.tool_choice.disable_parallel_tool_use)

    @property
    def marks_cache(self) -> bool:
        """Whether any part of the prompt carries `cache_control`."""
        blocks = [*(self.system if isinstance(self.system, list) else [])]
        for message in self.messages:
            blocks += message.content if isinstance(message.content, list) else []
        marked = [block.get("cache_control") for block in blocks]
        return any([self.cache_control, *marked, *(tool.cache_control for tool in self.tools or ())])


def messages_prompt(asked: CountRequest) -> Chat:
    """System, messages and tools. Raises ApiError naming the block that is not served."""
    if asked.tool_choice is not None and asked.tool_choice.type not in ("auto", "none"):
        raise refused("tool_choice", f"only the types 'auto' and 'none' are served: {NEEDS_GRAMMAR}")
    messages: list[dict[str, Any]] = []
    if asked.system:
        messages.append({"role": "system", "content": _text(asked.system, "system")})
    for rank, message in enumerate(asked.messages):
        messages += _turn(message, f"messages[{rank}]")
    return Chat(messages, [_tool(tool, f"tools[{rank}]") for rank, tool in enumerate(asked.tools or ())])


def messages_options(asked: MessagesRequest) -> GenerateOptions:
    """Sampling options."""
    options = GenerateOptions(
        max_tokens=asked.max_tokens,
        temperature=DEFAULT_TEMPERATURE if asked.temperature is None else asked.temperature,
    )
    if asked.top_k is not None:
        options["top_k"] = asked.top_k
    if asked.top_p is not None:
        options["top_p"] = asked.top_p
    if asked.stop_sequences:
        options["stop"] = asked.stop_sequences
    return options


def _turn(message: Message, where: str) -> Iterator[dict[str, Any]]:
    """The chat messages that a turn becomes: each tool result is one of its own."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for rank, block in enumerate(message.content):
        place, kind = f"{where}.content[{rank}]", block.get("type")
        if kind == "text":
            texts.append(_field(block, "text", str, place))
        elif kind == "tool_use":
            function = {"name": _field(block, "name", str, place), "arguments": _field(block, "input", dict, place)}
            calls.append({"id": _field(block, "id", str, place), "type": "function", "function": function})
        elif kind == "tool_result":
            if texts:
                yield {"role": message.role, "content": "".join(texts)}
                texts = []
            result = _text(block.get("content") or "", f"{place}.content")
            yield {"role": "tool", "tool_call_id": _field(block, "tool_use_id", str, place), "content": result}
        elif kind not in _THOUGHTS:
            raise refused(place, f"a block of type {kind!r} is not served; text, tool_use and tool_result are")
    if texts or calls:
        # Not None beside calls: templates paste it.
        yield {"role": message.role, "content": "".join(texts), **({"tool_calls": calls} if calls else {})}


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refused(where, "must be text or a list of text blocks")
    texts = []
    for rank, block in enumerate(content):
        place = f"{where}[{rank}]"
        if not isinstance(block, dict) or block.get("type") != "text":
            raise refused(place, "only text blocks are served here")
        texts.append(_field(block, "text", str, place))
    return "".join(texts)


def _field(block: dict[str, Any], name: str, kind: type, where: str) -> Any:
    value = block.get(name)
    if not isinstance(value, kind):
        needed = "text" if kind is str else "an object"
        raise refused(f"{where}.{name}", f"must be {needed}")
    return value


def _tool(tool: Tool, where: str) -> dict[str, Any]:
    if tool.input_schema is None:
        raise refused(where, "only tools with an input_schema are served, which the caller runs")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}
