"""Turns at compiling grammars: what one caller asks for holds up nobody else's."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.grammar.fair_queue import FairQueue, QueueIsFull


def all_of(queue: FairQueue) -> list[tuple[Hashable, str]]:
    found = []
    while (taken := queue.take()) is not None:
        found.append(taken)
        queue.done(taken[0])
    return found


def test_callers_take_turns_and_each_has_its_own_in_order() -> None:
    queue = FairQueue(10, each=2)
    for caller, piece in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("c", "c2")):
        assert queue.put(caller, piece) is None
    assert [piece for _, piece in all_of(queue)] == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert len(queue) == 0


def test_a_caller_has_only_so_many_running() -> None:
    queue = FairQueue(10, each=2)
    for piece in ("a1", "a2", "a3"):
        queue.put("a", piece)
    assert [queue.take(), queue.take(), queue.take()] == [("a", "a1"), ("a", "a2"), None]
    queue.put("b", "b1")
    assert queue.take() == ("b", "b1")
    assert len(queue) == 4
    queue.done("a")
    assert queue.take() == ("a", "a3")


def test_where_it_is_full_the_longest_gives_way() -> None:
    queue = FairQueue(4, each=2)
    for piece in ("a1", "a2", "a3", "a4"):
        queue.put("a", piece)
    with pytest.raises(QueueIsFull):
        queue.put("a", "a5")
    assert queue.put("b", "b1") == "a4"
    assert queue.put("b", "b2") == "a3"
    with pytest.raises(QueueIsFull):
        queue.put("b", "b3")
    assert [piece for _, piece in all_of(queue)] == ["a1", "b1", "a2", "b2"]


def test_what_several_want_waits_for_the_first_of_their_turns() -> None:
    queue = FairQueue(4, each=1)
    for piece in ("a1", "both"):
        queue.put("a", piece)
    queue.put("b", "both")
    assert queue.put("b", "both") is None
    queue.put("a", "a2")
    # The newest of the longest queue; and one that another waits for too is not given up.
    assert queue.put("c", "c1") == "a2"
    assert [queue.take(), queue.take()] == [("a", "a1"), ("b", "both")]
    queue.discard("c1")
    queue.discard("never there")
    assert queue.take() is None
    assert len(queue) == 2


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.sampled_from(["put", "take", "drop"]))))
def test_nothing_is_lost_or_given_out_twice(steps: list[tuple[str, int, str]]) -> None:
    queue, waiting, running = FairQueue(5, each=2), set[str](), list[Hashable]()
    for caller, number, step in steps:
        piece = str(number)
        if step == "put":
            try:
                waiting.discard(queue.put(caller, piece) or "")
            except QueueIsFull:
                assert len(queue) == 5
                continue
            waiting.add(piece)
        elif step == "drop":
            queue.discard(piece)
            waiting.discard(piece)
        elif (taken := queue.take()) is not None:
            assert taken[1] in waiting
            waiting.remove(taken[1])
            running.append(taken[0])
            assert running.count(taken[0]) <= 2
        elif running:
            queue.done(running.pop(0))
        assert len(queue) <= 5
    for caller in running:
        queue.done(caller)
    assert {piece for _, piece in all_of(queue)} == waiting
