"""Tiers that keep less than the pool: what they give back is near, it is told, and nobody else's hit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runtime.config import ServeConfig
from runtime.errors import InvalidRequest
from runtime.kv.kv_pool import KVPool
from runtime.kv.precision import KVFormat, LayerShape
from runtime.models.loaded_model import LoadedModel
from runtime.tiers.narrow import NarrowPool, behind, kept_format
from runtime.tiers.settings import TierSettings
from tests.runtime.tiers.harness import MIB, expected, prompts, settle, tiered

SHAPES = [LayerShape(0, 2, 16, 8), LayerShape(3, 1, 32, 32)]


def pool_of(held: KVFormat) -> KVPool:
    torch.manual_seed(1)
    pool = KVPool(SHAPES, 6, 4, dtype=held, device="cpu")
    for kv in pool.layers.values():
        for half in (kv.keys, kv.values):
            half[torch.arange(6)] = torch.randn(half.shape).to(half.dtype)
    return pool


def numbers(pool: KVPool, block: int) -> torch.Tensor:
    halves = [half[[block]].float() for kv in pool.layers.values() for half in (kv.keys, kv.values)]
    return torch.cat([half.flatten() for half in halves])


# Keys of an fp8 pool lie turned, those of the others do not.
@pytest.mark.parametrize(
    ("held", "kept", "error"),
    [
        ("fp32", "int8", 0.02),
        ("fp32", "bf16", 0.005),
        ("fp32", "int4", 0.2),
        ("int8", "int4", 0.2),
        ("fp8_e4m3", "int4", 0.3),
        ("fp16", "fp8_e4m3", 0.05),
    ],
)
def test_blocks_come_back_nearly_as_they_were(held: str, kept: str, error: float) -> None:
    pool = pool_of(KVFormat(held, held))
    narrow = NarrowPool(pool, KVFormat(kept, kept))
    assert narrow.block_bytes < pool.block_bytes
    rows = torch.full((2, narrow.block_bytes), 7, dtype=torch.uint8)
    narrow.export_blocks([1, 4], rows)
    before = numbers(pool, 1), numbers(pool, 4), numbers(pool, 5)
    narrow.import_blocks([0, 5], rows)
    assert torch.equal(numbers(pool, 1), before[0])
    for at, want in ((0, before[0]), (5, before[1])):
        assert ((numbers(pool, at) - want).norm() / want.norm()).item() < error
    assert not torch.equal(numbers(pool, 5), before[2])


def test_a_precision_that_saves_nothing_is_refused() -> None:
    for held, kept in (("int8", "fp16"), ("fp16", "bf16")):
        with pytest.raises(InvalidRequest, match="host_kv_dtype"):
            NarrowPool(pool_of(KVFormat(held, held)), KVFormat(kept, kept))
    with pytest.raises(InvalidRequest, match="host_kv_dtype"):
        kept_format(KVFormat("fp32", "fp32"), "int5")
    assert kept_format(KVFormat("int8", "int8"), "int8") is None
    assert kept_format(KVFormat("int8", "fp16"), "auto") is None


def test_it_does_not_go_with_deterministic() -> None:
    with pytest.raises(ValueError, match="a hit must answer as a miss"):
        ServeConfig(model="m", deterministic=True, host_kv_dtype="int8")
    assert ServeConfig(model="m", deterministic=True, kv_dtype="int8", host_kv_dtype="int8").tiers.kv_dtype == "int8"
    assert not ServeConfig(model="m", host_kv_dtype="int8").deterministic


def test_a_hit_through_it_is_told_and_names_its_precision(tmp_path: Path, tiny: LoadedModel) -> None:
    told = behind(tiny, "bf16")
    assert told.info.host_kv_dtype == "bf16"
    assert told.info.fingerprint != tiny.info.fingerprint
    assert behind(tiny, "auto") is tiny
    work = prompts(4)
    want = expected(tiny, work)
    settings = TierSettings(host_bytes=20_000, disk=tmp_path, disk_bytes=MIB, persist=tmp_path / "p", kv_dtype="bf16")
    for _ in range(2):
        with tiered(told, settings) as harness:
            for _ in range(2):
                for tokens in work:
                    reply = harness.run(tokens, max_tokens=6)
                    assert len(reply.tokens) == 6
                    settle(harness)
            usage = reply.started.usage
            assert usage.host_tokens + usage.disk_tokens > 0
            verdict = reply.started.verdict
            assert verdict is not None
            assert verdict.promotion is not None
            assert verdict.promotion.kv_dtype == "bf16"
    # Another precision, and none, find nothing of it, and what they answer is exact.
    for kept in ("auto", "int8"):
        with tiered(behind(tiny, kept), replace(settings, kv_dtype=kept)) as harness:
            reply = harness.run(work[0], max_tokens=6)
            assert reply.started.usage.cached_tokens == 0
            assert reply.tokens == want[0]
