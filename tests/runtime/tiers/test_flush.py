"""What was flushed does not come back with the next start."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from radixloop.v1 import cache_pb2, common_pb2

from radix import Namespace
from runtime.errors import NotErased
from runtime.models.loaded_model import LoadedModel
from runtime.tiers.settings import TierSettings
from runtime.tiers.slot_file import SlotFile
from tests.runtime.engine_harness import Harness
from tests.runtime.services_harness import Server, serving
from tests.runtime.tiers.harness import MIB, expected, prompts, settle, tiered


def flush(harness: Harness, namespace: Namespace | None = None) -> None:
    def both(store: Any) -> Any:
        store.flush(namespace)
        return harness.engine.tiers.erased()

    harness.engine.call(both).result().result(30)


def found(harness: Harness, work: list[list[int]], namespace: Namespace) -> list[int]:
    return [harness.run(tokens, namespace=namespace, max_tokens=2).started.usage.cached_tokens for tokens in work]


@pytest.mark.parametrize("kind", ["disk", "host and disk", "persist"])
def test_a_namespace_is_forgotten_and_others_stay(kind: str, tmp_path: Path, tiny: LoadedModel) -> None:
    settings = {
        "disk": TierSettings(disk=tmp_path, disk_bytes=MIB),
        "host and disk": TierSettings(host_bytes=60_000, disk=tmp_path, disk_bytes=MIB),
        "persist": TierSettings(host_bytes=MIB, persist=tmp_path),
    }[kind]
    work = prompts(4)
    ours = Namespace(tiny.info.fingerprint)
    theirs = replace(ours, salt="theirs")
    with tiered(tiny, settings) as harness:
        for namespace in (ours, theirs):
            found(harness, work, namespace)
    with tiered(tiny, settings) as harness:
        # Not before what is there is looked at: what was saved must go too.
        flush(harness, theirs)
        settle(harness)
    with tiered(tiny, settings) as harness:
        assert found(harness, work, theirs) == [0] * 4
        assert min(found(harness, work, ours)) > 0
        flush(harness)
        assert found(harness, work[:1], ours) == [0]
        flush(harness)
    with tiered(tiny, settings) as harness:
        assert found(harness, work, ours) == [0] * 4


def test_records_that_were_evicted_and_not_written_over_go_too(tmp_path: Path, tiny: LoadedModel) -> None:
    settings = TierSettings(disk=tmp_path, disk_bytes=MIB)
    namespace = Namespace(tiny.info.fingerprint)
    work = prompts(3)
    with tiered(tiny, settings) as harness:
        found(harness, work, namespace)
        settle(harness)

        def forget_all(store: Any) -> None:
            for entry in list(harness.engine.tiers.index.all()):
                harness.engine.tiers.index.forget(entry)

        harness.engine.call(forget_all).result()
        flush(harness, namespace)
    with tiered(tiny, settings) as harness:
        assert found(harness, work, namespace) == [0] * 3


@pytest.mark.parametrize("named", [False, True])
def test_a_flush_overtakes_reads_that_wait_and_is_no_failure_of_the_disk(
    named: bool, tmp_path: Path, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    began, may = threading.Event(), threading.Event()
    read = SlotFile.read

    def held_up(file: SlotFile, *record: Any) -> None:
        began.set()
        may.wait()
        read(file, *record)

    settings = TierSettings(disk=tmp_path, disk_bytes=MIB)
    namespace = Namespace(tiny.info.fingerprint)
    # Of several chunks, all but one of which wait behind the first.
    work = prompts(1, length=220)
    want = expected(tiny, work)
    with tiered(tiny, settings, num_blocks=70) as harness:
        harness.run(work[0], max_tokens=6)
    with tiered(tiny, settings, num_blocks=70) as harness:
        monkeypatch.setattr(SlotFile, "read", held_up)
        reply = harness.submit(work[0], max_tokens=6)
        assert began.wait(30)

        def both(store: Any) -> Any:
            store.flush(namespace if named else None)
            return harness.engine.tiers.erased()

        erased = harness.engine.call(both).result()
        may.set()
        erased.result(30)
        assert reply.tokens == want[0]
        settle(harness)
        assert harness.engine.tiers.books().tiers[0].failed_blocks == 0
        assert "cannot be used" not in caplog.text
        assert reply.started.usage.cached_tokens == 0


def test_a_disk_that_fails_to_forget_is_named(
    tmp_path: Path, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(file: SlotFile, scope: bytes | None) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(SlotFile, "forget", fails)
    with tiered(tiny, TierSettings(disk=tmp_path, disk_bytes=MIB)) as harness:
        harness.run(prompts(1)[0], max_tokens=2)
        with pytest.raises(NotErased, match="the disk tier"):
            flush(harness)


@pytest.mark.parametrize("named", [False, True])
def test_the_rpc_answers_when_the_file_has_forgotten(named: bool, tmp_path: Path, tiny: LoadedModel) -> None:
    prompt, tenant = common_pb2.Prompt(text="x" * 70), common_pb2.Namespace(salt="t")

    def warm(server: Server) -> int:
        request = cache_pb2.WarmRequest(prompt=prompt, namespace=tenant)
        return server.cache.Warm(request).usage.cached_tokens

    for flushed in (False, True):
        with serving(tiny, disk_cache=f"{tmp_path}:64MiB") as server:
            assert warm(server) == 0
            assert warm(server) == 69
            if not flushed:
                server.cache.Flush(cache_pb2.FlushRequest(namespace=tenant if named else None))
    with serving(tiny, disk_cache=f"{tmp_path}:64MiB") as server:
        assert warm(server) > 0
