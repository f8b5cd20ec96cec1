"""Which tokens the next forward pass computes.

Continuous batching under a token budget, decode rows first, then prompt chunks of what runs already, then what
waits, first come first served. A waiting run whose prefix is being computed right now waits for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from radix import Cause, Copy, OutOfBlocks, PrefixStore, Sequence, Verdict, common_prefix
from runtime.counters import EngineCounters
from runtime.request import GenerateJob, Request, Run

_REFRESHED_PREFIXES = 16


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
    """Owns the order of runs; the store owns the room."""

    def __init__(
        self,
        store: PrefixStore,
        counters: EngineCounters,
        *,
        max_batch_tokens: int,
        max_running: int,
        explain_across: bool,
    ) -> None:
        self._store = store
        self._counters = counters
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self._explain_across = explain_across
        self.waiting: deque[Run] = deque()
        # In the order of admission.
        self.running: list[Run] = []

    def enqueue(self, run: Run) -> None:
        self.waiting.append(run)
        self._refresh(run)

    def runs(self) -> Iterator[Run]:
        yield from self.running
        yield from self.waiting

    def remove(self, run: Run) -> None:
        """Forget a run and give back what it holds."""
        if run in self.running:
            self.running.remove(run)
        elif run in self.waiting:
            self.waiting.remove(run)
        if run.seq is not None:
            self._store.close(run.seq)
            run.seq = None

    def add_fork(self, parent: Run, child: Run) -> None:
        """Let `child` run beside `parent`, on the same committed tokens."""
        assert parent.seq is not None
        child.seq = self._store.fork(parent.seq)
        self.running.append(child)

    def schedule(self) -> StepPlan:
        plan = StepPlan()
        budget = self._max_batch_tokens
        preempted = False
        for run in sorted(self.running, key=lambda r: r.prefilling):
            if run.seq is None or budget == 0:
                # Preempted a moment ago to make room for an earlier one, or nothing left to give.
                continue
            n = min(run.uncomputed, budget)
            if not self._reserve_or_preempt(run, n, plan):
                preempted = True
                continue
            n = min(run.uncomputed, budget)
            plan.work.append((run, n))
            budget -= n
        preempted = preempted or any(run.seq is None for run in self.running)
        self.running = [run for run in self.running if run.seq is not None]
        if not preempted:
            self._admit(plan, budget)
        return plan

    # Room for what runs

    def _reserve_or_preempt(self, run: Run, n: int, plan: StepPlan) -> bool:
        """Make room for `n` more tokens of `run`; the latest admitted makes way. False when that is `run` itself."""
        scheduled = {id(done) for done, _ in plan.work}
        while True:
            seq = run.seq
            assert seq is not None
            try:
                plan.copies += self._store.reserve(seq, n)
                return True
            except OutOfBlocks as error:
                if self._store.drop_partial(seq):
                    n = min(run.uncomputed, self._max_batch_tokens)
                    continue
                victim = next(
                    r for r in reversed(self.running) if r.seq is not None and (r is run or id(r) not in scheduled)
                )
                if victim is run and sum(r.seq is not None for r in self.running) == 1:
                    plan.impossible.append((run, error))
                    return False
                self._preempt(victim)
                if victim is run:
                    return False

    def _preempt(self, run: Run) -> None:
        """What is committed stays in the tree, so that the run finds it again unless it was evicted meanwhile."""
        assert run.seq is not None
        self._store.close(run.seq)
        run.seq = None
        run.request.preemptions += 1
        self._counters.preemptions += 1
        self.waiting.appendleft(run)

    # Room for what waits

    def _admit(self, plan: StepPlan, budget: int) -> None:
        postponed: list[Run] = []
        while self.waiting and budget > 0 and len(self.running) < self._max_running:
            run = self.waiting.popleft()
            if self._prefix_in_flight(run):
                postponed.append(run)
                continue
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
                copies = self._reserve_alone(seq, run) if not self.running else self._reserve_prompt(seq, run)
            except OutOfBlocks as error:
                self._store.close(seq)
                if self.running:
                    postponed.append(run)
                    break
                plan.impossible.append((run, error))
                continue
            if run.request.admitted is None and not job.bypass_cache:
                # While nothing of it is computed yet, and before it counts as running itself.
                run.request.verdict = self.explain(job)
            run.seq = seq
            plan.copies += copies
            self.running.append(run)
            n = min(run.uncomputed, budget)
            plan.work.append((run, n))
            budget -= n
            self._count_admission(run, seq, plan)
        self.waiting.extendleft(reversed(postponed))
        self._refresh_waiting()

    def _reserve_prompt(self, seq: Sequence, run: Run) -> list[Copy]:
        return self._store.reserve(seq, run.known - seq.length)

    def _reserve_alone(self, seq: Sequence, run: Run) -> list[Copy]:
        """With the pool to itself a run must fit, if need be without the copy of a partial block."""
        try:
            return self._reserve_prompt(seq, run)
        except OutOfBlocks:
            if not self._store.drop_partial(seq):
                raise
            return self._reserve_prompt(seq, run)

    def _count_admission(self, run: Run, seq: Sequence, plan: StepPlan) -> None:
        request = run.request
        if request.admitted is not None:
            return
        request.admitted = time.monotonic()
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

    def explain(self, job: GenerateJob) -> Verdict:
        """Say why each prompt token of `job` would hit or miss now."""
        return self._store.explain(
            job.tokens,
            job.namespace,
            public_tokens=job.public_tokens,
            in_flight=self._in_flight(job.tokens, job),
            across=self._explain_across,
        )

    def _prefix_in_flight(self, run: Run) -> bool:
        """Whether a running prefill is about to commit more of this run's prefix than the cache has now."""
        job = run.request.job
        if job.bypass_cache:
            return False
        reusable = run.tokens[:-1]
        in_flight = self._in_flight(reusable, job)
        return in_flight > 0 and in_flight > self._store.match(reusable, job.namespace, job.public_tokens)

    def _in_flight(self, tokens: NDArray[np.int32], job: GenerateJob) -> int:
        """Return how many leading tokens running prefills are going to commit that they have not committed yet."""
        longest = 0
        for other in self.running:
            theirs = other.request.job
            if other.seq is None or theirs.bypass_cache or theirs.namespace != job.namespace:
                continue
            # The prompt alone counts: what it decodes comes too slowly to wait for.
            if other.seq.length >= len(theirs.tokens):
                continue
            shared = common_prefix(theirs.tokens, tokens)
            if shared > other.seq.length:
                longest = max(longest, shared)
        return longest

    def _refresh_waiting(self) -> None:
        """Under pressure, keep what the head of the queue is going to need from looking old."""
        if self._store.free_blocks * 8 > self._store.num_blocks:
            return
        for _, run in zip(range(_REFRESHED_PREFIXES), self.waiting, strict=False):
            self._refresh(run)

    def _refresh(self, run: Run) -> None:
        if not run.request.job.bypass_cache:
            self._store.refresh(run.tokens, run.request.job.namespace)
