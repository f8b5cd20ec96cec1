"""What comes in by VllmEngine, checked and turned into the runtime's own types.

The messages have no presence for most numbers: an unset one reads as 0, which is not always what its absence means.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from smg_grpc_proto import vllm_engine_pb2

from runtime.errors import InvalidRequest
from runtime.grammar.constraint import Constraint, constraint
from runtime.models.loaded_model import ModelInfo
from runtime.sampling.sampling_params import SamplingParams, check_counts
from runtime.services.convert import Tokens

# Without a temperature vLLM samples, where the runtime's own calls are greedy.
_DEFAULT_TEMPERATURE = 1.0
_RANDOM_SEED = -1


def refuse_unsupported(request: vllm_engine_pb2.GenerateRequest) -> None:
    """Raise InvalidRequest for what would have to be dropped to serve the request."""
    for field in ("mm_inputs", "media_refs", "kv_transfer_params", "kv_transfer_params_json"):
        if request.HasField(field):
            raise InvalidRequest(field, "set", "this runtime serves text, and computes its prompts itself")
    if request.extra_mm_inputs:
        raise InvalidRequest("extra_mm_inputs", "set", "this runtime serves text")
    if request.HasField("data_parallel_rank") and request.data_parallel_rank != 0:
        raise InvalidRequest("data_parallel_rank", request.data_parallel_rank, "0 is the only rank there is")
    params = request.sampling_params
    if params.min_tokens:
        raise InvalidRequest(
            "sampling_params.min_tokens", params.min_tokens, "must be 0: ignore_eos goes on for longer"
        )
    if params.HasField("prompt_logprobs"):
        raise InvalidRequest("sampling_params.prompt_logprobs", params.prompt_logprobs, "only output tokens have them")
    if params.HasField("truncate_prompt_tokens"):
        limit = "prompts are never shortened: leave it unset"
        raise InvalidRequest("sampling_params.truncate_prompt_tokens", params.truncate_prompt_tokens, limit)


def input_ids(request: vllm_engine_pb2.GenerateRequest, info: ModelInfo) -> Tokens:
    """int32 ids of a tokenized prompt. Raises InvalidRequest."""
    given = len(request.tokenized.input_ids)
    if not given:
        raise InvalidRequest("tokenized.input_ids", "empty", "at least one token id")
    if given > info.context_length:
        # Before they are converted: a message has room for so many that this would hold up everybody's calls.
        limit = f"at most {info.context_length}: the context ends there"
        raise InvalidRequest("tokenized.input_ids", f"{given} ids", limit)
    # A negative id arrives as its two's complement, far beyond any vocabulary.
    ids = np.array(request.tokenized.input_ids, dtype=np.uint32)
    outside = ids >= info.vocab_size
    if outside.any():
        at = int(outside.argmax())
        limit = f"token ids of this model go from 0 to {info.vocab_size - 1}"
        raise InvalidRequest(f"tokenized.input_ids[{at}]", int(ids[at]), limit)
    return ids.astype(np.int32)


def sampling_params(params: vllm_engine_pb2.SamplingParams, info: ModelInfo) -> SamplingParams:
    """Sampling settings as vLLM reads these. Raises InvalidRequest outside a limit."""
    with named_as_sent("text"):
        check_counts(params.stop, params.stop_token_ids, params.logit_bias)
    given: dict[str, Any] = {
        "temperature": params.temperature if params.HasField("temperature") else _DEFAULT_TEMPERATURE,
        "top_p": params.top_p or 1.0,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty or 1.0,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        # Unset it reaches to the end of the context, and a router that asks for more means the same.
        "max_tokens": params.max_tokens if params.HasField("max_tokens") else info.context_length,
        "clip_max_tokens": True,
        "n": params.n or 1,
        "ignore_eos": params.ignore_eos,
        "stop": tuple(params.stop),
        "stop_token_ids": tuple(params.stop_token_ids),
        "logit_bias": dict(params.logit_bias),
    }
    if params.HasField("seed") and params.seed != _RANDOM_SEED:
        # Two's complement, since a seed is not negative.
        given["seed"] = params.seed % 2**64
    if params.HasField("logprobs"):
        if params.logprobs < 0:
            raise InvalidRequest("sampling_params.logprobs", params.logprobs, "must be at least 0")
        given |= {"logprobs": True, "top_logprobs": params.logprobs}
    converted = SamplingParams(**given)
    with named_as_sent("text"):
        converted.validate(info.vocab_size)
    return converted


def demanded(params: vllm_engine_pb2.SamplingParams) -> Constraint | None:
    """What the text must be; None where that is the model's own affair. Raises InvalidRequest."""
    form = params.WhichOneof("constraint")
    if form is None or (form == "json_object" and not params.json_object):
        return None
    value = list(params.choice.choices) if form == "choice" else getattr(params, form)
    return constraint(form, value, f"sampling_params.{form}")


@contextmanager
def named_as_sent(prompt: str) -> Iterator[None]:
    """Name the fields of a refusal as VllmEngine's messages do; `prompt` is the name of the prompt's."""
    names = {"sampling.top_logprobs": "sampling_params.logprobs", "prompt": prompt, "prompt.text": prompt}
    try:
        yield
    except InvalidRequest as error:
        field = names.get(error.field, error.field)
        if field.startswith("sampling."):
            field = field.replace("sampling.", "sampling_params.", 1)
        raise InvalidRequest(field, error.value, error.limit) from None
