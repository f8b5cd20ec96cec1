"""Agent loops in virtual time: the engine's scheduler and prefix store, with a formula in place of the model."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from radix import Namespace, PrefixStore
from runtime.counters import EngineCounters
from runtime.request import GenerateJob, Request, Run
from runtime.scheduling.loop_traces import Loop
from runtime.scheduling.scheduler import Scheduler, StepPlan
from runtime.scheduling.step_time import StepCost, StepShape


@dataclass
class Outcome:
    """What came of a simulation; seconds of virtual time.

    Attributes:
        loop_s: of each loop, from its arrival to the end of its last call, pauses included.
        call_s, ttft_s: of each call, from its arrival to its end and to its first token.
        itl_s: time between two tokens of a call.
        wall_s: until everything had ended.
    """

    loop_s: list[float] = field(default_factory=list)
    call_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    steps: int = 0
    counters: EngineCounters = field(default_factory=EngineCounters)

    @property
    def hit_rate(self) -> float:
        return self.counters.hit_tokens / max(1, self.counters.lookup_tokens)


def arrivals(loops: int, mean_gap_s: float) -> list[float]:
    """When each loop begins: a Poisson process, the same at every call; all at once where the mean gap is 0."""
    drawn = random.Random(1)
    times, now = [], 0.0
    for _ in range(loops):
        times.append(now)
        now += drawn.expovariate(1 / mean_gap_s) if mean_gap_s else 0.0
    return times


class LoopSimulation:
    """Runs loops to their end against one scheduler.

    Args:
        scheduler: makes the scheduler, given the store, the counters and the virtual clock.
    """

    def __init__(
        self,
        loops: list[Loop],
        begins: list[float],
        cost: StepCost,
        *,
        num_blocks: int,
        block_size: int,
        scheduler: Callable[[PrefixStore, EngineCounters, Callable[[], float]], Scheduler],
    ) -> None:
        self.outcome = Outcome()
        self._loops = loops
        self._begins = begins
        self._cost = cost
        self._now = 0.0
        self._store = PrefixStore(
            num_blocks, block_size, clock=self._clock, history_tokens=num_blocks * block_size, leasable_share=0.5
        )
        self._scheduler = scheduler(self._store, self.outcome.counters, self._clock)
        # Calls to come: when, of which loop, and the how manieth of it.
        self._calls = [(at, loop, 0) for loop, at in enumerate(begins)]
        heapq.heapify(self._calls)
        self._running: dict[Run, tuple[int, int]] = {}

    def _clock(self) -> float:
        return self._now

    def run(self) -> Outcome:
        while self._calls or self._running:
            if not self._running:
                self._now = max(self._now, self._calls[0][0])
            while self._calls and self._calls[0][0] <= self._now:
                _, loop, index = heapq.heappop(self._calls)
                self._submit(loop, index)
            self._step()
        self.outcome.wall_s = self._now
        return self.outcome

    def _submit(self, loop: int, index: int) -> None:
        call = self._loops[loop][index]
        job = GenerateJob("", call.prompt, Namespace(), program=loop)
        request = Request(job, len(call.output), lambda events: None)
        request.arrived = self._now
        run = Run(request, None, None)  # type: ignore[arg-type]
        request.runs.append(run)
        self._running[run] = loop, index
        self._scheduler.enqueue(run)

    def _step(self) -> None:
        plan = self._scheduler.schedule()
        if plan.impossible:
            raise plan.impossible[0][1]
        if not plan.work:
            # Everybody waits for something that time alone brings.
            self._now += self._cost.step
            return
        seconds = self._cost.seconds(StepShape.of(plan.work))
        self._now += seconds
        self.outcome.steps += 1
        self._scheduler.stepped(seconds)
        self._commit(plan)

    def _commit(self, plan: StepPlan) -> None:
        for run, n in plan.work:
            seq, request = run.seq, run.request
            if seq is None:
                continue
            of_prompt = max(0, min(seq.length + n, request.prompt_tokens) - seq.length)
            tokens = run.tokens[seq.length : seq.length + n]
            self._store.commit(seq, tokens[:of_prompt])
            self._store.commit(seq, tokens[of_prompt:], output=True)
            self.outcome.counters.computed_tokens += of_prompt
            if run.uncomputed == 0:
                self._write_token(run)

    def _write_token(self, run: Run) -> None:
        loop, index = self._running[run]
        output = self._loops[loop][index].output
        written = run.known - run.request.prompt_tokens
        if written == 0:
            self.outcome.ttft_s.append(self._now - run.request.arrived)
        elif run.last_token_at is not None:
            self.outcome.itl_s.append(self._now - run.last_token_at)
        run.last_token_at = self._now
        run.append(int(output[written]))
        if written + 1 == len(output):
            self._end(run, loop, index)

    def _end(self, run: Run, loop: int, index: int) -> None:
        self._scheduler.remove(run)
        del self._running[run]
        self.outcome.call_s.append(self._now - run.request.arrived)
        following = index + 1
        if following < len(self._loops[loop]):
            heapq.heappush(self._calls, (self._now + self._loops[loop][following].pause_s, loop, following))
        else:
            self.outcome.loop_s.append(self._now - self._begins[loop])


def working_set(loops: list[Loop], block_size: int) -> int:
    """Blocks that hold everything the loops send and write, prefixes that they share once."""
    store = PrefixStore(2**22, block_size)
    for loop in loops:
        for call in loop:
            whole = np.concatenate([call.prompt, call.output[:-1]])
            seq = store.open(whole)
            store.reserve(seq, len(whole) - seq.length)
            store.commit(seq, whole[seq.length :])
            store.close(seq)
    return store.stats().cached_blocks
