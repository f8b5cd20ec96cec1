"""A request that fits alone always runs, whatever is leased, held, forked, limited by a quota, paused or kept waiting
at the door, and in whatever order requests are served.

The runtime's scheduler drives the store; a forward pass that knows no model stands in for the engine. It writes into
every slot what the slot stands for, and reads back what a sequence would attend to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radix import LeaseRefused, Namespace, PrefixStore
from radix.eviction import POLICIES
from runtime.counters import EngineCounters
from runtime.request import GenerateJob, Request, Run
from runtime.sampling.sampling_params import SamplingParams
from runtime.scheduling.program_door import ProgramDoor
from runtime.scheduling.scheduler import Scheduler, StepPlan
from runtime.scheduling.scheduling_order import ORDERS

NAMESPACES = [Namespace(), Namespace(salt="a"), Namespace(salt="b")]
TRUNK = [0, 1, 2, 0, 1, 2, 0, 0, 1, 1, 2, 2, 0, 1, 0, 2, 1, 0, 2, 2, 1, 1, 0, 0]
_STEPS = 3000


@dataclass(frozen=True)
class Wanted:
    """A request, when it comes, and how many steps it sits still once its prompt is in."""

    prompt: tuple[int, ...]
    max_tokens: int
    namespace: Namespace
    bypass: bool
    public_tokens: int
    priority: int
    choices: int
    arrives: int
    pause: int
    program: str | None

    @property
    def needed(self) -> int:
        """Tokens whose KV must be there at once; that of the last output is never computed."""
        return len(self.prompt) + self.max_tokens - 1


@dataclass(frozen=True)
class Act:
    """Something that is done to the store before a step."""

    step: int
    kind: str
    prompt: int
    length: int
    value: int


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, ...]:
    shared = draw(st.integers(0, len(TRUNK)))
    return (*TRUNK[:shared], *draw(st.lists(st.integers(0, 2), min_size=1, max_size=8)))


WANTED = st.builds(
    Wanted,
    prompt=prompts(),
    max_tokens=st.integers(1, 6),
    namespace=st.sampled_from(NAMESPACES),
    bypass=st.sampled_from([False, False, False, True]),
    public_tokens=st.sampled_from([0, 0, 4, 20]),
    priority=st.integers(0, 2),
    choices=st.sampled_from([1, 1, 2, 3]),
    arrives=st.integers(0, 20),
    pause=st.sampled_from([0, 0, 1, 10, 40]),
    program=st.sampled_from([None, "a", "b", "c"]),
)
ACTS = st.builds(
    Act,
    step=st.integers(0, 40),
    kind=st.sampled_from(["lease", "release", "quota", "supersede", "evict"]),
    prompt=st.integers(0, 99),
    length=st.integers(1, 32),
    value=st.integers(0, 99),
)


class Loop:
    """The engine's loop over a pool that barely holds the largest request."""

    def __init__(
        self, wanted: list[Wanted], acts: list[Act], block_size: int, policy: str, data: st.DataObject
    ) -> None:
        self.wanted, self.acts, self.block_size = wanted, acts, block_size
        blocks = max(-(-each.needed // block_size) for each in wanted)
        self.now = 0
        capacity = blocks * block_size
        self.store = PrefixStore(
            blocks,
            block_size,
            policy,
            clock=self.clock,
            history_tokens=1000,
            leasable_share=data.draw(st.sampled_from([0.5, 1.0]), label="leasable share"),
        )
        self.scheduler = Scheduler(
            self.store,
            EngineCounters(),
            max_batch_tokens=data.draw(st.sampled_from([1, 5, 64]), label="batch"),
            max_running=data.draw(st.sampled_from([1, 2, 8]), label="running"),
            explain_across=False,
            order=data.draw(st.sampled_from(sorted(ORDERS)), label="order"),
            passes=data.draw(st.sampled_from([0, 1, 1000]), label="passes"),
            max_itl_s=data.draw(st.sampled_from([None, 0.01, 10.0]), label="longest step"),
            door=data.draw(st.sampled_from([None, ProgramDoor(capacity, self.clock, wait_s=100)]), label="door"),
            clock=self.clock,
        )
        self.slots: dict[tuple[int, int], int] = {}
        self.sits: dict[Request, int] = {}
        self.leases: list[int] = []
        self.unfinished: dict[Run, int] = {}

    def clock(self) -> float:
        return float(self.now)

    def run(self) -> None:
        arrivals = sorted(self.wanted, key=lambda each: each.arrives)
        for self.now in range(_STEPS):
            while arrivals and arrivals[0].arrives <= self.now:
                self.arrive(arrivals.pop(0))
            for act in self.acts:
                if act.step == self.now:
                    self.act(act)
            plan = self.scheduler.schedule()
            assert not plan.impossible, f"a request that fits alone was given up: {plan.impossible[0][1]}"
            self.forward(plan)
            self.scheduler.stepped(1.0)
            if not arrivals and not self.unfinished:
                break
        assert not self.unfinished, f"{len(self.unfinished)} runs had not ended after {_STEPS} steps"
        self.store.check()
        assert self.store.stats().active_blocks == 0

    def arrive(self, wanted: Wanted) -> None:
        job = GenerateJob(
            "",
            np.array(wanted.prompt, dtype=np.int32),
            wanted.namespace,
            SamplingParams(n=wanted.choices),
            bypass_cache=wanted.bypass,
            public_tokens=wanted.public_tokens,
            priority=wanted.priority,
            program=wanted.program,
        )
        request = Request(job, wanted.max_tokens, lambda events: None)
        self.sits[request] = wanted.pause
        self.scheduler.enqueue(self.begin(request, 0))

    def begin(self, request: Request, choice: int) -> Run:
        run = Run(request, None, None)  # type: ignore[arg-type]
        request.runs.append(run)
        self.unfinished[run] = choice
        return run

    def act(self, act: Act) -> None:
        chosen = self.wanted[act.prompt % len(self.wanted)]
        retention, tokens = self.store.retention, chosen.prompt[: act.length]
        if act.kind == "lease":
            try:
                lease, _ = retention.lease(tokens, chosen.namespace, ttl_s=1 + 100 * act.value, priority=act.value)
            except LeaseRefused:
                return
            self.leases.append(lease.id)
        elif act.kind == "release":
            live = [lease.id for lease in retention.leases if lease.expires > self.now]
            if live:
                retention.release(live[act.value % len(live)])
        elif act.kind == "quota":
            retention.set_quota(chosen.namespace, (None, 0.1, 0.5, 1.0)[act.value % 4])
        elif act.kind == "supersede":
            retention.supersede(tokens, chosen.namespace, act.value % 8)
        else:
            self.store.evict(1 + act.value % 4)

    def forward(self, plan: StepPlan) -> None:
        for copy in plan.copies:
            for slot in range(copy.tokens):
                self.slots[copy.dst, slot] = self.slots[copy.src, slot]
        for run, n in plan.work:
            seq = run.seq
            if seq is None or self.sits_still(run):
                continue
            for pos, meaning in enumerate(self.meanings(run, seq.length + n)):
                place = int(seq.table[pos // self.block_size]), pos % self.block_size
                if pos >= seq.length:
                    self.slots[place] = meaning
                assert self.slots.get(place) == meaning, "a sequence reads what it did not write"
            self.store.commit(seq, run.tokens[seq.length : seq.length + n])
            if run.uncomputed == 0:
                for done in self.forked(run):
                    self.sample(done)

    def sits_still(self, run: Run) -> bool:
        """Whether the run holds what it has and does nothing in this step."""
        left = self.sits[run.request]
        if run.prefilling or left == 0:
            return False
        self.sits[run.request] = left - 1
        return True

    def meanings(self, run: Run, end: int) -> Iterator[int]:
        meaning = 0
        for token in run.tokens[:end].tolist():
            meaning = hash((meaning, token))
            yield meaning

    def forked(self, run: Run) -> list[Run]:
        request = run.request
        if run.known > request.prompt_tokens or len(request.runs) > 1:
            return [run]
        children = [self.begin(request, choice) for choice in range(1, request.job.sampling.n)]
        for child in children:
            self.scheduler.add_fork(run, child)
        return [run, *children]

    def sample(self, run: Run) -> None:
        run.append((self.unfinished[run] + run.known) % 3)
        if run.known == run.request.prompt_tokens + run.request.max_tokens:
            self.scheduler.remove(run)
            del self.unfinished[run]


MIX = given(
    wanted=st.lists(WANTED, min_size=1, max_size=8),
    acts=st.lists(ACTS, max_size=12),
    block_size=st.sampled_from([1, 2, 4, 16]),
    policy=st.sampled_from(sorted(POLICIES)),
    data=st.data(),
)
QUIET = list(HealthCheck)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=QUIET)
@MIX
def test_every_request_that_fits_alone_runs(
    wanted: list[Wanted], acts: list[Act], block_size: int, policy: str, data: st.DataObject
) -> None:
    Loop(wanted, acts, block_size, policy, data).run()


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@settings(max_examples=10_000, deadline=None, suppress_health_check=QUIET)
@MIX
def test_every_request_that_fits_alone_runs_ten_thousand_times(
    wanted: list[Wanted], acts: list[Act], block_size: int, policy: str, data: st.DataObject
) -> None:
    Loop(wanted, acts, block_size, policy, data).run()


def test_a_sequence_in_two_trees_makes_do_with_one_copy() -> None:
    """The public tree has the token already, and the private one the sequence's own: only one of them is read."""
    store = PrefixStore(2, 1)
    shared = store.open([0], Namespace())
    store.reserve(shared, 1)
    store.commit(shared, [0])
    store.close(shared)
    seq = store.open([0], Namespace(salt="a"), public_tokens=4)
    store.reserve(seq, 1)
    store.commit(seq, [0])
    assert store.stats().free_blocks == 0
    store.reserve(seq, 1)
    store.commit(seq, [7])
    store.check()
    store.close(seq)
    store.check()


def test_room_that_was_promised_is_there_when_branches_end_in_the_block_of_a_reader() -> None:
    """Three blocks, two branches off a path that a third sequence reads inside its last block."""
    store = PrefixStore(3, 16)
    for path in ([2, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1, *[0] * 11]):
        seq = store.open(path)
        store.reserve(seq, len(path) - seq.length)
        store.check()
        store.commit(seq, path[seq.length :])
        store.close(seq)
        store.check()
    assert store.match([2, 0, 0, 0, 0, 1, *[0] * 11]) == 17


def test_a_node_merges_with_its_only_child_when_the_reader_between_them_leaves() -> None:
    store = PrefixStore(8, 16)
    for path in ([1, 1, 1, 2], [1, 1, 1, 3], [1, 1, 1, 5]):
        seq = store.open(path)
        store.reserve(seq, len(path) - seq.length)
        store.commit(seq, path[seq.length :])
        store.close(seq)
    reader = store.open([1, 1, 1, 4])
    assert reader.length == 3
    assert store.evict(1) == 1
    assert store.stats().nodes == 2
    store.close(reader)
    assert store.stats().nodes == 1
    store.check()


def test_the_lower_half_of_a_node_that_waited_to_merge_does_so_when_it_is_split() -> None:
    store = PrefixStore(8, 16)
    for path in ([1, 1, 1, 2], [1, 1, 1, 3], [1, 1, 1, 5]):
        seq = store.open(path)
        store.reserve(seq, len(path) - seq.length)
        store.commit(seq, path[seq.length :])
        store.close(seq)
    reader = store.open([1, 1, 9])
    store.evict(1)
    store.reserve(reader, 1)
    store.commit(reader, [9])
    store.check()
    assert store.stats().nodes == 3
    store.close(reader)
