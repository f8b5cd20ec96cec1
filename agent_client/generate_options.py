"""The keyword arguments of a generate call, and the request that they make."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from radixloop.v1 import common_pb2, inference_pb2

from .errors import InvalidArgument
from .messages import ChatMessage
from .prompts import Chat, Prompt, prompt_to_proto


class GenerateOptions(TypedDict, total=False):
    """Everything is optional; what is left out takes the runtime's default, and a zero means zero."""

    # Sampling.
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    n: int
    logprobs: bool
    top_logprobs: int
    clip_max_tokens: bool
    # What the text must be; one of these.
    json_schema: Mapping[str, Any] | str
    json_object: bool
    regex: str
    grammar: str
    choice: Sequence[str]
    structural_tag: Mapping[str, Any] | str
    # Whether and which of the chat's tools may be called: `tool_names` are the only ones, unset or empty all.
    tool_choice: Literal["auto", "none", "required"]
    tool_names: Sequence[str]
    parallel_tool_calls: bool
    # The call.
    request_id: str
    salt: str
    adapter: str
    bypass_cache: bool
    return_prompt_ids: bool
    explain: bool
    public_tokens: int
    verdict_within_namespace: bool
    priority: int
    conversation: str
    conversation_ends: bool
    timeout_s: float


_CALL_OPTIONS = frozenset({"salt", "adapter", "timeout_s"})
_CONSTRAINTS = frozenset({"json_schema", "json_object", "regex", "grammar", "choice", "structural_tag"})
_TOOL_OPTIONS = frozenset({"tool_choice", "tool_names"})
_REQUEST_FIELDS = _CONSTRAINTS | {
    "request_id",
    "bypass_cache",
    "return_prompt_ids",
    "explain",
    "public_tokens",
    "verdict_within_namespace",
    "priority",
    "conversation",
    "conversation_ends",
    "parallel_tool_calls",
}
_SAMPLING_FIELDS = frozenset(GenerateOptions.__annotations__) - _CALL_OPTIONS - _REQUEST_FIELDS - _TOOL_OPTIONS
_TOOL_MODES = {
    "auto": inference_pb2.TOOL_MODE_AUTO,
    "none": inference_pb2.TOOL_MODE_NONE,
    "required": inference_pb2.TOOL_MODE_REQUIRED,
}


def namespace(salt: str | None, adapter: str | None) -> common_pb2.Namespace:
    """With neither part set: the namespace that everybody without a salt shares."""
    return common_pb2.Namespace(salt=salt, adapter=adapter)


def namespace_parts(space: common_pb2.Namespace) -> tuple[str | None, str | None]:
    """Salt and adapter; None for a part that is not set."""
    return (
        space.salt if space.HasField("salt") else None,
        space.adapter if space.HasField("adapter") else None,
    )


def generate_request(
    prompt: Prompt,
    options: Mapping[str, Any],
    default_namespace: common_pb2.Namespace | None = None,
    session_id: str | None = None,
) -> inference_pb2.GenerateRequest:
    """Builds the request. Raises TypeError for an unknown option and InvalidArgument for a value of the wrong type."""
    unknown = set(options) - set(GenerateOptions.__annotations__)
    if unknown:
        known = ", ".join(GenerateOptions.__annotations__)
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}; known are {known}")
    request = inference_pb2.GenerateRequest(prompt=prompt_to_proto(prompt), session_id=session_id)
    constraints = sorted(name for name in _CONSTRAINTS if options.get(name) is not None)
    if len(constraints) > 1:
        raise InvalidArgument(f"{' and '.join(constraints)}: a text is held to one constraint at most")
    _set(request, {name: options[name] for name in _REQUEST_FIELDS & options.keys()}, "")
    _set_tool_choice(request, options)
    sampling = {name: options[name] for name in _SAMPLING_FIELDS & options.keys()}
    if isinstance(sampling.get("stop"), str):
        sampling["stop"] = [sampling["stop"]]
    _set(request.sampling, sampling, "sampling.")
    if session_id is not None:
        if options.get("salt") is not None or options.get("adapter") is not None:
            raise InvalidArgument("salt and adapter belong to the session: set them when it is opened")
        return request
    if default_namespace is not None:
        request.namespace.CopyFrom(default_namespace)
    _set(request.namespace, {name: options[name] for name in ("salt", "adapter") if name in options}, "namespace.")
    return request


def _set_tool_choice(request: inference_pb2.GenerateRequest, options: Mapping[str, Any]) -> None:
    mode, names = options.get("tool_choice"), options.get("tool_names") or ()
    if mode is None and not names:
        return
    if mode not in (None, *_TOOL_MODES):
        raise InvalidArgument(f"tool_choice is {mode!r}: one of {', '.join(_TOOL_MODES)}")
    request.tool_choice.mode = _TOOL_MODES[mode or "auto"]
    _set(request.tool_choice, {"names": names}, "tool_choice.")


def chat_prompt(
    messages: Sequence[ChatMessage],
    tools: Sequence[Mapping[str, Any] | str] | None,
    template_kwargs: Mapping[str, Any] | None,
) -> Chat:
    return Chat(messages, tools or (), template_kwargs or {})


def _set(message: Any, values: Mapping[str, Any], prefix: str) -> None:
    for name, value in values.items():
        if value is None:
            continue
        try:
            if name == "logit_bias":
                message.logit_bias.update(value)
            elif name in ("stop", "stop_token_ids", "names"):
                getattr(message, name).extend(value)
            elif name == "choice":
                message.choice.texts.extend(value)
            elif name in ("json_schema", "structural_tag") and not isinstance(value, str):
                setattr(message, name, json.dumps(value, ensure_ascii=False))
            else:
                setattr(message, name, value)
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidArgument(f"{prefix}{name} is {value!r}: {error}") from None
