"""Learning how long tools take, and leasing what waits for them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from radix import LeaseRefused, Namespace, PrefixStore
from runtime.errors import TooMany
from runtime.retention.lease_desk import LeaseDesk
from runtime.retention.tool_holds import LONGEST_HOLD_S, ToolHolds
from runtime.retention.tool_pauses import DEFAULT_PAUSE_S, ToolPauses
from tests.timing import ManualClock

SPACE = Namespace("f")


class Desk:
    """A store with some prompts cached, and an engine that runs what it is given at once, or when told."""

    def __init__(self, leasable_share: float = 0.5) -> None:
        self.store = PrefixStore(16, 4, "agent", leasable_share=leasable_share)
        self.waiting: list[Callable[[], None]] | None = None

    def call(self, fn: Callable[[PrefixStore], Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(self.store))
            except Exception as error:
                future.set_exception(error)

        if self.waiting is None:
            run()
        else:
            self.waiting.append(run)
        return future

    def cache(self, first: int, length: int = 12) -> np.ndarray[Any, np.dtype[np.int32]]:
        tokens = np.arange(first, first + length, dtype=np.int32)
        seq = self.store.open(tokens, SPACE)
        self.store.reserve(seq, length - seq.length)
        self.store.commit(seq, tokens[seq.length :])
        self.store.close(seq)
        return tokens

    @property
    def leased(self) -> int:
        self.store.check()
        return self.store.stats().leased_tokens


def holds_on(desk: Desk, clock: ManualClock | None = None, limit: int = 100, **more: Any) -> ToolHolds:
    return ToolHolds(desk.call, LeaseDesk(desk.call, limit), ToolPauses(), clock=clock or ManualClock(), **more)


def test_a_percentile_of_the_pauses_is_learned_by_tool() -> None:
    pauses = ToolPauses(90)
    assert pauses.expected_s("grep") == DEFAULT_PAUSE_S
    for _ in range(90):
        pauses.record("grep", 1.0)
    for _ in range(10):
        pauses.record("grep", 100.0)
    assert 1.0 <= pauses.expected_s("grep") <= 1.25
    pauses.record("grep", 100.0)
    assert 100.0 <= pauses.expected_s("grep") <= 125.0
    assert pauses.expected_s("sleep") == DEFAULT_PAUSE_S


def test_a_tool_that_became_slower_is_believed_soon() -> None:
    pauses = ToolPauses(90)
    for _ in range(100_000):
        pauses.record("build", 0.1)
    needed = 0
    while pauses.expected_s("build") < 50:
        pauses.record("build", 60.0)
        needed += 1
    assert needed < 200


def test_tools_and_pauses_are_bounded() -> None:
    pauses = ToolPauses(90, max_tools=3)
    for name in ("a", "b", "a", "c", "d"):
        pauses.record(name, 1e12)
    assert len(pauses) == 3
    assert pauses.expected_s("b") == DEFAULT_PAUSE_S
    assert pauses.expected_s("a") < 1e5


def test_a_wait_is_leased_and_the_next_turn_ends_it_and_teaches_the_pause() -> None:
    desk, clock = Desk(), ManualClock()
    holds = holds_on(desk, clock)
    lease, covered = holds.begin("s", desk.cache(0), SPACE, ["grep"]).result()
    assert (covered, desk.leased) == (12, 12)
    assert lease.ttl_s == pytest.approx(DEFAULT_PAUSE_S, abs=1)
    assert "grep" in lease.label
    clock.now = 4.0
    end = holds.resume("s")
    assert desk.leased == 12
    end()
    end()
    assert desk.leased == 0
    assert 4.0 <= holds.pauses.expected_s("grep") <= 5.0
    assert (holds.granted, holds.refused, len(holds)) == (1, 0, 0)


def test_a_holder_that_ends_teaches_nothing() -> None:
    desk = Desk()
    holds = holds_on(desk)
    holds.begin("s", desk.cache(0), SPACE, ["grep"])
    holds.forget("s")
    holds.forget("s")
    assert desk.leased == 0
    assert len(holds.pauses) == 0
    holds.resume("s")()


def test_of_several_tools_the_slowest_counts_and_none_is_blamed() -> None:
    desk, clock = Desk(), ManualClock()
    holds = holds_on(desk, clock)
    holds.pauses.record("slow", 200.0)
    holds.pauses.record("fast", 0.1)
    lease, _ = holds.begin("s", desk.cache(0), SPACE, ["fast", "slow"]).result()
    assert lease.ttl_s >= 199
    clock.now = 9.0
    holds.resume("s")()
    assert holds.pauses.expected_s("fast") < 1


def test_a_refused_lease_is_no_hold_but_the_pause_is_learned() -> None:
    desk, clock = Desk(leasable_share=0.25), ManualClock()
    holds = holds_on(desk, clock)
    holds.begin("a", desk.cache(0), SPACE, ["x"]).result()
    with pytest.raises(LeaseRefused, match="16"):
        holds.begin("b", desk.cache(100), SPACE, ["y"]).result()
    holds.begin_quietly("c", desk.cache(200), SPACE, ["z"])
    assert (holds.granted, holds.refused, desk.leased) == (1, 2, 12)
    clock.now = 2.0
    holds.resume("b")()
    assert holds.pauses.expected_s("y") < 3


def test_holds_and_leases_are_bounded_in_number() -> None:
    desk = Desk()
    holds = holds_on(desk, limit=3)
    tokens = desk.cache(0)
    for name in "abc":
        holds.begin(name, tokens, SPACE, ["x"]).result()
    with pytest.raises(TooMany, match="3 is the limit of leases"):
        holds.begin("d", tokens, SPACE, ["x"]).result()
    few = ToolHolds(desk.call, LeaseDesk(desk.call), ToolPauses(), limit=2)
    for name in "efg":
        few.begin(name, tokens, SPACE, ["x"])
    assert len(few) == 2


def test_a_turn_that_comes_before_the_lease_was_asked_for_leaves_none_behind() -> None:
    desk = Desk()
    holds = holds_on(desk)
    tokens = desk.cache(0)
    desk.waiting = []
    holds.begin("s", tokens, SPACE, ["x"])
    holds.resume("s")()
    for run in desk.waiting:
        run()
    assert holds.granted == 1
    assert desk.leased == 0


def test_turned_off_nothing_is_held_by_itself() -> None:
    desk = Desk()
    holds = holds_on(desk, enabled=False)
    holds.begin_quietly("s", desk.cache(0), SPACE, ["x"])
    assert desk.leased == 0
    assert len(holds) == 0


def test_a_hold_ends_by_itself_within_an_hour() -> None:
    desk = Desk()
    holds = holds_on(desk)
    holds.pauses.record("days", 1e6)
    lease, _ = holds.begin("s", desk.cache(0), SPACE, ["days"]).result()
    assert LONGEST_HOLD_S - 1 <= lease.ttl_s <= LONGEST_HOLD_S


def test_what_leases_remember_together_is_bounded() -> None:
    desk = Desk()
    leases = LeaseDesk(desk.call)
    tokens = desk.cache(0, 30)
    # The pool has 64 tokens, and 16 times as many may be named.
    for _ in range(16 * 64 // 30):
        leases.lease(tokens, SPACE, ttl_s=60, priority=1, label="").result()
    with pytest.raises(TooMany, match="1024"):
        leases.lease(tokens, SPACE, ttl_s=60, priority=1, label="").result()
    assert leases.refused == 1
    assert desk.leased == 30
