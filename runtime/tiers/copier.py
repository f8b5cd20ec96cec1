"""The threads that copy: one between device and host memory, one for whatever touches a file.

The engine's thread enqueues and reaps; it never waits for a copy.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from typing import Any

log = logging.getLogger(__name__)


class Urgency(IntEnum):
    """What a thread does first."""

    LOAD = 0
    DEMOTE = 1
    SPILL = 2
    SAVE = 3
    STOP = 4


@dataclass(eq=False)
class Job:
    """Something to do on a copying thread.

    Attributes:
        work: what to do there; its result is `outcome`, or None where it raised.
        landed: what the engine's thread does then.
        blocks: how many it copies, at least one.
        tier: from or to which.
        seconds: how long it took.
    """

    work: Callable[[], Any]
    landed: Callable[[Job], None]
    urgency: Urgency
    blocks: int
    tier: int
    outcome: Any = None
    seconds: float = 0.0


class Copier:
    """Two threads and the queue of what they have done.

    Args:
        wake: called from their threads when there is something to reap.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._numbers = count()
        self._done: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._queues: list[queue.PriorityQueue[tuple[int, int, Job | None]]] = [queue.PriorityQueue() for _ in range(2)]
        self._threads = [
            threading.Thread(target=self._loop, args=(jobs,), name=f"kv-{name}", daemon=True)
            for jobs, name in zip(self._queues, ("memory", "disk"), strict=True)
        ]
        # Blocks of jobs that were not reaped, by urgency.
        self.pending = dict.fromkeys(Urgency, 0)
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> bool:
        return any(self.pending.values())

    def submit(self, job: Job, *, disk: bool) -> None:
        """Do a job on one of the two threads."""
        self.pending[job.urgency] += job.blocks
        self._queues[disk].put((int(job.urgency), next(self._numbers), job))

    def reap(self) -> int:
        """Tell of everything that is done; return how many jobs that were."""
        n = 0
        while True:
            try:
                job = self._done.get_nowait()
            except queue.Empty:
                return n
            self.pending[job.urgency] -= job.blocks
            n += 1
            job.landed(job)

    def drain(self, timeout_s: float) -> bool:
        """Wait until every job is done and told; False where that takes longer."""
        deadline = time.monotonic() + timeout_s
        while self.busy:
            if not self.reap():
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.002)
        return True

    def close(self) -> None:
        """Stop once what was asked for is done."""
        for jobs in self._queues:
            jobs.put((int(Urgency.STOP), next(self._numbers), None))

    def _loop(self, jobs: queue.PriorityQueue[tuple[int, int, Job | None]]) -> None:
        while (job := jobs.get()[2]) is not None:
            began = time.perf_counter()
            try:
                job.outcome = job.work()
            except Exception:
                # Whoever asked takes it for a copy that failed.
                log.exception("a copy between tiers failed")
            job.seconds = time.perf_counter() - began
            self._done.put(job)
            self._wake()
