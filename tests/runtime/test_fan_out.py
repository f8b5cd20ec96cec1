"""Branches of an uncached trunk that come together compute it once: trunk + tails, to the token."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from radix import Namespace, PrefixStore
from runtime.drafting.drafts import DraftSettings
from runtime.errors import RequestCancelled
from runtime.models.loaded_model import LoadedModel
from tests.runtime.engine_harness import Harness, Reply
from tests.runtime.test_engine import prompt

TAIL = 9
# As many as the promise is made for.
BRANCHES = [2, 3, 8, 32]


@pytest.fixture
def harness(request: pytest.FixtureRequest, tiny: LoadedModel) -> Iterator[Harness]:
    """An engine that a test starts when everything is in its inbox."""
    made = Harness(tiny, **{"num_blocks": 1024, "max_running": 64, **getattr(request, "param", {})})
    yield made
    made.check_idle()
    made.engine.shutdown(0)


def branch(trunk: list[int], index: int) -> list[int]:
    return trunk + [10 + index] * 2 + prompt(TAIL - 2, index)


def finish(replies: list[Reply]) -> None:
    for reply in replies:
        assert len(reply.tokens) == 2


def come(harness: Harness, trunk: list[int], replies: list[Reply], branches: int) -> None:
    """All branches but the first arrive."""
    replies.extend(harness.submit(branch(trunk, i), max_tokens=2) for i in range(1, branches))


def at_step(harness: Harness, step: int, act: object) -> None:
    """Call `act` on the engine's thread after so many steps that ran the model."""

    def look(store: PrefixStore) -> None:
        if harness.engine.counters.steps == step and look in harness.engine.after_step:
            harness.engine.after_step.remove(look)
            act()  # type: ignore[operator]

    harness.engine.after_step.append(look)


@pytest.mark.parametrize("branches", BRANCHES)
@pytest.mark.parametrize(
    "harness",
    [
        {},
        {"block_size": 1, "num_blocks": 8192},
        {"block_size": 7},
        {"max_running": 3},
        {"max_batch_tokens": 24},
        {"drafts": DraftSettings.named("auto", 8), "max_itl_s": 0.001, "hold_back_s": 120.0},
    ],
    indirect=True,
    ids=["blocks of 16", "blocks of 1", "blocks of 7", "three at a time", "chunks of 24", "paced, with drafts"],
)
def test_branches_that_come_together(harness: Harness, branches: int) -> None:
    trunk = prompt(333)
    replies = [harness.submit(branch(trunk, i), max_tokens=2) for i in range(branches)]
    harness.engine.start()
    finish(replies)
    assert harness.engine.counters.computed_tokens == 333 + branches * TAIL


@pytest.mark.parametrize("branches", BRANCHES)
@pytest.mark.parametrize("order", ["fcfs", "lpm", "priority", "program"])
def test_branches_that_come_in_the_middle_of_the_trunk(tiny: LoadedModel, order: str, branches: int) -> None:
    harness = Harness(tiny, num_blocks=1024, max_running=64, max_batch_tokens=32, order=order)
    trunk = prompt(300)
    replies = [harness.submit(branch(trunk, 0), max_tokens=2)]
    at_step(harness, 4, lambda: come(harness, trunk, replies, branches))
    harness.engine.start()
    replies[0].wait()
    finish(replies)
    assert len(replies) == branches
    assert harness.engine.counters.computed_tokens == 300 + branches * TAIL
    harness.check_idle()
    harness.engine.shutdown(0)


@pytest.mark.parametrize("harness", [{"max_batch_tokens": 32}], indirect=True)
@pytest.mark.parametrize("branches", BRANCHES)
@pytest.mark.parametrize("step", [1, 5, 9])
def test_another_branch_goes_on_where_a_cancelled_leader_was(harness: Harness, step: int, branches: int) -> None:
    trunk = prompt(300)
    replies = [harness.submit(branch(trunk, i), max_tokens=2) for i in range(branches)]
    leader = replies[0].handle
    assert leader is not None
    at_step(harness, step, leader.cancel)
    harness.engine.start()
    assert isinstance(replies[0].wait().error, RequestCancelled)
    finish(replies[1:])
    assert harness.engine.counters.computed_tokens == 300 + (branches - 1) * TAIL


@pytest.mark.parametrize("harness", [{"max_batch_tokens": 32}], indirect=True)
@pytest.mark.parametrize("branches", BRANCHES)
def test_a_leader_is_cancelled_that_others_came_to_in_the_middle_of_the_trunk(harness: Harness, branches: int) -> None:
    trunk = prompt(300)
    replies = [harness.submit(branch(trunk, 0), max_tokens=2)]
    leader = replies[0].handle
    assert leader is not None
    at_step(harness, 3, lambda: come(harness, trunk, replies, branches))
    at_step(harness, 6, leader.cancel)
    harness.engine.start()
    assert isinstance(replies[0].wait().error, RequestCancelled)
    finish(replies[1:])
    assert len(replies) == branches
    assert harness.engine.counters.computed_tokens == 300 + (branches - 1) * TAIL


@pytest.mark.parametrize("harness", [{"max_batch_tokens": 32}], indirect=True)
def test_every_leader_is_cancelled_in_turn(harness: Harness) -> None:
    trunk = prompt(300)
    replies = [harness.submit(branch(trunk, i), max_tokens=2) for i in range(4)]
    for index, step in enumerate((2, 4, 6)):
        handle = replies[index].handle
        assert handle is not None
        at_step(harness, step, handle.cancel)
    harness.engine.start()
    finish(replies[3:])
    assert harness.engine.counters.computed_tokens == 300 + TAIL


def test_branches_of_branches(harness: Harness) -> None:
    trunk = prompt(200)
    limbs = [trunk + [10 + i] * 50 for i in range(3)]
    replies = [harness.submit(branch(limbs[i % 3], i), max_tokens=2) for i in range(9)]
    harness.engine.start()
    finish(replies)
    assert harness.engine.counters.computed_tokens == 200 + 3 * 50 + 9 * TAIL


def test_a_public_trunk_is_computed_once_for_all_salts(harness: Harness) -> None:
    trunk = prompt(200)
    names = [Namespace(harness.namespace.fingerprint, salt=salt) for salt in "abc"]
    replies = [
        harness.submit(branch(trunk, i), max_tokens=2, namespace=name, public_tokens=180)
        for i, name in enumerate(names)
    ]
    harness.engine.start()
    finish(replies)
    assert harness.engine.counters.computed_tokens == 180 + 3 * (20 + TAIL)


def test_branches_that_bypass_the_cache_wait_for_nobody(harness: Harness) -> None:
    trunk = prompt(100)
    replies = [harness.submit(branch(trunk, i), max_tokens=2, bypass_cache=True) for i in range(3)]
    harness.engine.start()
    finish(replies)
    assert harness.engine.counters.computed_tokens == 3 * (100 + TAIL)
