"""Who is served first, how long others may be passed, and what a long queue costs a step."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

from radix import Namespace, PrefixStore
from runtime.counters import EngineCounters
from runtime.request import GenerateJob, Request, Run
from runtime.scheduling.programs import Programs
from runtime.scheduling.scheduler import Scheduler
from runtime.scheduling.scheduling_order import ORDERS

SPACE = Namespace()


class Bench:
    """A scheduler and a store; every run ends with its prompt."""

    def __init__(self, order: str, num_blocks: int = 4096, **config: Any) -> None:
        self.store = PrefixStore(num_blocks, 16, history_tokens=10_000)
        settings = {"max_batch_tokens": 100, "max_running": 64, "explain_across": False, **config}
        self.scheduler = Scheduler(self.store, EngineCounters(), order=order, **settings)
        # In the order in which their prompts were done.
        self.done: list[Run] = []

    def arrive(self, tokens: list[int], *, program: Hashable | None = None, priority: int = 0) -> Run:
        job = GenerateJob("", np.array(tokens, np.int32), SPACE, priority=priority, program=program)
        request = Request(job, 1, lambda events: None)
        run = Run(request, None, None)  # type: ignore[arg-type]
        request.runs.append(run)
        self.scheduler.enqueue(run)
        return run

    def step(self) -> list[Run]:
        """Return the runs that were served."""
        plan = self.scheduler.schedule()
        assert not plan.impossible
        for run, n in plan.work:
            assert run.seq is not None
            self.store.commit(run.seq, run.tokens[run.seq.length : run.seq.length + n])
            if run.uncomputed == 0:
                self.scheduler.remove(run)
                self.done.append(run)
        return [run for run, _ in plan.work]

    def cache(self, tokens: list[int]) -> None:
        seq = self.store.open(tokens)
        self.store.reserve(seq, len(tokens) - seq.length)
        self.store.commit(seq, tokens[seq.length :])
        self.store.close(seq)


def fresh(seed: int, length: int = 100) -> list[int]:
    return [*range(1000 * seed, 1000 * seed + length)]


def test_fcfs_is_first_come_first_served() -> None:
    bench = Bench("fcfs")
    runs = [bench.arrive(fresh(i, 150), priority=i) for i in range(4)]
    for _ in range(6):
        bench.step()
    assert bench.done == runs


def test_lpm_serves_the_longest_cached_prefix_first() -> None:
    bench = Bench("lpm")
    for seed, length in ((2, 40), (3, 80)):
        bench.cache(fresh(seed, length))
    runs = [bench.arrive(fresh(seed, length + 100)) for seed, length in ((1, 0), (2, 40), (3, 80))]
    for _ in range(3):
        bench.step()
    assert bench.done == [runs[2], runs[1], runs[0]]


def test_lpm_sees_what_was_cached_while_a_run_waited() -> None:
    bench = Bench("lpm")
    runs = [bench.arrive(fresh(seed, 200)) for seed in (1, 2)]
    bench.cache(fresh(2, 190))
    assert bench.step()[0] is runs[1]


def test_the_highest_priority_goes_first() -> None:
    bench = Bench("priority")
    runs = [bench.arrive(fresh(i), priority=priority) for i, priority in enumerate((0, 5, 5, 9))]
    for _ in range(4):
        bench.step()
    assert bench.done == [runs[3], runs[1], runs[2], runs[0]]


def test_a_short_loop_is_not_stuck_behind_a_long_one() -> None:
    bench = Bench("program", max_batch_tokens=10_000)
    bench.arrive(fresh(1, 9000), program="long")
    bench.step()
    late = bench.arrive([*fresh(1, 9000), *fresh(20, 9000)], program="long")
    short = bench.arrive(fresh(40), program="short")
    assert bench.step()[0] is short
    assert late in bench.done or late.seq is not None


def test_of_programs_with_like_service_the_one_that_came_first_is_finished_first() -> None:
    bench = Bench("program")
    for name in ("first", "second"):
        bench.arrive(fresh(1 if name == "first" else 2), program=name)
        bench.step()
    second = bench.arrive(fresh(3), program="second")
    first = bench.arrive(fresh(4), program="first")
    bench.step()
    bench.step()
    assert bench.done[2:] == [first, second]


def test_a_call_that_names_no_program_attained_what_is_cached_of_it() -> None:
    bench = Bench("program", max_batch_tokens=100)
    bench.cache(fresh(1, 9000))
    old = bench.arrive([*fresh(1, 9000), *fresh(30)])
    new = bench.arrive(fresh(40))
    bench.step()
    assert bench.done == [new]
    bench.step()
    assert bench.done == [new, old]


def lucky(bench: Bench, order: str, number: int) -> Run:
    """A run that goes before an unlucky one in every order but fcfs."""
    trunk = fresh(500, 64)
    return bench.arrive([*trunk, *fresh(1000 + number, 100)], priority=1, program=f"lucky {number}")


def unlucky(bench: Bench, number: int) -> Run:
    return bench.arrive(fresh(2000 + 10 * number, 100), program="long loop")


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize("passes", [0, 1, 3])
def test_nobody_is_passed_more_often_than_the_bound_says(order: str, passes: int) -> None:
    """Ten unlucky runs among lucky ones that never end: each has its turn within (passes + 1) times its place."""
    bench = crowded(order, passes)
    waiting = [unlucky(bench, number) for number in range(10)]
    for turn in range(1, (passes + 1) * 10 + 1):
        lucky(bench, order, 2 * turn)
        lucky(bench, order, 2 * turn + 1)
        assert len(bench.step()) == 1
        assert all(run in bench.done for run in waiting[: turn // (passes + 1)])
    assert [run for run in bench.done if run in waiting] == waiting


@pytest.mark.parametrize("order", sorted(set(ORDERS) - {"fcfs"}))
def test_without_the_bound_the_unlucky_wait_for_good(order: str) -> None:
    bench = crowded(order, passes=10**9)
    run = unlucky(bench, 0)
    for turn in range(50):
        lucky(bench, order, turn)
        bench.step()
    assert run not in bench.done


def crowded(order: str, passes: int) -> Bench:
    """A bench on which a step serves one run, a lucky one where there is one."""
    bench = Bench(order, passes=passes)
    bench.cache(fresh(500, 64))
    bench.arrive(fresh(1, 1), program="long loop").place.program.attained = 100_000  # type: ignore[union-attr]
    bench.step()
    return bench


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_a_long_queue_costs_a_step_next_to_no_lookups(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """256 long prompts wait, for room or for a prefill: what a step asks the cache does not grow with them."""
    bench = Bench(order, num_blocks=400, max_batch_tokens=64)
    bench.arrive(fresh(1, 5000))
    for number in range(128):
        bench.arrive([*fresh(1, 4000), *fresh(100 + number, 1000)])
        bench.arrive(fresh(300 + 10 * number, 5000))
    bench.step()
    asked = []
    match = bench.store.match
    monkeypatch.setattr(bench.store, "match", lambda *args: asked.append(args) or match(*args))
    opened = []
    open_ = bench.store.open
    monkeypatch.setattr(bench.store, "open", lambda *args, **more: opened.append(args) or open_(*args, **more))
    for _ in range(10):
        bench.step()
    assert len(bench.scheduler.waiting) >= 255
    assert len(opened) <= 1
    # Each follower asks once, when it first finds who computes its prefix.
    assert len(asked) <= 128 + 10 * 5


def test_whoever_computes_a_prefix_is_served_in_the_place_of_those_that_wait_for_it() -> None:
    bench = Bench("priority", max_batch_tokens=50)
    leader = bench.arrive(fresh(1, 200))
    bench.step()
    bench.arrive(fresh(2, 200), priority=5)
    bench.arrive([*fresh(1, 200), 7], priority=9)
    assert bench.step() == [leader]


def test_the_program_that_called_least_recently_is_forgotten() -> None:
    programs = Programs(limit=2)
    first, second = programs.called("a", 0), programs.called("b", 1)
    first.attained = 7
    assert programs.called("a", 2) is first
    programs.called("c", 3)
    assert programs.called("a", 4) is first
    assert programs.called("b", 5) is not second
