"""What a runtime that is killed leaves on disk."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runtime.models.loaded_model import LoadedModel
from runtime.tiers.settings import TierSettings
from runtime.tiers.slot_file import SlotFile
from tests.runtime.tiers.harness import MIB, SIZE, expected, prompts, settle, tiered


def disk(folder: Path) -> TierSettings:
    return TierSettings(disk=folder, disk_bytes=8 * MIB)


def test_a_prompt_far_longer_than_a_slice_comes_back_whole(tmp_path: Path, tiny: LoadedModel) -> None:
    work = prompts(1, length=220)
    want = expected(tiny, work)
    with tiered(tiny, disk(tmp_path / "a"), num_blocks=70) as harness:
        assert harness.run(work[0], max_tokens=6).tokens == want[0]
        settle(harness)
        # As a kill would leave it.
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    with tiered(tiny, disk(tmp_path / "b"), num_blocks=70) as harness:
        reply = harness.run(work[0], max_tokens=6)
        assert reply.tokens == want[0]
        assert reply.started.usage.disk_tokens >= 220 - SIZE


def test_many_sessions_come_back(tmp_path: Path, tiny: LoadedModel) -> None:
    first = prompts(8, length=60)
    later = [tokens + more for tokens, more in zip(first, prompts(8, length=40, seed=2), strict=True)]
    with tiered(tiny, disk(tmp_path / "a"), num_blocks=60, max_running=4) as harness:
        for work in (first, later):
            for reply in [harness.submit(tokens, max_tokens=6) for tokens in work]:
                reply.finished  # noqa: B018
        settle(harness)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    with tiered(tiny, disk(tmp_path / "b"), num_blocks=60) as harness:
        found = [harness.run(tokens, max_tokens=6).started.usage.cached_tokens for tokens in later]
    assert min(found) >= 100 - SIZE


def test_a_full_disk_has_what_was_used_last_too_and_every_block_is_written_once(
    tmp_path: Path, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: Counter[tuple[bytes, bytes]] = Counter()
    write = SlotFile.write

    def counted(file: SlotFile, slot: int, entry: Any, *record: Any) -> None:
        written[entry.parent, entry.tokens] += 1
        write(file, slot, entry, *record)

    monkeypatch.setattr(SlotFile, "write", counted)
    hot, cold = prompts(1, length=60), prompts(40, seed=2)
    want = expected(tiny, hot)
    settings = TierSettings(disk=tmp_path / "a", disk_bytes=500_000)
    with tiered(tiny, settings, num_blocks=30) as harness:
        for tokens in cold[:30]:
            harness.run(tokens, max_tokens=6)
        settle(harness)
        assert harness.engine.tiers.index.tiers[0].free == 0
        for tokens in cold[30:]:
            assert harness.run(hot[0], max_tokens=6).tokens == want[0]
            harness.run(tokens, max_tokens=6)
        settle(harness)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert max(written.values()) == 1
    with tiered(tiny, TierSettings(disk=tmp_path / "b", disk_bytes=500_000), num_blocks=40) as harness:
        reply = harness.run(hot[0], max_tokens=6)
        assert reply.tokens == want[0]
        assert reply.started.usage.disk_tokens >= 60 - SIZE


def test_a_slow_disk_takes_nothing_for_a_spare_that_has_left_the_pool(
    tmp_path: Path, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    may = threading.Event()
    write = SlotFile.write

    def held_up(file: SlotFile, *record: Any) -> None:
        may.wait()
        write(file, *record)

    monkeypatch.setattr(SlotFile, "write", held_up)
    with tiered(tiny, disk(tmp_path), num_blocks=30) as harness:
        for tokens in prompts(6):
            harness.run(tokens, max_tokens=6)
        may.set()
        settle(harness)
        # Six times eight blocks and a half went through a pool of thirty.
        tier = harness.engine.tiers.index.tiers[0]
        assert tier.used > 40
        assert len(tier.spare) <= 30
