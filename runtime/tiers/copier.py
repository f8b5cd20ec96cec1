"""The threads that copy: one between device and host memory, and one for each tier that is a file.

The engine's thread enqueues and reaps; it never waits for a copy. A file that does not answer holds its own thread
alone.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count

from runtime.tiers.job import GivenUp, Job, Urgency

log = logging.getLogger(__name__)


class _Lane:
    """One thread, what it is to do, and what of that was not told to the engine yet."""

    def __init__(self, name: str, done: Callable[[Job], None]) -> None:
        self.jobs: queue.PriorityQueue[tuple[int, int, Job | None]] = queue.PriorityQueue()
        self.untold: dict[Job, None] = {}
        self.dead = False
        self._done = done
        threading.Thread(target=self._loop, name=f"kv-{name}", daemon=True).start()

    def _loop(self) -> None:
        while (job := self.jobs.get()[2]) is not None:
            try:
                job.run()
            except GivenUp:
                pass
            except Exception:
                # Whoever asked takes it for a copy that failed.
                log.exception("work on a tier failed")
            self._done(job)

    def overdue(self, limit_s: float) -> bool:
        """Whether a job is under way for longer."""
        now = time.monotonic()
        return any(job.began is not None and not job.told and now - job.began > limit_s for job in list(self.untold))


class Copier:
    """The threads and the queue of what they have done.

    Args:
        lanes: their names; the first is memory's.
        wake: called from them when there is something to reap.
    """

    def __init__(self, lanes: Sequence[str], wake: Callable[[], None]) -> None:
        self._wake = wake
        self._numbers = count()
        self._done: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._lanes = [_Lane(name, self._ended) for name in lanes]
        # Blocks of jobs that were not reaped, by urgency.
        self.pending = dict.fromkeys(Urgency, 0)

    def _ended(self, job: Job) -> None:
        self._done.put(job)
        self._wake()

    @property
    def busy(self) -> bool:
        return any(self.pending.values())

    def busy_in(self, lane: int) -> bool:
        return bool(self._lanes[lane].untold)

    def submit(self, job: Job, lane: int) -> None:
        """Do a job on one of the threads; on one that was given up it ends at once, and badly."""
        self.pending[job.urgency] += job.blocks
        at = self._lanes[lane]
        at.untold[job] = None
        if at.dead:
            self._ended(job)
        else:
            at.jobs.put((int(job.urgency), next(self._numbers), job))

    def reap(self) -> int:
        """Tell of everything that is done; return how many jobs that were."""
        n = 0
        while True:
            try:
                job = self._done.get_nowait()
            except queue.Empty:
                return n
            n += self._tell(job)

    def _tell(self, job: Job) -> bool:
        if job.told:
            # It was given up, and came to an end after all.
            return False
        job.told = True
        for lane in self._lanes:
            lane.untold.pop(job, None)
        self.pending[job.urgency] -= job.blocks
        job.landed(job)
        return True

    def overdue(self, limit_s: float) -> list[int]:
        """Return the lanes of files whose job under way has taken longer."""
        return [i for i, lane in enumerate(self._lanes) if i and lane.untold and lane.overdue(limit_s)]

    def give_up(self, lane: int) -> None:
        """Wait for this thread no longer: everything that it was asked to do ends now, and badly.

        But for what is at the pool right now: that ends by itself in a moment.
        """
        at = self._lanes[lane]
        at.dead = True
        for job in list(at.untold):
            if job.give_up():
                job.outcome = None
                self._tell(job)

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
        for lane in self._lanes:
            lane.jobs.put((int(Urgency.STOP), next(self._numbers), None))
