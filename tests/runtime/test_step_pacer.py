"""Chunks of prompts that leave room for what decodes, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.scheduling.loop_simulation import LoopSimulation, Outcome
from runtime.scheduling.loop_traces import LoopCall
from runtime.scheduling.scheduler import Scheduler
from runtime.scheduling.step_pacer import MIN_PROMPT_TOKENS, StepPacer
from runtime.scheduling.step_time import StepCost, StepShape, prompt_pairs

COST = StepCost(step=0.02, row=0.005, context_token=1e-6, prompt_token=1.2e-3, prompt_pair=1e-7)


def call(prompt: int, output: int, first: int) -> list[LoopCall]:
    tokens = np.arange(first, first + prompt, dtype=np.int32)
    return [LoopCall(tokens, 1, prompt, np.full(output, 7, np.int32), 0.0)]


def simulate(max_itl_s: float | None, cost: StepCost = COST) -> Outcome:
    """Four streams write 400 tokens each; after 2 s a prompt of 6,000 tokens comes."""
    loops = [*(call(100, 400, 1000 * i) for i in range(4)), call(6000, 2, 100_000)]
    return LoopSimulation(
        loops,
        [0.0, 0.0, 0.0, 0.0, 2.0],
        cost,
        num_blocks=1000,
        block_size=16,
        scheduler=lambda store, counters, clock: Scheduler(
            store,
            counters,
            max_batch_tokens=512,
            max_running=8,
            explain_across=False,
            max_itl_s=max_itl_s,
            clock=clock,
        ),
    ).run()


def test_a_long_prompt_leaves_the_gaps_between_tokens_within_the_bound() -> None:
    free = np.array(simulate(None).itl_s)
    paced = np.array(simulate(0.15).itl_s)
    assert free.max() > 0.6
    # The first chunks are cut by what was guessed before anything was measured.
    assert np.percentile(paced, 99) <= 0.15
    assert paced.max() <= 0.3


def test_the_bound_is_used_and_not_only_kept() -> None:
    outcome = simulate(0.15)
    # The prompt alone takes 7.2 s of the machine, and its steps are at most half decoding.
    assert max(outcome.ttft_s) < 2 * 9.0


def test_a_prompt_goes_on_where_decoding_alone_breaks_the_bound() -> None:
    outcome = simulate(0.01)
    assert len(outcome.ttft_s) == 5
    assert max(outcome.itl_s) <= 0.02 + 4 * 0.005 + 0.01 + MIN_PROMPT_TOKENS * 2e-3


def test_it_follows_a_machine_that_slows_down() -> None:
    pacer = StepPacer(0.2)
    shape = StepShape(rows=4, context=8000, prompt_tokens=100, prompt_pairs=200_000)
    alone = StepShape(rows=4, context=8000)
    chunks = []
    for slower in (1.0, 2.0):
        for _ in range(200):
            pacer.stepped(alone, slower * COST.seconds(alone))
            pacer.stepped(shape, slower * COST.seconds(shape))
        room = pacer.begin(alone)
        assert room is not None
        chunk = room.fits(2000)
        taken = StepShape(4, 8000, chunk, chunk * 2000 + chunk * chunk // 2)
        # Without noise hardly anything is left unused.
        assert slower * COST.seconds(taken) == pytest.approx(0.2, rel=0.1)
        chunks.append(chunk)
    assert chunks[1] < chunks[0] / 2


def paced_steps(seconds_of: Callable[[int, StepShape], float], steps: int = 400) -> NDArray[np.float64]:
    """What steps take beside four rows that decode while prompts of 6,000 tokens follow each other."""
    pacer, start, taken = StepPacer(0.25), 0, []
    for step in range(steps):
        alone = StepShape(rows=4, context=8000)
        if step % 80 < 10:
            pacer.stepped(alone, seconds_of(step, alone))
            continue
        room = pacer.begin(alone)
        assert room is not None
        n = min(512, room.fits(start), 6000 - start)
        shape = StepShape(4, 8000, n, prompt_pairs(start, n))
        seconds = seconds_of(step, shape)
        pacer.stepped(shape, seconds)
        start = (start + n) % 6000
        taken.append(seconds)
    return np.array(taken)


def test_a_machine_whose_pace_changes_keeps_the_bound() -> None:
    random = np.random.default_rng(3)
    noise = np.exp(random.normal(0, 0.08, 400))
    # Others take the machine for some tens of steps, now and then.
    pace = np.where(np.arange(400) // 40 % 3 == 2, 1.4, 1.0)
    taken = paced_steps(lambda step, shape: COST.seconds(shape) * noise[step] * pace[step])
    assert np.percentile(taken, 95) <= 0.25 * 1.05
    # It does so without leaving the machine idle.
    assert np.median(taken) >= 0.25 * 0.75


def test_what_a_formula_does_not_know_keeps_the_bound_too() -> None:
    # Draft rows and matrix products of another shape: a cost that grows with the chunk as no chunk before.
    taken = paced_steps(lambda step, shape: COST.seconds(shape) + 6e-6 * max(0, shape.prompt_tokens - 64) ** 1.8)
    assert np.percentile(taken, 95) <= 0.25 * 1.05


def test_what_drafts_cost_is_told_from_what_contexts_cost() -> None:
    """Streams draft 24 rows in most steps and hardly any beside a prompt, while their contexts grow."""
    random, pacer, draft_row_s = np.random.default_rng(5), StepPacer(0.25), 2e-3
    for step in range(300):
        drafted = 0 if step % 4 == 0 else int(random.integers(16, 32))
        shape = StepShape(rows=4, context=400 + 20 * step, draft_rows=drafted)
        pacer.stepped(shape, COST.seconds(shape) + draft_row_s * drafted)
    for _ in range(40):
        shape = StepShape(4, 6400, 100, prompt_pairs(2000, 100))
        pacer.stepped(shape, COST.seconds(shape))
    room = pacer.begin(StepShape(rows=4, context=6400))
    assert room is not None
    n = room.fits(2000)
    # 50 ms of drafts are not expected of a step that has none.
    assert 0.85 * 0.25 < COST.seconds(StepShape(4, 6400, n, prompt_pairs(2000, n))) <= 0.25


def test_the_first_chunk_leaves_room_for_the_drafts_of_the_steps_before_it() -> None:
    pacer, draft_row_s = StepPacer(0.25), 1e-3
    for step in range(100):
        shape = StepShape(rows=4, context=400 + 20 * step, draft_rows=60 if step % 4 else 0)
        pacer.stepped(shape, COST.seconds(shape) + draft_row_s * shape.draft_rows)
    room = pacer.begin(StepShape(rows=4, context=2400))
    assert room is not None
    n = room.fits(0)
    assert COST.seconds(StepShape(4, 2400, n, prompt_pairs(0, n))) + 60 * draft_row_s <= 0.25


def test_prompts_have_the_step_to_themselves_where_nothing_decodes() -> None:
    assert StepPacer(0.001).begin(StepShape()) is None
