"""The fields of OpenAI's chat and text completions that say how tokens are chosen and what is kept."""

from __future__ import annotations

from typing import Any, cast

from ..generate_options import GenerateOptions
from .bodies import Body
from .conversations import Nvext
from .failures import refused
from .keeping import KvHints

# What OpenAI's API takes where a request names none; the runtime's own default is greedy.
DEFAULT_TEMPERATURE = 1.0
# A limit is no wish: whoever asks for more than the context has room for gets what there is room for.
NO_LIMIT = 2**31 - 1
_SAME_NAME = (
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "n",
    "priority",
)


class StreamOptions(Body):
    """How a stream is sent."""

    include_usage: bool | None = None


class SamplingFields(Body):
    """What both kinds of completion take. `top_k` to `ignore_eos` are vLLM's names for what OpenAI does not have."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    prompt_cache_key: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    kv_hints: KvHints | None = None
    nvext: Nvext | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def options(self) -> GenerateOptions:
        """The runtime's options, without those that only one kind of completion has. Raises ApiError."""
        given: dict[str, Any] = {name: getattr(self, name) for name in _SAME_NAME}
        given["temperature"] = DEFAULT_TEMPERATURE if self.temperature is None else self.temperature
        if self.priority is None and self.nvext is not None:
            given["priority"] = self.nvext.priority
        if self.top_k == -1:
            # As vLLM says that all are kept.
            given["top_k"] = 0
        if self.seed is not None and -(2**63) <= self.seed < 0:
            # OpenAI's are signed.
            given["seed"] = self.seed + 2**64
        if self.logit_bias:
            given["logit_bias"] = {_token_id(token): bias for token, bias in self.logit_bias.items()}
        return cast("GenerateOptions", {name: value for name, value in given.items() if value is not None})


def limit_priority(options: GenerateOptions, asked: SamplingFields, highest: int) -> None:
    """Holds a request to the highest priority of its key. Raises ApiError, except for Dynamo's, which is a hint."""
    if asked.priority is not None and asked.priority > highest:
        raise refused("priority", f"is {asked.priority}, and at most {highest} with this key")
    if "priority" in options:
        options["priority"] = min(options["priority"], highest)


def limit_tokens(options: GenerateOptions, wanted: int | None) -> None:
    """Lets a reply take `wanted` tokens, or what the context leaves where that is less or nothing is named."""
    options["max_tokens"] = NO_LIMIT if wanted is None else min(wanted, NO_LIMIT)
    options["clip_max_tokens"] = True


def _token_id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise refused("logit_bias", f"its keys are token ids, {text[:20]!r} is none")
    return int(text)
