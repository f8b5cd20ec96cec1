"""What comes in by gRPC, checked and turned into the runtime's own types. A refusal names field and limit."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from radixloop.v1 import cache_pb2, common_pb2, inference_pb2

from radix import Namespace
from runtime.access.caller import current_caller
from runtime.errors import InvalidRequest
from runtime.sampling.sampling_params import SamplingParams, check_counts

Tokens = npt.NDArray[np.int32]

MAX_ID_CHARS = 128
MAX_NAME_BYTES = 1024
MAX_JSON_DEPTH = 64
DEFAULT_HEAD_TOKENS = 16
MAX_HEAD_TOKENS = 256

_SCALARS = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "ignore_eos",
    "n",
    "logprobs",
    "top_logprobs",
    "clip_max_tokens",
)


@dataclass(frozen=True)
class ChatInput:
    """A chat prompt in the shape that chat templates read."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    template_kwargs: dict[str, Any] = field(default_factory=dict)


def token_array(name: str, ids: common_pb2.TokenIds, vocab_size: int) -> Tokens:
    """int32 token ids from either form. Raises InvalidRequest for both, none, a torn buffer or an id out of range."""
    if ids.ids and ids.le_int32:
        raise InvalidRequest(name, "ids and le_int32", "give one of the two")
    if ids.le_int32:
        if len(ids.le_int32) % 4:
            raise InvalidRequest(f"{name}.le_int32", f"{len(ids.le_int32)} bytes", "four bytes a token id")
        tokens = np.frombuffer(ids.le_int32, dtype="<i4").astype(np.int32, copy=False)
    else:
        tokens = np.array(ids.ids, dtype=np.int32)
    if not len(tokens):
        raise InvalidRequest(name, "empty", "at least one token id")
    outside = (tokens < 0) | (tokens >= vocab_size)
    if outside.any():
        at = int(outside.argmax())
        raise InvalidRequest(f"{name}[{at}]", int(tokens[at]), f"token ids of this model go from 0 to {vocab_size - 1}")
    return tokens


def checked_id(name: str, value: str) -> str:
    """An id chosen by the client: 1 to 128 printable characters."""
    if not 1 <= len(value) <= MAX_ID_CHARS or not value.isprintable():
        raise InvalidRequest(name, value, f"must be 1 to {MAX_ID_CHARS} printable characters")
    return value


def namespace_of(space: common_pb2.Namespace, fingerprint: str) -> Namespace:
    """The cache namespace of the request that is being answered: of its caller's tenant and of this model."""
    for name in ("salt", "adapter"):
        size = len(getattr(space, name).encode())
        if size > MAX_NAME_BYTES:
            raise InvalidRequest(f"namespace.{name}", f"{size} bytes", f"at most {MAX_NAME_BYTES} bytes")
    return Namespace(
        fingerprint=fingerprint,
        salt=current_caller().salt(space.salt if space.HasField("salt") else None),
        adapter=space.adapter if space.HasField("adapter") else None,
    )


def sampling_params(params: inference_pb2.SamplingParams, vocab_size: int) -> SamplingParams:
    """Sampling settings with defaults for what is unset. Raises InvalidRequest outside a limit."""
    check_counts(params.stop, params.stop_token_ids, params.logit_bias)
    given = {name: getattr(params, name) for name in _SCALARS if params.HasField(name)}
    converted = SamplingParams(
        **given,
        logit_bias=dict(params.logit_bias),
        stop=tuple(params.stop),
        stop_token_ids=tuple(params.stop_token_ids),
    )
    converted.validate(vocab_size)
    return converted


def chat_input(name: str, chat: common_pb2.Chat, max_messages: int) -> ChatInput:
    """Messages, tools and template variables. Raises InvalidRequest for an empty chat or for JSON that is none."""
    if not chat.messages:
        raise InvalidRequest(f"{name}.messages", "empty", "at least one message")
    if len(chat.messages) > max_messages:
        raise InvalidRequest(f"{name}.messages", len(chat.messages), f"at most {max_messages} messages")
    return ChatInput(
        messages=[_message(f"{name}.messages[{i}]", message) for i, message in enumerate(chat.messages)],
        tools=[_tool(f"{name}.tools[{i}]", text) for i, text in enumerate(chat.tools)],
        template_kwargs=json_object(f"{name}.template_kwargs", chat.template_kwargs) if chat.template_kwargs else {},
    )


def json_object(name: str, text: str) -> dict[str, Any]:
    """A JSON object out of text; NaN and nesting beyond 64 levels are refused."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(name, text, f"must be a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise InvalidRequest(name, text, f"must be a JSON object, not {type(value).__name__}")
    _check_depth(name, value)
    return value


def head_tokens(request: cache_pb2.ListNodesRequest) -> int:
    """How many of a node's tokens to show, 0 to 256."""
    if not request.HasField("head_tokens"):
        return DEFAULT_HEAD_TOKENS
    if not 0 <= request.head_tokens <= MAX_HEAD_TOKENS:
        raise InvalidRequest("head_tokens", request.head_tokens, f"must be from 0 to {MAX_HEAD_TOKENS}")
    return request.head_tokens


def _message(name: str, message: common_pb2.Message) -> dict[str, Any]:
    if not 1 <= len(message.role) <= 64:
        raise InvalidRequest(f"{name}.role", message.role, "must have 1 to 64 characters")
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequest(f"{name}.tool_calls", message.role, "only messages of the role assistant call tools")
    shaped: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shaped["tool_calls"] = [_tool_call(f"{name}.tool_calls[{i}]", c) for i, c in enumerate(message.tool_calls)]
    for optional in ("tool_call_id", "name"):
        if message.HasField(optional):
            shaped[optional] = getattr(message, optional)
    return shaped


def _tool_call(name: str, call: common_pb2.ToolCall) -> dict[str, Any]:
    if not call.name:
        raise InvalidRequest(f"{name}.name", call.name, "must not be empty")
    # Text that is no JSON object stays text: a model writes such calls at times, and they must go back as history.
    shaped: dict[str, Any] = {"type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}
    if call.HasField("id"):
        shaped["id"] = call.id
    return shaped


def _tool(name: str, text: str) -> dict[str, Any]:
    tool = json_object(name, text)
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(name, text, 'must read {"type": "function", "function": {"name": …, "parameters": …}}')
    return tool


def _no_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _check_depth(name: str, value: object) -> None:
    level: list[object] = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise InvalidRequest(name, "nested deeper", f"at most {MAX_JSON_DEPTH} levels of JSON")


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
