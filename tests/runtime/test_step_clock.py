"""The laps of a step, and what counts as one."""

from __future__ import annotations

import pytest

from runtime.models.loaded_model import LoadedModel
from runtime.monitoring.step_clock import PARTS, StepClock, StepRecord
from tests.runtime.engine_harness import running


class Hand:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_laps_add_up_and_idle_time_is_no_part() -> None:
    hand = Hand()
    clock = StepClock(hand)
    hand.now += 50
    clock.skip()
    for part, seconds in (("schedule", 1.0), ("forward", 8.0), ("schedule", 0.5), ("stream", 2.0)):
        hand.now += seconds
        clock.lap(part)
    clock.computed(3, 40)
    record = clock.take()
    assert record is not None
    assert (record.sequences, record.tokens) == (3, 40)
    assert {part: s for part, s in record.seconds.items() if s} == {"schedule": 1.5, "forward": 8.0, "stream": 2.0}
    assert record.total_s == pytest.approx(11.5)
    assert record.host_s == pytest.approx(3.5)


def test_a_turn_without_a_forward_pass_is_no_step() -> None:
    hand = Hand()
    clock = StepClock(hand)
    hand.now += 5
    clock.lap("inbox")
    assert clock.take() is None
    clock.computed(1, 1)
    record = clock.take()
    assert record is not None
    assert record.total_s == 0


def test_the_engine_records_its_steps(tiny: LoadedModel) -> None:
    records: list[StepRecord] = []
    with running(tiny, max_batch_tokens=64) as harness:
        harness.engine.on_step.append(records.append)
        harness.run(range(1, 101), max_tokens=4)
        harness.check()
        assert len(records) == harness.engine.counters.steps
    assert [record.tokens for record in records] == [64, 36, 1, 1, 1]
    assert all(set(record.seconds) == set(PARTS) for record in records)
    assert all(0 < record.seconds["forward"] < record.total_s for record in records)
