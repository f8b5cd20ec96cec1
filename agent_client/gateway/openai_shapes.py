"""What OpenAI's chat and text completions have in common on the way out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..results import FinishReason, ModelInfo, Usage
from .failures import INTERNAL, NOT_FOUND, TOO_MANY, UNAUTHORIZED, ApiError
from .frames import Frame
from .keeping import Wishes

DONE = Frame("[DONE]")
_ERROR_TYPES = {UNAUTHORIZED: "authentication_error", TOO_MANY: "rate_limit_error"}
# A byte that belongs to a character of several tokens.
_TORN = "\N{REPLACEMENT CHARACTER}"


def usage_body(usages: Iterable[Usage]) -> dict[str, Any]:
    """The books of one request, whatever number of prompts it held."""
    told = list(usages)
    prompt = sum(usage.prompt_tokens for usage in told)
    written = sum(usage.output_tokens for usage in told)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in told)},
    }


def hint_results(wishes: Wishes) -> dict[str, Any]:
    """What became of the request's `kv_hints`; empty where it brought none."""
    return {} if wishes.hint_results is None else {"kv_hints": wishes.hint_results}


def finish_reason(reason: FinishReason | None) -> str:
    """OpenAI has one word for the model's end and for a stop string."""
    return "length" if reason == "length" else "stop"


def token_bytes(text: str) -> list[int] | None:
    """A token's text as bytes; None for a token that is a part of a character, whose bytes are not known here."""
    return None if _TORN in text else list(text.encode())


def fingerprint(model: ModelInfo) -> str:
    """`system_fingerprint`: the same as long as weights, tokenizer, template and KV precision are."""
    return f"fp_{model.fingerprint[:12]}"


def model_body(name: str, model: ModelInfo, created: int) -> dict[str, Any]:
    """One entry of `/v1/models`; `max_model_len` is what vLLM calls the context."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "radixloop",
        "root": model.model,
        "max_model_len": model.context_length,
    }


def error_body(error: ApiError) -> dict[str, Any]:
    """An error in OpenAI's format."""
    kind = _ERROR_TYPES.get(error.status, "server_error" if error.status >= INTERNAL else "invalid_request_error")
    code = "model_not_found" if error.status == NOT_FOUND and error.param == "model" else error.code
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": code}}
