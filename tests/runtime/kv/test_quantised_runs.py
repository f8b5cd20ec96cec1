"""A quantised pool under a whole model: hits against misses at every border, and how far answers are from exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from radix import Copy
from runtime.attention.hook import PagedStep
from runtime.attention.interface import AttentionOptions
from runtime.attention.reference import ReferenceAttention
from runtime.errors import InvalidRequest
from runtime.execution.batch import BatchItem, StepPlan
from runtime.execution.model_runner import ModelRunner
from runtime.kv.kv_pool import KVPool
from runtime.kv.precision import KVFormat
from runtime.kv.writing import make_writer
from runtime.models.loaded_model import LoadedModel
from tests.runtime.small_llama import VOCAB, small_llama

BLOCK = 4
TOKENS = 3 * BLOCK + 1
FORMATS = [
    KVFormat("fp8_e4m3", "fp8_e4m3"),
    KVFormat("int8", "int8"),
    KVFormat("int4", "int4"),
    KVFormat("int8", "fp32"),
    KVFormat("fp16", "int4"),
    KVFormat("int4", "int4", frozenset({(0, "keys"), (1, "values")})),
]
# Relative distance of logits from those of an exact pool; random weights attend to everything alike.
FAR = {"fp8_e4m3": 0.15, "int8": 0.04, "int4": 0.4, "fp16": 0.3}


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return small_llama()


@pytest.fixture(params=FORMATS, ids=lambda one: one.name)
def quantised(request: pytest.FixtureRequest, llama: LoadedModel) -> LoadedModel:
    return replace(llama, kv_format=request.param, info=replace(llama.info, attention_backend="sdpa"))


def prompt(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, VOCAB, TOKENS).astype(np.int32)


def logits(runner: ModelRunner, tokens: np.ndarray, start: int, blocks: list[int]) -> torch.Tensor:
    """Of the last token, what lies before `start` being in the pool."""
    return runner.forward([BatchItem(tokens[start:], start, np.array(blocks, np.int32))])[0]


@pytest.mark.parametrize("reused", range(2 * BLOCK + 1))
def test_a_hit_answers_as_a_miss(quantised: LoadedModel, reused: int) -> None:
    runner = ModelRunner(quantised, 12, BLOCK, fill=float("nan"))
    tokens = prompt(5)
    other = np.concatenate([tokens[:reused], prompt(6)])[:TOKENS]
    logits(runner, other, 0, [7, 2, 9, 4])
    missed = logits(runner, tokens, 0, [1, 11, 3, 8])
    whole, rest = divmod(reused, BLOCK)
    shared = [7, 2, 9, 4][:whole]
    if rest:
        runner.copy_blocks([Copy(src=[7, 2, 9, 4][whole], dst=6, tokens=rest)])
        shared = [*shared, 6]
    table = [*shared, *[b for b in (0, 5, 10, 1) if b not in shared][: 4 - len(shared)]]
    hit = logits(runner, tokens, reused, table)
    # A rounding error may push a number over the border between two codes, which is as far as one step.
    torch.testing.assert_close(hit, missed, rtol=0, atol=2e-3)


def test_a_chunk_reads_itself_as_others_will(quantised: LoadedModel) -> None:
    tokens = prompt(8)
    table = [3, 1, 0, 2]
    whole = logits(ModelRunner(quantised, 4, BLOCK, fill=float("nan")), tokens, 0, table)
    runner = ModelRunner(quantised, 4, BLOCK, fill=float("nan"))
    for start in range(TOKENS):
        alone = logits(runner, tokens[: start + 1], start, table)
    torch.testing.assert_close(alone, whole, rtol=0, atol=2e-3)


def test_answers_stay_near_the_exact_ones(llama: LoadedModel, quantised: LoadedModel) -> None:
    exact, found = (logits(ModelRunner(one, 4, BLOCK), prompt(9), 0, [0, 1, 2, 3]) for one in (llama, quantised))
    distance = float((found - exact).norm() / exact.norm())
    assert 0 < distance < FAR[quantised.kv_format.keys]


def test_every_back_end_reads_the_same(quantised: LoadedModel) -> None:
    answers = []
    for name in ("reference", "sdpa", "native", "deterministic"):
        runner = ModelRunner(
            replace(quantised, info=replace(quantised.info, attention_backend=name)), 8, BLOCK, fill=float("nan")
        )
        logits(runner, prompt(1)[:7], 0, [5, 2])
        answers.append(logits(runner, prompt(1), 7, [5, 2, 7, 0]))
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0], rtol=0, atol=2e-3)


def test_bytes_are_counted_and_travel(quantised: LoadedModel) -> None:
    runner = ModelRunner(quantised, 6, BLOCK)
    pool = runner.pool
    assert pool.bytes_per_token == quantised.kv_format.bytes_per_token(quantised.layers)
    assert pool.block_bytes == BLOCK * pool.bytes_per_token
    assert pool.block_bytes * 6 == sum(t.numel() * t.itemsize for kv in pool.layers.values() for t in kv.tensors)
    wanted = logits(runner, prompt(2), 0, [1, 2, 3, 4])
    elsewhere = ModelRunner(quantised, 6, BLOCK, fill=float("nan"))
    rows = torch.empty(3, pool.block_bytes, dtype=torch.uint8)
    pool.export_blocks([1, 2, 3], rows)
    elsewhere.pool.import_blocks([5, 0, 4], rows)
    got = logits(elsewhere, prompt(2), 3 * BLOCK, [5, 0, 4, 1])
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-3)


@pytest.mark.parametrize("tokens", range(BLOCK + 1))
def test_copies_carry_the_scales(quantised: LoadedModel, tokens: int) -> None:
    pool = ModelRunner(quantised, 6, BLOCK, fill=float("nan")).pool
    for kv in pool.layers.values():
        for view in (kv.key_slots, kv.value_slots):
            view[torch.arange(BLOCK, 2 * BLOCK)] = torch.randn(BLOCK, *view.shape[1:]).to(view.dtype)
    pool.copy([Copy(src=1, dst=4, tokens=tokens)])
    for kv in pool.layers.values():
        for view in (kv.keys, kv.values):
            assert torch.equal(view[4][:tokens], view[1][:tokens])
            assert view[4][tokens:].isnan().all()


def test_half_precision_queries_read_packed_pools(llama: LoadedModel) -> None:
    pool = KVPool(llama.layers, 2, BLOCK, dtype=KVFormat("int8", "int8"), device="cpu")
    plan = StepPlan([BatchItem(np.zeros(5, np.int32), 0, np.arange(2, dtype=np.int32))], BLOCK, 2, pool.device)
    shape = llama.layers[0]
    query, key, value = (torch.randn(5, n, shape.key_dim).bfloat16() for n in (4, shape.kv_heads, shape.kv_heads))
    out = PagedStep(pool, plan, ReferenceAttention(), make_writer(pool, row_invariant=False))(
        0, query, key, value, AttentionOptions(scale=0.3)
    )
    assert out.dtype == torch.bfloat16
    assert out.isfinite().all()


def test_a_wrong_view_is_named(llama: LoadedModel) -> None:
    pool = KVPool(llama.layers, 2, BLOCK, dtype=KVFormat("int4", "int4"), device="cpu")
    with pytest.raises(InvalidRequest, match="must be uint8"):
        pool.export_blocks([0], torch.zeros(1, 3, dtype=torch.uint8))
