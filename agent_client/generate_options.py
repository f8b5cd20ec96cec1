"""The keyword arguments of a generate call, and the request that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

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
    # The call.
    request_id: str
    salt: str
    adapter: str
    bypass_cache: bool
    return_prompt_ids: bool
    public_tokens: int
    priority: int
    conversation: str
    timeout_s: float


_CALL_OPTIONS = frozenset({"salt", "adapter", "timeout_s"})
_REQUEST_FIELDS = frozenset(
    {"request_id", "bypass_cache", "return_prompt_ids", "public_tokens", "priority", "conversation"}
)
_SAMPLING_FIELDS = frozenset(GenerateOptions.__annotations__) - _CALL_OPTIONS - _REQUEST_FIELDS


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
    _set(request, {name: options[name] for name in _REQUEST_FIELDS & options.keys()}, "")
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
            elif name in ("stop", "stop_token_ids"):
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidArgument(f"{prefix}{name} is {value!r}: {error}") from None
