"""An engine over tiers answers as one without, and loses no block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from runtime.errors import RequestCancelled
from runtime.models.loaded_model import LoadedModel
from runtime.tiers import tiers
from runtime.tiers.metrics import TierMetrics
from runtime.tiers.settings import TierSettings
from runtime.tiers.slot_file import SlotFile
from tests.runtime.tiers.harness import MIB, SIZE, expected, prompts, settle, tiered


@pytest.mark.parametrize("kind", ["host", "disk", "both", "small host"])
def test_what_was_evicted_comes_back_and_answers_stay(kind: str, tmp_path: Path, tiny: LoadedModel) -> None:
    settings = {
        "host": TierSettings(host_bytes=MIB),
        "disk": TierSettings(disk=tmp_path, disk_bytes=MIB),
        "both": TierSettings(host_bytes=MIB, disk=tmp_path, disk_bytes=MIB),
        "small host": TierSettings(host_bytes=20_000, disk=tmp_path, disk_bytes=MIB),
    }[kind]
    work = prompts(6)
    want = expected(tiny, work)
    with tiered(tiny, settings) as harness:
        registry = CollectorRegistry()
        registry.register(TierMetrics(harness.engine.tiers.books))
        for _ in range(3):
            for tokens, answer in zip(work, want, strict=True):
                reply = harness.run(tokens, max_tokens=6)
                assert reply.tokens == answer
        usage = reply.started.usage
        assert usage.cached_tokens == len(work[-1]) - 1
        assert usage.host_tokens + usage.disk_tokens > 0
        fetched = {
            tier: registry.get_sample_value("radixloop_tier_fetched_tokens_total", {"tier": tier}) or 0
            for tier in ("host", "disk")
        }
        assert fetched["host"] >= usage.host_tokens
        assert fetched["disk"] >= usage.disk_tokens


def test_many_at_once_over_a_small_pool(tmp_path: Path, tiny: LoadedModel) -> None:
    work = prompts(12)
    want = expected(tiny, work)
    with tiered(tiny, TierSettings(host_bytes=40_000, disk=tmp_path, disk_bytes=MIB), max_running=4) as harness:
        for _ in range(3):
            replies = [harness.submit(tokens, max_tokens=6) for tokens in work]
            assert [reply.tokens for reply in replies] == want


def test_a_restart_finds_what_was_saved(tmp_path: Path, tiny: LoadedModel) -> None:
    work = prompts(1)
    want = expected(tiny, work)
    for settings in (TierSettings(persist=tmp_path / "p"), TierSettings(disk=tmp_path / "d", disk_bytes=MIB)):
        with tiered(tiny, settings) as harness:
            assert harness.run(work[0], max_tokens=6).tokens == want[0]
        with tiered(tiny, settings) as harness:
            reply = harness.run(work[0], max_tokens=6)
            assert reply.tokens == want[0]
            assert reply.started.usage.disk_tokens >= len(work[0]) - SIZE


def test_a_rotten_file_is_a_miss(tmp_path: Path, tiny: LoadedModel) -> None:
    work = prompts(1)
    want = expected(tiny, work)
    settings = TierSettings(persist=tmp_path)
    with tiered(tiny, settings) as harness:
        harness.run(work[0], max_tokens=6)
    (file,) = tmp_path.glob("*.radixkv")
    raw = bytearray(file.read_bytes())
    for at in range(4096 + 200, len(raw), 300):
        raw[at] ^= 1
    file.write_bytes(raw)
    with tiered(tiny, settings) as harness:
        reply = harness.run(work[0], max_tokens=6)
        assert reply.tokens == want[0]
        assert reply.started.usage.cached_tokens == 0


def test_memory_that_changed_is_a_miss(tiny: LoadedModel) -> None:
    work = prompts(6)
    want = expected(tiny, work)
    with tiered(tiny, TierSettings(host_bytes=MIB)) as harness:
        for tokens in work:
            harness.run(tokens, max_tokens=6)
        settle(harness)
        rows = harness.engine.tiers._storage.tiers[0].rows
        harness.engine.call(lambda store: rows.bitwise_xor_(1)).result()
        assert [harness.run(tokens, max_tokens=6).tokens for tokens in work] == want
        assert harness.engine.tiers.books().tiers[0].failed_blocks > 0


def test_cancels_and_a_disk_that_fails_lose_no_block_and_change_no_answer(
    tmp_path: Path, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(3)
    work = prompts(14)
    want = expected(tiny, work)
    write, read = SlotFile.write, SlotFile.read
    broken = False

    def failing_write(file: SlotFile, *record: Any) -> None:
        if broken:
            raise OSError(28, "no space left")
        write(file, *record)

    def failing_read(file: SlotFile, *record: Any) -> None:
        if broken and random.random() < 0.5:
            raise OSError(5, "input/output error")
        read(file, *record)

    monkeypatch.setattr(SlotFile, "write", failing_write)
    monkeypatch.setattr(SlotFile, "read", failing_read)
    monkeypatch.setattr(tiers, "DISK_REST_S", 0.1)
    settings = TierSettings(host_bytes=60_000, disk=tmp_path, disk_bytes=400_000)
    with tiered(tiny, settings, max_running=4) as harness:
        for turn in range(16):
            broken = 6 <= turn < 10
            replies = []
            for i in random.permutation(len(work)):
                replies.append((i, harness.submit(work[i], max_tokens=6)))
                if random.random() < 0.3:
                    replies[-1][1].handle.cancel()
            if turn == 12:
                harness.flush()
            for i, reply in replies:
                reply.wait()
                assert isinstance(reply.error, RequestCancelled) or reply.tokens == want[i]
            harness.check()
        assert harness.engine.tiers.books().tiers[1].failed_blocks > 0
