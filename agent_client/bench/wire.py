"""What another server's HTTP API takes and gives, as data: a request's body, and what a streamed chunk says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# Stands for a token whose id the server does not tell. No prompt holds it, so nothing is taken to extend such a reply.
UNKNOWN_TOKEN = -1


@dataclass(frozen=True)
class Books:
    """What a server says a call came to, in tokens. `cached_tokens` is None where it does not tell."""

    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int


@dataclass(frozen=True)
class Piece:
    """One chunk of a stream: the tokens that it brings, and the books where they are in it."""

    token_ids: tuple[int, ...] = ()
    books: Books | None = None


class Wire(Protocol):
    """One server's dialect. `path` is where calls are posted, below the server's address."""

    path: str

    def body(self, prompt: Sequence[int], *, max_tokens: int, ignore_eos: bool, use_cache: bool) -> dict[str, Any]:
        """A greedy, streaming call."""
        ...

    def piece(self, chunk: Mapping[str, Any]) -> Piece:
        """Raises KeyError, TypeError or ValueError for a chunk of another shape."""
        ...


class OpenAIWire:
    """`/v1/completions`, with what vLLM and others add to it: token ids in and out, `ignore_eos`.

    It has no switch for the cache: a run without it needs a server without it, or prompts that share nothing.
    """

    path = "/v1/completions"

    def __init__(self, model: str) -> None:
        self.model = model

    def body(self, prompt: Sequence[int], *, max_tokens: int, ignore_eos: bool, use_cache: bool) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": ignore_eos,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def piece(self, chunk: Mapping[str, Any]) -> Piece:
        tokens: tuple[int, ...] = ()
        for choice in chunk.get("choices") or ():
            ids = choice.get("token_ids")
            if ids is not None:
                tokens += tuple(ids)
            elif choice.get("text"):
                tokens += (UNKNOWN_TOKEN,)
        usage = chunk.get("usage")
        if usage is None:
            return Piece(tokens)
        details = usage.get("prompt_tokens_details") or {}
        return Piece(tokens, Books(usage["prompt_tokens"], details.get("cached_tokens"), usage["completion_tokens"]))


class LlamaWire:
    """`/completion` of llama.cpp's server."""

    path = "/completion"

    def body(self, prompt: Sequence[int], *, max_tokens: int, ignore_eos: bool, use_cache: bool) -> dict[str, Any]:
        return {
            "prompt": list(prompt),
            "n_predict": max_tokens,
            "temperature": 0,
            "ignore_eos": ignore_eos,
            "cache_prompt": use_cache,
            "return_tokens": True,
            "stream": True,
        }

    def piece(self, chunk: Mapping[str, Any]) -> Piece:
        if not chunk["stop"]:
            return Piece(tuple(chunk.get("tokens") or ()))
        timings = chunk["timings"]
        # The slot's whole prompt, less what this call put through the model.
        cached = chunk["tokens_evaluated"] - timings["prompt_n"]
        return Piece((), Books(chunk["tokens_evaluated"], cached, timings["predicted_n"]))
