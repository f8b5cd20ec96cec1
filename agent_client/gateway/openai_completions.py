"""OpenAI's older completions over plain prompts: text or token ids, one or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..generate_options import GenerateOptions
from ..results import Choice, Delta, Generation, ModelInfo, Started, TokenLogprob, Usage
from .failures import ApiError, refused
from .field_names import FieldNames, constraint_names
from .frames import Frame
from .keeping import Wishes
from .openai_shapes import DONE, error_body, fingerprint, finish_reason, hint_results, usage_body
from .openai_tools import StructuredOutputs, set_format, set_structured
from .sampling import SamplingFields, limit_tokens

# What OpenAI's API takes where a request names none.
DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 128


class CompletionRequest(SamplingFields):
    """The body of POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None

    def names(self) -> FieldNames:
        """What this body calls the runtime's fields."""
        schema = "response_format.json_schema.schema" if self.response_format else "structured_outputs.json"
        return FieldNames({**constraint_names(schema), "top_logprobs": "logprobs", "token_ids": "prompt"})


def completion_prompts(asked: CompletionRequest) -> list[str | list[int]]:
    """The prompts, each text or token ids. Raises ApiError."""
    if asked.echo:
        raise refused("echo", "not served; the prompt is the caller's already")
    if asked.suffix:
        raise refused("suffix", "not served; these models write on from the end only")
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise refused("best_of", "not served beyond n; ask for n choices and choose")
    prompt = asked.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise refused("prompt", "an empty list; text, token ids or a list of either is needed")
    if isinstance(prompt[0], int):
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise refused("prompt", f"{len(prompt)} prompts; at most {MAX_PROMPTS} in one request")
    return list(prompt)


def completion_options(asked: CompletionRequest) -> GenerateOptions:
    """Sampling and cache options, and what the text must be. Raises ApiError."""
    options = asked.options()
    limit_tokens(options, DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens)
    set_structured(options, asked.structured_outputs)
    set_format(options, asked.response_format, "response_format")
    if asked.logprobs is not None:
        options["logprobs"] = True
        options["top_logprobs"] = asked.logprobs
    return options


class CompletionWriter:
    """Writes one request's answer, whole or in chunks. Choice i of prompt p has the index p · n + i."""

    def __init__(
        self, asked: CompletionRequest, model: ModelInfo, request_id: str, created: int, wishes: Wishes
    ) -> None:
        self._asked = asked
        self.names = asked.names()
        self._wishes = wishes
        self._head = {"id": f"cmpl-{request_id}", "object": "text_completion", "created": created, "model": asked.model}
        self._tail = {"system_fingerprint": fingerprint(model)}
        self._written: dict[int, int] = {}

    def whole(self, generations: Sequence[Generation], texts: Mapping[int, str]) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choices = [
            self._choice(rank, choice, choice.text, texts)
            for rank, generation in enumerate(generations)
            for choice in generation.choices
        ]
        usage = usage_body(generation.usage for generation in generations)
        return {**self._head, "choices": choices, "usage": usage, **self._tail, **hint_results(self._wishes)}

    def begin(self, started: Sequence[Started]) -> Iterator[Frame]:
        return iter(())

    def delta(self, rank: int, piece: Delta, texts: Mapping[int, str]) -> Iterator[Frame]:
        """The chunk that a piece of one choice of prompt `rank` becomes."""
        usage = {"usage": None} if self._asked.include_usage else {}
        choice = self._choice(rank, piece, piece.text, texts)
        yield Frame({**self._head, "choices": [choice], **usage, **self._tail})

    def end(self, usages: Sequence[Usage]) -> Iterator[Frame]:
        hints = hint_results(self._wishes)
        if self._asked.include_usage or hints:
            usage = {"usage": usage_body(usages)} if self._asked.include_usage else {}
            yield Frame({**self._head, "choices": [], **usage, **self._tail, **hints})
        yield DONE

    def broken(self, error: ApiError) -> Frame:
        return Frame(error_body(error))

    def _choice(self, rank: int, said: Delta | Choice, text: str, texts: Mapping[int, str]) -> dict[str, Any]:
        index = rank * (self._asked.n or 1) + said.index
        logprobs = None
        if self._asked.logprobs is not None:
            start = self._written.get(index, 0)
            logprobs = _logprobs(said.logprobs, texts, start)
            self._written[index] = start + sum(len(texts[step.token_id]) for step in said.logprobs)
        reason = None if said.finish_reason is None else finish_reason(said.finish_reason)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _logprobs(steps: Sequence[TokenLogprob], texts: Mapping[int, str], start: int) -> dict[str, Any]:
    offsets = []
    for step in steps:
        offsets.append(start)
        start += len(texts[step.token_id])
    return {
        "tokens": [texts[step.token_id] for step in steps],
        "token_logprobs": [step.logprob for step in steps],
        # Tokens that read alike share a key; the likelier comes last and stays.
        "top_logprobs": [{texts[token]: value for token, value in reversed(step.top)} for step in steps],
        "text_offset": offsets,
    }
