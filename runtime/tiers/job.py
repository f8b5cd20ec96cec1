"""Something to do on a copying thread, which whoever asked for it may give up at any moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class Urgency(IntEnum):
    """What a thread does first. What is to be forgotten is, before anything is written in its place."""

    ERASE = 0
    LOAD = 1
    DEMOTE = 2
    SPILL = 3
    SAVE = 4
    STOP = 5


class GivenUp(Exception):
    """Nobody waits for a job any more: it must not touch the pool."""


@dataclass(eq=False)
class Job:
    """A copy, or a few.

    Attributes:
        work: what to do; its result is `outcome`, or None where it raised or was given up. It touches the pool within
            `pool()` alone, and does nothing there that may take long.
        landed: what the engine's thread does then.
        blocks: how many it copies, at least one.
        tier: from or to which.
        seconds: how long it took.
        began: when its thread took it up, on the clock of `time.monotonic`; None before.
        told: `landed` was called.
    """

    work: Callable[[Job], Any]
    landed: Callable[[Job], None]
    urgency: Urgency
    blocks: int
    tier: int
    outcome: Any = None
    seconds: float = 0.0
    began: float | None = None
    told: bool = False
    _gave_up: bool = False
    _touching: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def pool(self) -> Iterator[None]:
        """While the pool's blocks are read or written. Raises GivenUp."""
        with self._touching:
            if self._gave_up:
                raise GivenUp
            yield

    def give_up(self) -> bool:
        """Keep the job off the pool from now on; False where it is there right now."""
        if not self._touching.acquire(blocking=False):
            return False
        self._gave_up = True
        self._touching.release()
        return True

    def run(self) -> None:
        """Do the work; what it raises goes to the caller."""
        self.began = time.monotonic()
        try:
            if not self._gave_up:
                self.outcome = self.work(self)
        finally:
            self.seconds = time.monotonic() - self.began
