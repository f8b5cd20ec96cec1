"""The body of POST /v1/responses, and what a turn of it adds to a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...generate_options import GenerateOptions
from ...prompts import Chat
from ..bodies import Body
from ..call_reader import CallReader
from ..failures import refused
from ..field_names import FieldNames
from ..openai_tools import read_tool_choice, set_format, set_tools
from ..sampling import SamplingFields, limit_tokens

LOGPROBS = "message.output_text.logprobs"
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text")
_ROLES = {"developer": "system"}

Message = dict[str, Any]

NAMES = FieldNames(
    {"max_tokens": "max_output_tokens", "json_schema": "text.format.schema", "prompt": "input"}, {".function": ""}
)


class TextConfig(Body):
    """What the text must be."""

    format: dict[str, Any] | None = None


class ResponsesRequest(SamplingFields):
    """A turn. What OpenAI runs on its side (built-in tools, background work, prompts that it stores) is refused."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    background: bool | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None

    @property
    def keeps(self) -> bool:
        """Whether a later turn may go on from this one."""
        return self.store is not False

    @property
    def wants_logprobs(self) -> bool:
        """Whether the tokens' log-probabilities are told."""
        return LOGPROBS in (self.include or ())

    def chat_tools(self) -> list[dict[str, Any]]:
        """The tools in the shape of chat completions."""
        return [_tool(tool, f"tools[{rank}]") for rank, tool in enumerate(self.tools or ())]

    def reader(self) -> CallReader:
        """What tells the reply's text from its calls."""
        reads_calls = bool(self.tools) and self.tool_choice != "none"
        return CallReader(reads_calls=reads_calls, one_call=self.parallel_tool_calls is False)

    def refuse_unserved(self) -> None:
        """Raises ApiError for what is not served here."""
        if self.background:
            raise refused("background", "not served; stream, or wait for the answer")
        for name in ("conversation", "prompt"):
            if getattr(self, name) is not None:
                raise refused(name, "not served; previous_response_id goes on from a response")
        if self.n not in (None, 1):
            raise refused("n", "a response has one output")


def turn_options(asked: ResponsesRequest, tools: Sequence[dict[str, Any]]) -> GenerateOptions:
    """Sampling and cache options, and what the reply must be. Raises ApiError."""
    options = asked.options()
    limit_tokens(options, asked.max_tokens if asked.max_output_tokens is None else asked.max_output_tokens)
    mode, names = read_tool_choice(asked.tool_choice, tools)
    if tools:
        set_tools(options, mode, names, asked.parallel_tool_calls)
    set_format(options, asked.text.format if asked.text else None, "text.format")
    if asked.wants_logprobs:
        options["logprobs"] = True
        options["top_logprobs"] = asked.top_logprobs or 0
    return options


def new_messages(asked: ResponsesRequest) -> list[Message]:
    """The input as chat messages. Raises ApiError naming the item that is not served."""
    if isinstance(asked.input, str):
        return [{"role": "user", "content": asked.input}]
    if not asked.input:
        raise refused("input", "an empty list; text or items are needed")
    messages: list[Message] = []
    for rank, item in enumerate(asked.input):
        _add(messages, item, f"input[{rank}]")
    return messages


def chat_of(
    instructions: str | None, history: Sequence[Message], new: Sequence[Message], tools: Sequence[dict[str, Any]]
) -> Chat:
    """All of a conversation; instructions are those of this turn, whatever those before had."""
    head = [{"role": "system", "content": instructions}] if instructions else []
    return Chat([*head, *history, *new], tools)


def _add(messages: list[Message], item: dict[str, Any], where: str) -> None:
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind == "message":
        role = _field(item, "role", where)
        messages.append({"role": _ROLES.get(role, role), "content": _text(item.get("content"), f"{where}.content")})
    elif kind == "function_call":
        function = {"name": _field(item, "name", where), "arguments": _field(item, "arguments", where)}
        call = {"id": _field(item, "call_id", where), "type": "function", "function": function}
        # A turn's text and calls are items side by side here, and one message in a chat.
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = _text(item.get("output"), f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": _field(item, "call_id", where), "content": output})
    elif kind != "reasoning":
        # A model's private thoughts are not sent back to it.
        raise refused(f"{where}.type", f"is {kind!r}; message, function_call and function_call_output are served")


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refused(where, "must be text or a list of text parts")
    texts = []
    for rank, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind == "refusal":
            texts.append(_field(part, "refusal", f"{where}[{rank}]"))
        elif kind in _TEXT_PARTS:
            texts.append(_field(part, "text", f"{where}[{rank}]"))
        else:
            raise refused(f"{where}[{rank}]", f"a part of type {kind!r} is not served; text is")
    return "".join(texts)


def _field(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise refused(f"{where}.{name}", "must be text")
    return value


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise refused(f"{where}.type", f"is {tool.get('type')!r}; functions, which the caller runs, are served")
    parameters = tool.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise refused(f"{where}.parameters", "must be a JSON schema, an object")
    function = {"name": _field(tool, "name", where), "parameters": parameters or {"type": "object", "properties": {}}}
    for name in ("description", "strict"):
        if tool.get(name) is not None:
            function[name] = tool[name]
    return {"type": "function", "function": function}
