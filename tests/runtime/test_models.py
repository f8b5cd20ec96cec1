"""Real weights through the cache: logits against transformers' eager forward, and English that reads as English."""

from __future__ import annotations

import difflib
import inspect
import shutil
import subprocess

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from runtime.execution.batch import BatchItem, StepPlan
from runtime.execution.model_runner import ModelRunner
from runtime.models.loaded_model import LoadedModel
from tests.runtime.plain_forward import ordinary

pytestmark = [pytest.mark.models, pytest.mark.slow]

BLOCK = 16
TEXT = "\n\n".join(
    inspect.getdoc(thing) or ""
    for thing in (difflib.SequenceMatcher, shutil.copytree, subprocess.Popen, difflib.Differ, shutil.make_archive)
)
# Wrongly read weights or tokens give thousands.
LARGEST_PERPLEXITY = 60


def english(loaded: LoadedModel, length: int) -> np.ndarray:
    ids = loaded.tokenizer(TEXT).input_ids
    assert len(ids) >= length
    return np.array(ids[:length], np.int32)


def through_the_cache(loaded: LoadedModel, tokens: np.ndarray, chunks: list[int]) -> torch.Tensor:
    """Every row of logits, the prompt computed in these chunks beside another sequence that decodes."""
    blocks = -(-len(tokens) // BLOCK)
    runner = ModelRunner(loaded, 2 * blocks + 2, BLOCK, fill=float("nan"))
    order = np.random.default_rng(1).permutation(2 * blocks + 2).astype(np.int32)
    mine, other = order[:blocks], order[blocks:]
    runner.forward([BatchItem(tokens[:50], 0, other, False)])
    rows, start = [], 0
    for step, count in enumerate(chunks):
        items = [
            BatchItem(tokens[50 + step : 51 + step], 50 + step, other),
            BatchItem(tokens[start : start + count], start, mine),
        ]
        plan = StepPlan(items, BLOCK, runner.pool.num_blocks, runner.pool.device)
        rows.append(runner.run(plan, torch.arange(1, 1 + count)))
        start += count
    assert start == len(tokens)
    return torch.cat(rows)


def assert_same(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.equal(got.argmax(-1), wanted.argmax(-1))
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=5e-3)


def perplexity(logits: torch.Tensor, tokens: np.ndarray) -> float:
    return float(cross_entropy(logits[:-1], torch.from_numpy(tokens[1:].astype(np.int64))).exp())


def test_smollm2_equals_the_eager_forward(smollm2: LoadedModel) -> None:
    tokens = english(smollm2, 420)
    wanted = ordinary(smollm2, tokens)
    assert_same(through_the_cache(smollm2, tokens, [300, 1, 1, 17, 64, 37]), wanted)
    assert perplexity(wanted, tokens) < LARGEST_PERPLEXITY


def test_gemma3_equals_the_eager_forward_beyond_its_window(gemma3: LoadedModel) -> None:
    assert gemma3.model.config.sliding_window == 512
    assert (gemma3.info.kv_heads, gemma3.info.head_dim, gemma3.info.context_length) == (1, 256, 32768)
    tokens = english(gemma3, 760)
    wanted = ordinary(gemma3, tokens)
    assert_same(through_the_cache(gemma3, tokens, [600, 1, 1, 100, 58]), wanted)
    assert perplexity(wanted, tokens) < LARGEST_PERPLEXITY


def test_smollm2_cuts_text_as_it_was_trained_to(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    assert tokenizer.tokenize("a  1 12 x") == ["a", "ĠĠ", "1", "Ġ", "1", "2", "Ġx"]
    assert tokenizer.decode(tokenizer(TEXT).input_ids) == TEXT
    assert smollm2.info.eos_token_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert smollm2.info.has_chat_template
