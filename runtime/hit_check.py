"""Hits of many lengths against misses, on one model in this process."""

from __future__ import annotations

import time

import numpy as np

from radix import Namespace
from runtime.engine import Engine
from runtime.engine_config import EngineConfig
from runtime.hit_verifier import MAX_REPLY, VerifyBooks
from runtime.models.loaded_model import LoadedModel
from runtime.request import GenerateJob
from runtime.run_job import run_job
from runtime.sampling.sampling_params import SamplingParams

_BLOCK = 16
_POLL_S = 0.05


def hit_lengths(prompt_tokens: int) -> list[int]:
    """Beside the borders of blocks, in the middle, and all but the last token."""
    wanted = {1, _BLOCK - 1, _BLOCK, _BLOCK + 1, prompt_tokens // 2, prompt_tokens - 2, prompt_tokens - 1}
    return sorted(length for length in wanted if 0 < length < prompt_tokens)


def check_hits(loaded: LoadedModel, prompt_tokens: int) -> VerifyBooks:
    """Answer prompts of random tokens over caches that hold a part of each, and verify every one of these hits.

    Raises InvalidRequest when the prompt does not fit the model.
    """
    lengths = hit_lengths(prompt_tokens)
    per_prompt = -(-(prompt_tokens + MAX_REPLY) // _BLOCK) + 1
    engine = Engine(loaded, EngineConfig(num_blocks=2 * per_prompt, block_size=_BLOCK, verify_hits=1.0))
    verifier = engine.verifier
    assert verifier is not None
    tokens = np.random.default_rng(1).integers(0, loaded.info.vocab_size, (len(lengths), prompt_tokens))
    engine.start()
    try:
        for index, (prompt, length) in enumerate(zip(tokens.astype(np.int32), lengths, strict=True)):
            name = Namespace(loaded.info.fingerprint, salt=str(index))
            run_job(engine, GenerateJob("head", prompt[:length], name, prefill_only=True))
            asked = SamplingParams(max_tokens=MAX_REPLY, ignore_eos=True, temperature=0.0)
            run_job(engine, GenerateJob(f"hit of {length}", prompt, name, asked))
        while engine.call(lambda _: verifier.pending).result():
            time.sleep(_POLL_S)
    finally:
        engine.shutdown(0)
    return verifier.books
