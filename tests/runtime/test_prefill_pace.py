"""The measured cost of a miss."""

from __future__ import annotations

import pytest

from runtime.events import RequestRecord, Timing, Usage
from runtime.scheduling.prefill_pace import PrefillPace


def record(tokens: int, seconds: float, outcome: str = "finished") -> RequestRecord:
    timing = Timing(0, seconds, 0, 0, 0, 0, 0, 0)
    return RequestRecord(Usage(tokens, 0, 1, tokens), timing, (), outcome)


def test_it_is_unknown_before_the_first_request_that_computed_something() -> None:
    pace = PrefillPace()
    pace.record(record(0, 1.0))
    pace.record(record(100, 1.0, "cancelled"))
    assert pace.seconds_a_token is None


def test_requests_weigh_by_their_tokens() -> None:
    pace = PrefillPace()
    pace.record(record(1000, 1.0))
    pace.record(record(1, 0.05))
    assert pace.seconds_a_token == pytest.approx(1.05 / 1001, rel=0.01)


def test_it_follows_a_change() -> None:
    pace = PrefillPace()
    for _ in range(100):
        pace.record(record(1000, 1.0))
    assert pace.seconds_a_token == pytest.approx(0.001)
    for _ in range(100):
        pace.record(record(1000, 4.0))
    assert pace.seconds_a_token == pytest.approx(0.004, rel=0.1)
