"""Which tokens the next forward pass computes.

Continuous batching under a token budget: a token for everything that decodes, then chunks of the prompts, of runs that
were admitted and of those that wait, in the scheduling order; so much of them as lets the step end in time for what
decodes. A run whose prefix is being computed right now waits for it, and until then lends its turn to whoever computes
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from radix import Cause, Copy, OutOfBlocks, PrefixStore, Sequence, Verdict, common_prefix
from runtime.counters import EngineCounters
from runtime.request import GenerateJob, Request, Run
from runtime.scheduling.program_door import ProgramDoor
from runtime.scheduling.run_queue import RunQueue
from runtime.scheduling.scheduling_order import DEFAULT_ORDER, DEFAULT_PASSES, ORDERS
from runtime.scheduling.step_pacer import PromptRoom, StepPacer
from runtime.scheduling.step_time import StepShape
from runtime.tiers.promoter import Fetch

if TYPE_CHECKING:
    from runtime.tiers.tiers import Tiers

# So much of the head of the queue is kept from looking old, one run a step.
_REFRESHED_PREFIXES = 16
# For so many of it, tiers are asked ahead of their turn.
_AHEAD_RUNS = 4


@dataclass
class StepPlan:
    """What one step does.

    Attributes:
        work: runs with how many of their uncomputed tokens to compute now.
        copies: to carry out before the forward pass.
        admitted: requests that were admitted for the first time.
        impossible: runs that do not fit although nothing else runs.
    """

    work: list[tuple[Run, int]] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    impossible: list[tuple[Run, OutOfBlocks]] = field(default_factory=list)


class Scheduler:
    """Owns the order of runs; the store owns the room.

    Args:
        max_batch_tokens: that one step computes.
        max_running: runs that are admitted at once; forks may pass it.
        order: see `scheduling_order.ORDERS`.
        passes: see `runtime.scheduling.run_queue.RunQueue`.
        max_itl_s: cut prompts so that steps with decoding sequences take no longer; None cuts them at
            `max_batch_tokens` only.
        door: who may be admitted beside others; None lets everybody in.
        tiers: what slower tiers hold; None where there are none.
    """

    def __init__(
        self,
        store: PrefixStore,
        counters: EngineCounters,
        *,
        max_batch_tokens: int,
        max_running: int,
        explain_across: bool,
        order: str = DEFAULT_ORDER,
        passes: int = DEFAULT_PASSES,
        max_itl_s: float | None = None,
        door: ProgramDoor | None = None,
        tiers: Tiers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._counters = counters
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self._explain_across = explain_across
        self._clock = clock
        self.waiting = RunQueue(ORDERS[order], passes, store)
        # In the order of admission.
        self.running: list[Run] = []
        # Runs that left the pool so far. A run that found no room is not tried again before the next one does.
        self._departures = 0
        self._no_room: tuple[Run, int] | None = None
        # How many there were when tiers were last asked for what waits; -1 lets them be asked.
        self._looked_ahead = -1
        self._steps = 0
        self._pacer = None if max_itl_s is None else StepPacer(max_itl_s)
        self._shape = StepShape()
        self._door = door
        self._tiers = tiers

    def enqueue(self, run: Run) -> None:
        self.waiting.add(run)
        if self._door is not None:
            self._door.arrived(run)
        if not self._held_back(run):
            self._refresh(run)
            self._looked_ahead = -1

    def program_ended(self, program: Hashable) -> None:
        """No call of this program follows those that are here."""
        if self._door is not None:
            self._door.ended(program)

    def remove(self, run: Run) -> None:
        """Forget a run and give back what it holds."""
        if run in self.running:
            self.running.remove(run)
        self.waiting.discard(run)
        if self._tiers is not None:
            self._tiers.promoter.abandon(run)
        if self._door is not None:
            self._door.left(run)
        if run.seq is not None:
            self._leave_pool(run)

    def _leave_pool(self, run: Run) -> None:
        assert run.seq is not None
        if self._tiers is not None:
            self._tiers.left(run)
        self._store.close(run.seq)
        run.seq = None
        self.room_came()

    def room_came(self) -> None:
        """Blocks came free, or may: whoever found no room is tried again."""
        self._departures += 1

    def add_fork(self, parent: Run, child: Run) -> None:
        """Let `child` run beside `parent`, on the same committed tokens."""
        assert parent.seq is not None
        child.seq = self._store.fork(parent.seq)
        child.place = replace(parent.place, leader=None)
        self.running.append(child)

    def schedule(self) -> StepPlan:
        plan = StepPlan()
        step = _Step(plan, self._max_batch_tokens)
        for run in [run for run in self.running if not run.prefilling]:
            self._compute(run, step)
        self._prefill(step)
        self.running = [run for run in self.running if run.seq is not None]
        self._steps += 1
        if self._pacer is not None:
            self._shape = StepShape.of(plan.work)
        return plan

    def stepped(self, seconds: float, tokens: int | None = None) -> None:
        """The step that was scheduled last took so long, everything included; `tokens` with drafts were computed."""
        if self._pacer is not None:
            scheduled = self._shape.rows + self._shape.prompt_tokens
            drafted = 0 if tokens is None else max(0, tokens - scheduled)
            self._pacer.stepped(replace(self._shape, draft_rows=drafted), seconds)

    def _compute(self, run: Run, step: _Step) -> None:
        """Compute what the budget allows of a run that was admitted."""
        if run.seq is None or step.budget == 0:
            # Preempted a moment ago to make room for an earlier one, or nothing left to give.
            return
        n = min(run.uncomputed, step.budget)
        if not self._reserve_or_preempt(run, n, step):
            step.full = True
            return
        self._plan(run, step)

    def _plan(self, run: Run, step: _Step) -> None:
        assert run.seq is not None
        n = min(run.uncomputed, step.budget)
        if step.room is not None and run.prefilling:
            n = min(n, step.room.fits(run.seq.length))
            step.room.take(run.seq.length, n)
            if step.room.used_up:
                step.budget = n
        step.plan.work.append((run, n))
        step.done.add(run)
        step.budget -= n
        if run.place.program is not None:
            run.place.program.attained += n

    # Prompts

    def _prefill(self, step: _Step) -> None:
        """Serve runs with uncomputed prompts in their order, admitting those that wait."""
        prefilling = [run for run in self.running if run.prefilling and run.seq is not None]
        if step.budget == 0 or not (prefilling or len(self.waiting)):
            return
        if self._pacer is not None:
            step.room = self._pacer.begin(StepShape.of(step.plan.work))
        step.running = sum(run.seq is not None for run in self.running)
        in_order = self.waiting.in_order(prefilling, self._held_back)
        if not in_order and not step.running:
            in_order = self.waiting.in_order((), _nobody)[:1]
        budget = step.budget
        for run in in_order:
            if step.budget == 0:
                break
            if run.seq is not None:
                if run not in step.done:
                    self._compute(run, step)
            elif run in self.waiting and not step.full:
                self._serve_waiting(run, step)
        if step.budget < budget:
            self.waiting.turn_over(step.done)
        waiting = [run for run in in_order[: 2 * _REFRESHED_PREFIXES] if run in self.waiting]
        self._fetch_ahead(waiting)
        self._refresh_one(waiting)

    def _held_back(self, run: Run) -> bool:
        return self._door is not None and self._door.holds_back(run)

    def _serve_waiting(self, run: Run, step: _Step) -> None:
        """Admit a run, or compute what it waits for."""
        if step.running >= self._max_running or (step.running and self._no_room == (run, self._departures)):
            step.full = True
            return
        leader = self._leader(run)
        if leader is not None:
            if leader not in step.done:
                self._compute(leader, step)
            return
        found = Fetch.NOTHING if self._tiers is None else self._tiers.promoter.fetch(run, ahead=False)
        if found is Fetch.NO_ROOM:
            self._find_no_room(run, step)
        elif found is Fetch.NOTHING:
            self._admit(run, step, alone=not step.running)

    def _find_no_room(self, run: Run, step: _Step) -> None:
        """Nobody behind it passes, or the small would keep the large out for good."""
        self._no_room = (run, self._departures)
        step.full = True

    def _fetch_ahead(self, waiting: list[Run]) -> None:
        """Let what the head of the queue needs of tiers come while others are computed."""
        if self._tiers is not None and self._looked_ahead != self._departures:
            self._looked_ahead = self._departures
            for place, run in enumerate(waiting[:_AHEAD_RUNS]):
                if self._leader(run) is None:
                    self._tiers.promoter.fetch(run, ahead=place > 0)

    def _released(self) -> bool:
        """Whether room that was held for runs that wait came free."""
        return self._tiers is not None and self._tiers.promoter.release()

    # Room for what runs

    def _reserve_or_preempt(self, run: Run, n: int, step: _Step) -> bool:
        """Make room for `n` more tokens of `run`; the latest admitted makes way. False when that is `run` itself."""
        while True:
            seq = run.seq
            assert seq is not None
            try:
                step.plan.copies += self._store.reserve(seq, n)
                return True
            except OutOfBlocks as error:
                if self._released():
                    continue
                if error.leaving:
                    # They come free by themselves, in a moment.
                    return False
                if self._store.drop_partial(seq):
                    n = min(run.uncomputed, self._max_batch_tokens)
                    continue
                victim = next(
                    r for r in reversed(self.running) if r.seq is not None and (r is run or r not in step.done)
                )
                if victim is run and sum(r.seq is not None for r in self.running) == 1:
                    step.plan.impossible.append((run, error))
                    return False
                self._preempt(victim)
                step.full = True
                if victim is run:
                    return False

    def _preempt(self, run: Run) -> None:
        """What is committed stays in the tree, so that the run finds it again unless it was evicted meanwhile."""
        self._leave_pool(run)
        run.request.preemptions += 1
        self._counters.preemptions += 1
        self.waiting.put_back(run)

    # Room for what waits

    def _admit(self, run: Run, step: _Step, *, alone: bool) -> None:
        job = run.request.job
        seq = self._store.open(
            run.tokens,
            job.namespace,
            publish=not job.bypass_cache,
            public_tokens=job.public_tokens,
            priority=job.priority,
        )
        try:
            # Room for the whole prompt, so that a prefill that began is not preempted by its own growth.
            copies = self._reserve_alone(seq, run) if alone else self._reserve_prompt(seq, run)
        except OutOfBlocks as error:
            self._store.close(seq)
            if alone and not error.leaving:
                self.waiting.discard(run)
                step.plan.impossible.append((run, error))
            else:
                self._find_no_room(run, step)
            return
        self.waiting.discard(run)
        run.seq = seq
        if self._tiers is not None:
            self._tiers.promoter.admitted(run)
        step.running += 1
        step.plan.copies += copies
        self._start(run, seq, step.plan)
        self._plan(run, step)
        self.running.append(run)

    def _start(self, run: Run, seq: Sequence, plan: StepPlan) -> None:
        """What the cache has of a run is in its sequence, and nothing is computed yet."""
        request = run.request
        if request.admitted is None and not request.job.bypass_cache:
            request.verdict = replace(self.explain(request.job, besides=run), promotion=request.promotion)
        self._count_admission(run, seq, plan)
        if self._door is not None:
            self._door.admitted(run, seq.matched)

    def _reserve_prompt(self, seq: Sequence, run: Run) -> list[Copy]:
        return self._store.reserve(seq, run.known - seq.length)

    def _reserve_alone(self, seq: Sequence, run: Run) -> list[Copy]:
        """With the pool to itself a run must fit, if need be without the copy of a partial block."""
        try:
            return self._reserve_prompt(seq, run)
        except OutOfBlocks as error:
            if self._released():
                return self._reserve_alone(seq, run)
            if error.leaving or not self._store.drop_partial(seq):
                raise
            return self._reserve_prompt(seq, run)

    def _count_admission(self, run: Run, seq: Sequence, plan: StepPlan) -> None:
        request = run.request
        if request.admitted is not None:
            return
        request.admitted = self._clock()
        request.cached_tokens = seq.matched
        plan.admitted.append(request)
        self._counters.prompt_tokens += request.prompt_tokens
        if not request.job.bypass_cache:
            self._counters.lookup_tokens += request.prompt_tokens
            self._counters.hit_tokens += seq.matched
            self._count_misses(request)

    def _count_misses(self, request: Request) -> None:
        if request.verdict is not None:
            for cause, tokens in request.verdict.tokens_by_cause().items():
                if cause is not Cause.CACHED:
                    self._counters.missed_tokens[cause] += tokens

    def explain(self, job: GenerateJob, besides: Run | None = None) -> Verdict:
        """Say why each prompt token of `job` would hit or miss now. `besides`: a run that does not count as running."""
        verdict = self._store.explain(
            job.tokens,
            job.namespace,
            public_tokens=job.public_tokens,
            in_flight=self._farthest_prefill(job.tokens, job, besides)[1],
            across=self._explain_across and not job.verdict_within_namespace,
        )
        return verdict if self._tiers is None or besides is not None else self._tiers.amend(verdict, job)

    # What is being computed already

    def _leader(self, run: Run) -> Run | None:
        """Return a running prefill that is about to commit more of this run's prefix than the cache has now."""
        place, job = run.place, run.request.job
        if place.waits_for_leader:
            return place.leader
        if job.bypass_cache:
            return None
        reusable = run.tokens[:-1]
        place.leader, place.shared = self._farthest_prefill(reusable, job)
        if place.leader is not None and place.shared > self._store.match(reusable, job.namespace, job.public_tokens):
            return place.leader
        place.leader = None
        return None

    def _farthest_prefill(
        self, tokens: NDArray[np.int32], job: GenerateJob, besides: Run | None = None
    ) -> tuple[Run | None, int]:
        """Return the running prefill that is going to commit most of `tokens` that it has not committed yet, and up to
        where.
        """
        leader, longest = None, 0
        for other in self.running:
            theirs = other.request.job
            # The prompt alone counts: what it decodes comes too slowly to wait for.
            if other is besides or other.seq is None or theirs.bypass_cache or other.seq.length >= len(theirs.tokens):
                continue
            limit = _shareable(theirs, job)
            shared = common_prefix(theirs.tokens[:limit], tokens[:limit]) if limit else 0
            if shared > max(longest, other.seq.length):
                leader, longest = other, shared
        return leader, longest

    # Recency of what waits

    def _refresh_one(self, waiting: list[Run]) -> None:
        """Under pressure, keep what the head of the queue is going to need from looking old."""
        if waiting and self._store.free_blocks * 8 <= self._store.num_blocks:
            head = waiting[:_REFRESHED_PREFIXES]
            self._refresh(head[self._steps % len(head)])

    def _refresh(self, run: Run) -> None:
        if not run.request.job.bypass_cache:
            self._store.refresh(run.tokens, run.request.job.namespace)


class _Step:
    """A plan in the making.

    Attributes:
        budget: tokens that are left to give.
        done: the runs that got theirs.
        running: runs that are admitted.
        full: nothing more is admitted.
        room: what prompts may take beside what decodes; None is no limit.
    """

    __slots__ = ("budget", "done", "full", "plan", "room", "running")

    def __init__(self, plan: StepPlan, budget: int) -> None:
        self.plan = plan
        self.budget = budget
        self.done: set[Run] = set()
        self.running = 0
        self.full = False
        self.room: PromptRoom | None = None


def _nobody(run: Run) -> bool:
    return False


def _shareable(a: GenerateJob, b: GenerateJob) -> int:
    """How many leading tokens two jobs may share, as far as their namespaces go."""
    if a.namespace == b.namespace:
        return len(a.tokens)
    if replace(a.namespace, salt=None) == replace(b.namespace, salt=None):
        return min(a.public_tokens, b.public_tokens)
    return 0
