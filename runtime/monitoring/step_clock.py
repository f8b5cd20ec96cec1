"""Where the time of an engine step goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

FORWARD = "forward"
# In the order in which they come. The two ends are what other threads asked for, and what is told to them.
PARTS = ("inbox", "schedule", "prepare", FORWARD, "sample", "commit", "detokenize", "stream", "hooks")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step that ran the model.

    Attributes:
        seconds: by part, from the end of the step before (or of the idle wait) to the end of this one.
        sequences, tokens: that the forward pass computed.
    """

    seconds: Mapping[str, float]
    sequences: int
    tokens: int

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def host_s(self) -> float:
        """What the step took beside the model's forward pass."""
        return self.total_s - self.seconds[FORWARD]


class StepClock:
    """Laps of one thread. On an accelerator the forward pass goes on in the background until its logits are read, so
    that its time is found under `sample`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._last = clock()
        self._computed: tuple[int, int] | None = None

    def skip(self) -> None:
        """The time since the last lap was no part of a step: there was nothing to do."""
        self._last = self._clock()

    def lap(self, part: str) -> None:
        """Everything since the last lap was `part`."""
        now = self._clock()
        self._seconds[part] += now - self._last
        self._last = now

    def computed(self, sequences: int, tokens: int) -> None:
        """The model ran in this step."""
        self._computed = sequences, tokens

    def take(self) -> StepRecord | None:
        """End the step; None where the model did not run in it."""
        record = None if self._computed is None else StepRecord(self._seconds, *self._computed)
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._computed = None
        return record
