"""Waiting for what happens elsewhere, and a clock that stands until it is set."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], within_s: float = 60.0) -> bool:
    """Whether `condition` became true within that time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class ManualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
