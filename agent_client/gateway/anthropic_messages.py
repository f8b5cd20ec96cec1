"""Anthropic's messages as a call of the runtime: what is asked, turned into a chat with tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..generate_options import GenerateOptions
from ..prompts import Chat
from .bodies import Body
from .call_reader import CallReader
from .failures import refused
from .field_names import FieldNames
from .keeping import KvHints
from .openai_tools import Mode, set_format, set_tools
from .sampling import limit_tokens

# What Anthropic's API takes where a request names none; the runtime's own default is greedy.
DEFAULT_TEMPERATURE = 1.0
# A model's private thoughts are not sent back to it, as with Anthropic's own models in later turns.
_THOUGHTS = ("thinking", "redacted_thinking")


NAMES = FieldNames(
    {"stop": "stop_sequences", "json_schema": "output_config.format.schema"},
    {".function.parameters": ".input_schema", ".function": ""},
)


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
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(Body):
    """What the reply must be."""

    format: dict[str, Any] | None = None


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
    output_config: OutputConfig | None = None
    kv_hints: KvHints | None = None

    def reader(self) -> CallReader:
        """What tells the reply's text from its calls."""
        choice = self.tool_choice or ToolChoice(type="auto")
        reads_calls = bool(self.tools) and choice.type != "none"
        return CallReader(reads_calls=reads_calls, one_call=bool(choice.disable_parallel_tool_use))


def messages_prompt(asked: CountRequest) -> Chat:
    """System, messages and tools. Raises ApiError naming the block that is not served."""
    messages: list[dict[str, Any]] = []
    if asked.system:
        messages.append({"role": "system", "content": _text(asked.system, "system")})
    for rank, message in enumerate(asked.messages):
        messages += _turn(message, f"messages[{rank}]")
    return Chat(messages, [_tool(tool, f"tools[{rank}]") for rank, tool in enumerate(asked.tools or ())])


def messages_options(asked: MessagesRequest) -> GenerateOptions:
    """Sampling options, and what the reply must be. Raises ApiError."""
    options = GenerateOptions(temperature=DEFAULT_TEMPERATURE if asked.temperature is None else asked.temperature)
    limit_tokens(options, asked.max_tokens)
    _set_tool_choice(options, asked)
    if asked.output_config is not None:
        set_format(options, asked.output_config.format, "output_config.format")
    if asked.top_k is not None:
        options["top_k"] = asked.top_k
    if asked.top_p is not None:
        options["top_p"] = asked.top_p
    if asked.stop_sequences:
        options["stop"] = asked.stop_sequences
    return options


def _set_tool_choice(options: GenerateOptions, asked: MessagesRequest) -> None:
    choice, tools = asked.tool_choice, [tool.name for tool in asked.tools or ()]
    if choice is None:
        return
    modes: dict[str, Mode | None] = {"auto": None, "none": "none", "any": "required", "tool": "required"}
    if choice.type not in modes:
        raise refused("tool_choice.type", f"is {choice.type!r}; {', '.join(modes)} are served")
    if choice.type in ("any", "tool") and not tools:
        raise refused("tool_choice", "asks for a call, and there are no tools")
    if choice.type == "tool" and choice.name not in tools:
        raise refused("tool_choice.name", f"is {choice.name!r}, which is none of the tools")
    if tools:
        names = [choice.name] if choice.type == "tool" and choice.name else []
        set_tools(options, modes[choice.type], names, False if choice.disable_parallel_tool_use else None)


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
