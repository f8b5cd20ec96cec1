"""A disk that never answers costs what it holds, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from radixloop.v1 import cache_pb2, common_pb2

from runtime.errors import InvalidRequest, NotErased
from runtime.models.loaded_model import LoadedModel
from runtime.tiers import build, closing, tiers
from runtime.tiers.settings import TierSettings
from runtime.tiers.slot_file import SlotFile
from tests.runtime.engine_harness import Harness
from tests.runtime.services_harness import serving
from tests.runtime.tiers.harness import BLOCKS, MIB, SIZE, expected, prompts, settle, tiered, until
from tests.timing import eventually


class Hang:
    """Stops every call of some methods of a file once `on` is set, until `off`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *methods: str) -> None:
        self.on = False
        self.reached = threading.Event()
        self._off = threading.Event()
        for name in methods:
            monkeypatch.setattr(SlotFile, name, self._hanging(getattr(SlotFile, name)))

    def _hanging(self, method: Any) -> Any:
        def call(file: SlotFile, *args: Any) -> Any:
            if self.on:
                self.reached.set()
                self._off.wait()
            return method(file, *args)

        return call

    def off(self) -> None:
        self.on = False
        self._off.set()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "ANSWER_S", 0.2)
    monkeypatch.setattr(closing, "DRAIN_S", 0.5)


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    hang = Hang(monkeypatch, "write", "read")
    yield hang
    hang.off()


@pytest.mark.parametrize("host", [0, 40_000])
def test_requests_go_on_over_a_disk_that_takes_no_write(
    host: int, tmp_path: Path, tiny: LoadedModel, hang: Hang, caplog: pytest.LogCaptureFixture
) -> None:
    work = prompts(10)
    want = expected(tiny, work)
    hang.on = True
    with tiered(tiny, TierSettings(host_bytes=host, disk=tmp_path, disk_bytes=MIB)) as harness:
        for _ in range(2):
            assert [harness.run(tokens, max_tokens=6).tokens for tokens in work] == want
        until(harness, lambda store: harness.engine.tiers.books().tiers[-1].given_up)
        settle(harness)
        assert "the disk tier did not answer" in caplog.text


def test_a_disk_that_does_not_give_back_is_a_miss(tmp_path: Path, tiny: LoadedModel, hang: Hang) -> None:
    work = prompts(1)
    want = expected(tiny, work)
    settings = TierSettings(disk=tmp_path, disk_bytes=MIB)
    with tiered(tiny, settings) as harness:
        harness.run(work[0], max_tokens=6)
    hang.on = True
    with tiered(tiny, settings) as harness:
        reply = harness.run(work[0], max_tokens=6)
        assert reply.tokens == want[0]
        assert reply.started.usage.cached_tokens == 0
        assert hang.reached.is_set()
        # What comes after all reaches nobody.
        blocks = harness.engine.call(lambda store: store.stats()).result().cached_blocks
        hang.off()
        assert harness.run(work[0], max_tokens=6).tokens == want[0]
        assert harness.engine.call(lambda store: store.stats()).result().cached_blocks == blocks


def test_the_end_waits_for_no_disk(tmp_path: Path, tiny: LoadedModel, hang: Hang) -> None:
    settings = TierSettings(disk=tmp_path / "d", disk_bytes=MIB, persist=tmp_path / "p", persist_s=0.2)
    hang.on = True
    harness = Harness(tiny, num_blocks=BLOCKS, block_size=SIZE, tiers=settings)
    harness.engine.start()
    harness.run(prompts(1)[0], max_tokens=6)
    assert hang.reached.wait(10)
    # It would wait for as long as `hang` is on.
    harness.engine.shutdown(0)
    assert not harness.engine.alive


def test_clients_are_told_of_a_disk_that_was_given_up(tmp_path: Path, tiny: LoadedModel, hang: Hang) -> None:
    with serving(tiny, disk_cache=f"{tmp_path}:64MiB") as server:
        assert [tier.given_up for tier in server.stats().tiers] == [False]
        hang.on = True
        server.cache.Warm(cache_pb2.WarmRequest(prompt=common_pb2.Prompt(text="x" * 70)))
        assert eventually(lambda: [tier.given_up for tier in server.stats().tiers] == [True])


def test_who_needs_room_waits_for_no_disk(
    tmp_path: Path, tiny: LoadedModel, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "ANSWER_S", 3600.0)
    monkeypatch.setattr(tiers, "LEAVING_BLOCKS", 10)
    work = prompts(10)
    want = expected(tiny, work)
    with tiered(tiny, TierSettings(disk=tmp_path, disk_bytes=MIB)) as harness:
        hang.on = True
        assert [harness.run(tokens, max_tokens=6).tokens for tokens in work] == want
        assert harness.engine.tiers.books().tiers[0].lost_blocks > 0
        hang.off()


def test_a_flush_that_a_disk_does_not_carry_out_is_told(
    tmp_path: Path, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = Hang(monkeypatch, "forget")
    hang.on = True
    try:
        with tiered(tiny, TierSettings(disk=tmp_path, disk_bytes=MIB)) as harness:
            harness.run(prompts(1)[0], max_tokens=6)
            harness.flush()
            erased = harness.engine.call(lambda store: harness.engine.tiers.erased()).result()
            with pytest.raises(NotErased, match="disk tier"):
                erased.result(30)
    finally:
        hang.off()


@pytest.mark.parametrize("method", ["__init__", "scan"])
def test_a_disk_that_does_not_answer_at_the_start_is_refused(
    method: str, tmp_path: Path, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "START_S", 0.1)
    hang = Hang(monkeypatch, method)
    hang.on = True
    try:
        with pytest.raises(InvalidRequest, match="did not answer"):
            Harness(tiny, num_blocks=BLOCKS, block_size=SIZE, tiers=TierSettings(disk=tmp_path, disk_bytes=MIB))
    finally:
        hang.off()
