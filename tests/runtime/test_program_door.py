"""Programs that need more than the pool: who is held back, for how long, and what it saves. In virtual time."""

from __future__ import annotations

import numpy as np
import pytest

from radix import Namespace
from runtime.errors import RequestCancelled
from runtime.models.loaded_model import LoadedModel
from runtime.request import GenerateJob, Request, Run
from runtime.scheduling import program_door
from runtime.scheduling.loop_simulation import LoopSimulation, Outcome, working_set
from runtime.scheduling.loop_traces import Loop, LoopCall
from runtime.scheduling.program_door import ProgramDoor
from runtime.scheduling.scheduler import Scheduler
from runtime.scheduling.step_time import StepCost
from tests.runtime.engine_harness import running
from tests.runtime.test_engine import prompt

COST = StepCost(step=0.02, row=0.005, context_token=1e-6, prompt_token=1.2e-3, prompt_pair=1e-7)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def call(program: str | None, tokens: int, *, ends: bool = False) -> Run:
    job = GenerateJob("", np.zeros(tokens, np.int32), Namespace(), program=program, ends_program=ends)
    return Run(Request(job, 1, lambda events: None), None, None)  # type: ignore[arg-type]


def door_of(clock: Clock) -> ProgramDoor:
    """Room for 700 tokens."""
    return ProgramDoor(1000, clock, wait_s=10.0)


def arrive(door: ProgramDoor, program: str | None, tokens: int) -> Run:
    run = call(program, tokens)
    door.arrived(run)
    return run


def test_those_that_came_last_are_held_back() -> None:
    door = door_of(Clock())
    runs = [arrive(door, name, 300) for name in "abc"]
    assert [door.holds_back(run) for run in runs] == [False, False, True]
    assert not door.holds_back(call(None, 10_000))


def test_a_program_that_is_over_gives_its_room_away() -> None:
    door = door_of(Clock())
    first, second, third = (arrive(door, name, 300) for name in "abc")
    door.ended("a")
    assert door.holds_back(third)
    door.left(first)
    assert not door.holds_back(third)
    door.left(second)
    late = arrive(door, "d", 300)
    assert door.holds_back(late)
    door.ended("b")
    door.ended("nobody")
    assert not door.holds_back(late)


def test_of_too_many_programs_the_one_that_is_idle_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_door, "MAX_CLAIMS", 3)
    clock = Clock()
    door = door_of(clock)
    for name in "abc":
        clock.now += 1
        door.left(arrive(door, name, 300))
    latest = arrive(door, "d", 300)
    assert door.holds_back(latest)
    # Forgotten, the first is the last in line now, and the second makes place for it.
    again = arrive(door, "a", 300)
    assert [door.holds_back(latest), door.holds_back(again)] == [False, True]


def test_what_others_had_cached_is_not_charged_again() -> None:
    door = door_of(Clock())
    for name in "ab":
        door.admitted(arrive(door, name, 300), cached=200)
    assert not door.holds_back(arrive(door, "c", 300))


def test_a_program_that_grew_waits_at_its_next_call_and_not_within_one() -> None:
    door = door_of(Clock())
    first, second = arrive(door, "a", 300), arrive(door, "b", 300)
    for run in (first, second):
        door.admitted(run, cached=0)
    grown = arrive(door, "b", 600)
    assert door.holds_back(grown)
    assert not door.holds_back(second)
    door.left(first)
    assert door.holds_back(grown), "a program between two calls keeps its claim"


def test_a_claim_lapses_when_its_program_stays_away_for_longer_than_others_do() -> None:
    clock = Clock()
    door = door_of(clock)
    first = arrive(door, "a", 600)
    door.admitted(first, cached=0)
    for _ in range(20):
        door.left(first)
        clock.now += 2.0
        first = arrive(door, "a", 600)
        door.admitted(first, cached=0)
    door.left(first)
    late = arrive(door, "b", 600)
    clock.now += 1.9
    assert door.holds_back(late)
    clock.now += 0.6
    assert not door.holds_back(late)


