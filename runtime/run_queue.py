"""The queue before the pool: who waits, and in which order runs with uncomputed prompts are served."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count, islice

from runtime.request import Place, Run
from runtime.scheduling_order import Order, Standing

# What a run's rank is made of changes while it waits. So many of the waiting are looked at again in a step.
_RANKED_A_STEP = 4


class RunQueue:
    """Runs that wait, and the order of service.

    What was preempted goes first: its output has begun. Then whoever has waited for `patience_s`, first come first
    served: so long, and no longer, may a run be passed by others that came after it. Then the rest, by the order.

    Args:
        standing: what the order is told about a run.
        clock: seconds, never going back.
    """

    def __init__(
        self, order: Order, standing: Callable[[Run], Standing], patience_s: float, clock: Callable[[], float]
    ) -> None:
        self._order = order
        self._standing = standing
        self._patience_s = patience_s
        self._clock = clock
        self._tickets = count()
        # The longest unranked first.
        self._waiting: dict[Run, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, run: Run) -> bool:
        return run in self._waiting

    def add(self, run: Run) -> None:
        """A run arrives."""
        run.place = Place(next(self._tickets), self._clock())
        run.place.rank = self._order(self._standing(run))
        self._waiting[run] = None

    def put_back(self, run: Run) -> None:
        """A run was preempted."""
        run.place.resumed = True
        self._waiting[run] = None

    def discard(self, run: Run) -> None:
        """A run is admitted, or ended."""
        self._waiting.pop(run, None)

    def in_order(self, admitted: Iterable[Run]) -> list[Run]:
        """The waiting and the `admitted`, who shall be served first in front."""
        self._rank_some()
        now = self._clock()
        late = now - self._patience_s

        def key(run: Run) -> tuple[int, int, int]:
            place = run.place
            if place.resumed:
                return 0, 0, place.ticket
            if place.since <= late:
                return 1, 0, place.ticket
            return 2, place.rank, place.ticket

        return sorted([*admitted, *self._waiting], key=key)

    def _rank_some(self) -> None:
        for run in list(islice(self._waiting, _RANKED_A_STEP)):
            run.place.rank = self._order(self._standing(run))
            del self._waiting[run]
            self._waiting[run] = None
