"""What a request needs of tiers comes while it waits, and takes no place beside others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import RequestCancelled
from runtime.models.loaded_model import LoadedModel
from runtime.tiers.settings import TierSettings
from runtime.tiers.storage import Storage
from tests.runtime.engine_harness import Harness
from tests.runtime.tiers.harness import MIB, SIZE, expected, prompts, settle, tiered, until


class Gate:
    """Holds every copy to the device from `shut` on until `open`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._may = threading.Event()
        self._may.set()
        self.copies: list[list[int]] = []
        copy_in = Storage.copy_in

        def gated(storage: Storage, job: Any, copies: Any, *args: Any) -> Any:
            self.copies.append([copy.slot for copy in copies])
            self._may.wait()
            return copy_in(storage, job, copies, *args)

        monkeypatch.setattr(Storage, "copy_in", gated)

    def shut(self) -> None:
        self.copies.clear()
        self._may.clear()

    def open(self) -> None:
        self._may.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


def put_away(harness: Harness, work: list[list[int]]) -> None:
    """Compute prompts, and let all of them go down."""
    for tokens in work:
        harness.run(tokens, max_tokens=2)
    settle(harness)
    harness.evict_all()
    settle(harness)
    # Whatever was kept free ahead of demand is no matter here.
    assert harness.check().cached_tokens == 0


def test_it_begins_in_the_queue_and_holds_no_place(tmp_path: Path, tiny: LoadedModel, gate: Gate) -> None:
    work = prompts(2)
    others = prompts(3, seed=5)
    want, want_others = expected(tiny, work), expected(tiny, others)
    with tiered(tiny, TierSettings(host_bytes=MIB), num_blocks=64, max_running=1) as harness:
        put_away(harness, work)
        gate.shut()
        replies = [harness.submit(tokens, max_tokens=6) for tokens in work]
        until(harness, lambda store: len(gate.copies) > 0)
        # The one place is free for others, though the copies take for ever.
        assert [harness.run(tokens, max_tokens=6).tokens for tokens in others] == want_others
        assert harness.engine.counters.waiting == 2
        assert not any(reply.events for reply in replies)
        gate.open()
        assert [reply.tokens for reply in replies] == want
        for reply in replies:
            usage = reply.started.usage
            assert usage.host_tokens == usage.cached_tokens == len(work[0]) - 1


def test_what_two_share_is_fetched_once(tiny: LoadedModel, gate: Gate) -> None:
    shared = prompts(1, length=24)[0]
    work = [shared + tail for tail in prompts(3, length=8, seed=7)]
    want = expected(tiny, work)
    with tiered(tiny, TierSettings(host_bytes=MIB), num_blocks=64) as harness:
        put_away(harness, [shared])
        gate.shut()
        replies = [harness.submit(tokens, max_tokens=6) for tokens in work]
        until(harness, lambda store: len(gate.copies) > 0)
        gate.open()
        assert [reply.tokens for reply in replies] == want
        slots = [slot for slots in gate.copies for slot in slots]
        assert len(slots) == len(set(slots))
        assert [reply.started.usage.cached_tokens >= 24 - SIZE for reply in replies] == [True] * 3


def test_who_leaves_the_queue_gives_back(tiny: LoadedModel, gate: Gate) -> None:
    work = prompts(4)
    with tiered(tiny, TierSettings(host_bytes=MIB), num_blocks=64) as harness:
        put_away(harness, work)
        gate.shut()
        replies = [harness.submit(tokens, max_tokens=6) for tokens in work]
        until(harness, lambda store: len(gate.copies) > 0)
        for reply in replies:
            reply.handle.cancel()
        assert all(isinstance(reply.wait().error, RequestCancelled) for reply in replies)
        gate.open()
        settle(harness)
        stats = harness.check_idle()
        assert stats.leaving_blocks == 0
        # Nothing was lost by it.
        reply = harness.run(work[0], max_tokens=6)
        assert reply.started.usage.cached_tokens == len(work[0]) - 1


def test_an_engine_whose_waiters_left_sleeps_until_somebody_comes(
    tiny: LoadedModel, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = prompts(1)
    with tiered(tiny, TierSettings(host_bytes=MIB), num_blocks=64) as harness:
        put_away(harness, work)
        gate.shut()
        reply = harness.submit(work[0], max_tokens=6)
        until(harness, lambda store: len(gate.copies) > 0)
        reply.handle.cancel()
        reply.wait()
        gate.open()
        settle(harness)
        inbox, waits = harness.engine._inbox, []
        wait = inbox.wait
        monkeypatch.setattr(inbox, "wait", lambda timeout_s=None: (waits.append(timeout_s), wait(timeout_s)))
        for _ in range(2):
            harness.engine.call(lambda store: None).result()
        assert waits[-1] is None


def test_room_that_is_held_for_the_queue_is_given_to_who_runs(tiny: LoadedModel) -> None:
    work = prompts(6, length=30)
    long = prompts(1, length=20, seed=9)[0]
    want, want_long = expected(tiny, work), expected(tiny, [long])
    with tiered(tiny, TierSettings(host_bytes=MIB), num_blocks=20, max_running=1) as harness:
        for tokens in work:
            harness.run(tokens, max_tokens=2)
        running = harness.submit(long, max_tokens=50)
        replies = [harness.submit(tokens, max_tokens=6) for tokens in work]
        assert running.tokens[:6] == want_long[0]
        assert [reply.tokens for reply in replies] == want
        assert running.finished.timing.preemptions == 0


def test_what_is_about_to_be_fetched_does_not_make_way(tiny: LoadedModel) -> None:
    """Host memory is full, what the next request needs is the oldest there, and the pool has to send more down."""
    work = prompts(3)
    slots = 2 * -(-len(work[0]) // SIZE) + 2
    with tiered(tiny, TierSettings(host_bytes=slots * SIZE * tiny.info.kv_bytes_per_token)) as harness:
        for tokens in work:
            harness.run(tokens, max_tokens=2)
            settle(harness)
        reply = harness.run(work[0], max_tokens=2)
        assert reply.started.usage.host_tokens == len(work[0]) - 1
