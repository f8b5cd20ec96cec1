"""The choice of draft lengths, in a simulated world whose costs and odds are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from runtime.drafting.draft_control import DraftControl, RunRecord
from runtime.drafting.drafts import Draft, DraftSource
from runtime.scheduling.step_costs import StepCosts

LENGTH = 8
Curve = Callable[[int, int], float]


def draft(matched: int = 3) -> Draft:
    return Draft(np.arange(LENGTH, dtype=np.int32), DraftSource.LOOKUP, matched)


def cpu(batch: int, extra: int) -> float:
    """Step milliseconds of a small model on a CPU: a jump from one row to two, then slowly more."""
    rows = batch + extra
    return 25 + 6 * (rows > 1) + 0.8 * rows


def gpu(batch: int, extra: int) -> float:
    return 10 + 0.01 * (batch + extra)


def steep(batch: int, extra: int) -> float:
    return 5 + 5 * (batch + extra)


def pace(
    control: DraftControl | None,
    curve: Curve,
    odds: float,
    batch: int,
    steps: int,
    fixed: int = 0,
    found: float = 0.5,
) -> float:
    """Milliseconds a token, where each of `batch` sequences has a draft in a share of `found` of the steps."""
    random, sky = np.random.default_rng(1), np.random.default_rng(1)
    records = [RunRecord(greedy=True) for _ in range(batch)]
    tokens, ms = 0, 0.0
    for step in range(steps):
        # The contexts grow, other work comes and goes, and now and then something holds a step up.
        weather = (1 + step / steps) * sky.uniform(0.95, 1.05) * (3 if sky.random() < 0.01 else 1)
        drafts = [(record, draft()) for record in records if random.random() < found]
        lengths = [fixed] * len(drafts) if control is None else control.lengths(drafts, batch, room=batch * LENGTH)
        extra = sum(lengths)
        for (record, one), length in zip(drafts, lengths, strict=True):
            held = int(np.argmin(np.append(random.random(length) < odds, False)))
            tokens += held
            if control is not None and length:
                control.verified(record, one, min(length, held + 1), held)
        tokens += batch
        seconds = curve(batch, extra) * weather
        ms += seconds
        if control is not None:
            control.costs.decoded("all", batch, extra, seconds / 1000)
    return ms / tokens


@pytest.mark.parametrize("curve", [cpu, gpu, steep])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("odds", [0.0, 0.5, 0.9])
def test_it_is_close_to_the_best_fixed_length_and_never_slower_than_none(curve: Curve, batch: int, odds: float) -> None:
    adaptive = pace(DraftControl(), curve, odds, batch, 1000)
    fixed = [pace(None, curve, odds, batch, 1000, fixed=k) for k in (0, 1, 3, LENGTH)]
    assert adaptive < fixed[0] * 1.01
    assert adaptive < min(fixed) * 1.15


def abrupt(batch: int, extra: int) -> float:
    """Another path of the code, three times as slow, for whatever has more than one row a sequence."""
    return 20 + 40 * (extra > 0) + 0.1 * extra


@pytest.mark.parametrize("batch", [1, 8])
def test_what_drafts_cost_is_found_out_although_every_step_has_some(batch: int) -> None:
    odds = 0.5
    adaptive = pace(DraftControl(), abrupt, odds, batch, 2000, found=1.0)
    assert adaptive < pace(None, abrupt, odds, batch, 2000, found=1.0) * 1.02


def test_a_sequence_whose_drafts_fail_stops_being_drafted_for_beside_one_whose_drafts_hold() -> None:
    control = DraftControl()
    good, bad = RunRecord(greedy=True), RunRecord(greedy=True)
    lengths = [0, 0]
    for _ in range(60):
        lengths = control.lengths([(good, draft()), (bad, draft())], 2, room=16)
        if lengths[0]:
            control.verified(good, draft(), lengths[0], lengths[0])
        if lengths[1]:
            control.verified(bad, draft(), 1, 0)
    # One more row beside eight may be worth its price whatever came of it.
    assert lengths[0] == LENGTH
    assert lengths[1] <= 1


def test_it_starts_again_when_drafts_begin_to_hold() -> None:
    control = DraftControl()
    record = RunRecord(greedy=True)
    for _ in range(400):
        (length,) = control.lengths([(record, draft())], 1, room=8)
        if length:
            control.verified(record, draft(), 1, 0)
    drafted = 0
    for _ in range(1500):
        (length,) = control.lengths([(record, draft())], 1, room=8)
        drafted += length
        if length:
            control.verified(record, draft(), length, length)
    assert drafted > 1500 * LENGTH / 2


def test_drafts_that_never_hold_are_tried_seldom_although_rows_look_free() -> None:
    control = DraftControl()
    record = RunRecord(greedy=True)
    tried = 0
    for step in range(500):
        (length,) = control.lengths([(record, draft())], 1, room=8)
        if length:
            control.verified(record, draft(), 1, 0)
        # The machine paused in the steps without drafts.
        control.costs.decoded("one", 1, length, 0.02 if length else 0.03)
        tried += length if step >= 100 else 0
    assert tried <= 400 * 0.1


@pytest.mark.parametrize("room", [0, 1, 3])
def test_the_room_is_a_limit(room: int) -> None:
    drafts = [(RunRecord(greedy=True), draft()) for _ in range(3)]
    assert sum(DraftControl().lengths(drafts, 3, room=room)) <= room


def test_beside_a_prompt_a_row_must_be_worth_its_share_of_the_step() -> None:
    control = DraftControl()
    record = RunRecord(greedy=True)
    for _ in range(50):
        control.verified(record, draft(), 2, 1)
    # A row takes 2 ms there, a token of decoding 20 ms.
    control.costs.decoded("one", 1, 0, 0.020)
    control.costs.prefilled(100, 0.200)
    assert control.lengths([(record, draft())], 1, room=8, beside_prompt=True) == [3]
    # 2 ms against 3 ms.
    for _ in range(200):
        control.costs.decoded("one", 1, 0, 0.003)
    assert control.lengths([(record, draft())], 1, room=8, beside_prompt=True) == [0]


def test_step_costs_are_learned_whatever_the_pace_of_the_hour() -> None:
    costs = StepCosts()
    random = np.random.default_rng(3)
    hour = 1.0
    for _ in range(3000):
        hour *= math.exp(random.normal(0, 0.02))
        extra = int(random.choice([0, 1, 4, 8]))
        costs.decoded("all", 2, extra, cpu(2, extra) * hour * random.uniform(0.97, 1.03))
    for extra in (1, 4, 8):
        assert costs.ratio(2, extra) == pytest.approx(cpu(2, extra) / cpu(2, 0), rel=0.08)


def test_steps_of_other_sequences_are_not_compared() -> None:
    costs = StepCosts()
    before = costs.ratio(1, 4)
    for i in range(50):
        costs.decoded(i, 1, 0, 0.001)
        costs.decoded(-i - 1, 1, 4, 1.0)
    assert costs.ratio(1, 4) == before
    costs.decoded("same", 1, 0, 0.001)
    costs.prefilled(500, 1.0)
    costs.decoded("same", 1, 4, 1.0)
    assert costs.ratio(1, 4) == before