def test_a_program_that_says_that_it_ends_leaves_its_room() -> None:
    door = door_of(Clock())
    first, last = arrive(door, "a", 500), call("a", 510, ends=True)
    door.left(first)
    door.arrived(last)
    other = arrive(door, "b", 500)
    assert door.holds_back(other)
    door.left(last)
    assert not door.holds_back(other)
    door.left(last)


def test_ending_twice_and_ending_unknown_runs_is_fine() -> None:
    door = door_of(Clock())
    run = arrive(door, "a", 600)
    for _ in range(2):
        door.left(run)
    door.left(call("b", 10))
    assert not door.holds_back(arrive(door, "a", 600))


def test_whoever_waited_long_enough_is_let_in_one_at_a_time() -> None:
    clock = Clock()
    door = door_of(clock)
    door.admitted(arrive(door, "a", 600), cached=0)
    late = [arrive(door, name, 600) for name in "bcd"]
    let_in = []
    for clock.now in range(1, 41):  # type: ignore[assignment]
        for run in late:
            if run not in let_in and not door.holds_back(run):
                let_in.append(run)
                door.admitted(run, cached=0)
                assert clock.now == 10 * len(let_in)
    assert let_in == late


def loops(number: int) -> list[Loop]:
    """Loops of ten calls on a trunk of 200 tokens, each call 100 tokens longer."""
    made = []
    for loop in range(number):
        tokens = np.concatenate([np.arange(200), 10_000 * (loop + 1) + np.arange(1000)]).astype(np.int32)
        made.append(
            [LoopCall(tokens[: 300 + 100 * i], 1, 300 + 100 * i, np.full(5, 3, np.int32), 1.0) for i in range(9)]
        )
    return made


def simulate(number: int, blocks: int, wait_s: float | None) -> Outcome:
    def scheduler(store: object, counters: object, clock: object) -> Scheduler:
        door = None if wait_s is None else ProgramDoor(blocks * 16, clock, wait_s=wait_s)  # type: ignore[arg-type]
        return Scheduler(
            store,  # type: ignore[arg-type]
            counters,  # type: ignore[arg-type]
            max_batch_tokens=512,
            max_running=32,
            explain_across=False,
            door=door,
            clock=clock,  # type: ignore[arg-type]
        )

    return LoopSimulation(
        loops(number), [0.0] * number, COST, num_blocks=blocks, block_size=16, scheduler=scheduler
    ).run()


def test_a_quarter_of_the_working_set_is_enough_for_those_that_are_in() -> None:
    blocks = working_set(loops(24), 16) // 4
    plain, held = simulate(24, blocks, None), simulate(24, blocks, 120.0)
    assert held.hit_rate > plain.hit_rate + 0.3
    assert held.counters.computed_tokens < plain.counters.computed_tokens / 2
    assert held.wall_s < plain.wall_s


def test_every_call_is_served_however_small_the_pool() -> None:
    largest = max(len(loop[-1].prompt) + len(loop[-1].output) for loop in loops(1))
    for wait_s in (0.5, 1e6):
        outcome = simulate(12, largest // 16 + 1, wait_s)
        assert len(outcome.call_s) == 12 * 9


def test_held_back_calls_can_be_cancelled_and_the_others_write_the_same(tiny: LoadedModel) -> None:
    with running(tiny) as roomy:
        expected = [roomy.run(prompt(120, i), max_tokens=20).tokens for i in range(5)]
    with running(tiny, num_blocks=20, hold_back_s=600.0) as tight:
        replies = [tight.submit(prompt(120, i), max_tokens=20, program=f"p{i}") for i in range(5)]
        held = tight.submit(prompt(120, 5), max_tokens=20, program="p5")
        assert held.handle is not None
        held.handle.cancel()
        assert isinstance(held.wait().error, RequestCancelled)
        assert [reply.tokens for reply in replies] == expected
