"""The queue before the pool: who waits, and in which order runs with uncomputed prompts are served."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import count, islice

from radix import PrefixStore
from runtime.request import Place, Run
from runtime.scheduling.programs import Program, Programs
from runtime.scheduling.scheduling_order import Order

# What a run's rank is made of changes while it waits. So many of the waiting are looked at again in a step.
_RANKED_A_STEP = 4


class CallStanding:
    """What a scheduling order is told about a run; see `scheduling_order.Standing`."""

    def __init__(self, run: Run, store: PrefixStore) -> None:
        self._run = run
        self._store = store

    @property
    def priority(self) -> int:
        return self._run.request.job.priority

    @property
    def cached(self) -> int:
        job = self._run.request.job
        return 0 if job.bypass_cache else self._store.match(job.tokens[:-1], job.namespace, job.public_tokens)

    @property
    def attained(self) -> int:
        return self._program.attained

    @property
    def began(self) -> int:
        return self._program.began

    @property
    def _program(self) -> Program:
        place = self._run.place
        if place.program is None:
            # Nobody named it. Of a loop that sends its whole history, what is cached is what was done for it before.
            place.program = Program(place.ticket, self.cached)
        return place.program


class RunQueue:
    """Runs that wait, and the order of service.

    What was preempted goes first: its output has begun. Then the order decides, but that whoever came first of all that
    are served has every (`passes` + 1)th turn. So no run waits for more than (`passes` + 1) times the turns that it
    would wait for under first come, first served.

    Args:
        passes: turns that others may have before the one who came first has one.
    """

    def __init__(self, order: Order, passes: int, store: PrefixStore) -> None:
        self._order = order
        self._passes = passes
        self._store = store
        self._programs = Programs()
        self._tickets = count()
        # The longest unranked first.
        self._waiting: dict[Run, None] = {}
        self._first_come: Run | None = None
        self._passed = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, run: Run) -> bool:
        return run in self._waiting

    def add(self, run: Run) -> None:
        """A run arrives."""
        ticket = next(self._tickets)
        name = run.request.job.program
        run.place = Place(ticket, program=None if name is None else self._programs.called(name, ticket))
        self._rank(run)
        self._waiting[run] = None

    def put_back(self, run: Run) -> None:
        """A run was preempted."""
        run.place.resumed = True
        self._waiting[run] = None

    def discard(self, run: Run) -> None:
        """A run is admitted, or ended."""
        self._waiting.pop(run, None)

    def in_order(self, admitted: Iterable[Run], held_back: Callable[[Run], bool]) -> list[Run]:
        """The `admitted` and the waiting that are not held back, who shall be served first in front."""
        self._rank_some()
        runs = [*admitted, *(run for run in self._waiting if not held_back(run))]
        if not runs:
            return runs
        runs.sort(key=_ticket)
        self._first_come = runs[0]
        if self._passed < self._passes:
            runs.sort(key=_key)
        else:
            runs[1:] = sorted(runs[1:], key=_key)
        return runs

    def turn_over(self, served: Collection[Run]) -> None:
        """Some of those that `in_order` gave last were served."""
        first = self._first_come
        if first in served or (first is not None and first.place.leader in served):
            self._passed = 0
        else:
            self._passed += 1

    def _rank_some(self) -> None:
        for run in list(islice(self._waiting, _RANKED_A_STEP)):
            self._rank(run)
            del self._waiting[run]
            self._waiting[run] = None

    def _rank(self, run: Run) -> None:
        run.place.rank = self._order(CallStanding(run, self._store))


def _ticket(run: Run) -> int:
    return run.place.ticket


def _key(run: Run) -> tuple[bool, tuple[int, ...], int]:
    place = run.place
    return not place.resumed, place.rank, place.ticket
