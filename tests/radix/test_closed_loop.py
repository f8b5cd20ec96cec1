"""Sessions side by side: the order of their calls, and the branches that they leave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from radix.closed_loop import interleave
from radix.errors import InvalidArgument
from radix.session_branches import SessionBranches
from radix.simulate import ideal, simulate
from radix.traces import Call, Trace, read_trace

NOTHING = np.empty(0, dtype=np.int32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def timed(*sessions: list[tuple[float, float]]) -> Trace:
    """Sessions of (seconds from its beginning, duration); a call's path names its session and number."""
    calls = [
        Call(str(s), ints(s, i), 128, NOTHING, s, at, took)
        for s, session in enumerate(sessions)
        for i, (at, took) in enumerate(session)
    ]
    return Trace(Path("t"), "claude-code", 64, calls, len(sessions))


def order(trace: Trace, live: int) -> list[tuple[int, ...]]:
    return [tuple(call.path.tolist()) for call in interleave(trace, live).calls]


def test_one_live_session_is_the_file_order() -> None:
    trace = timed([(0, 1), (9, 1)], [(0, 1), (5, 1)])
    assert order(trace, 1) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_sessions_keep_their_gaps_and_the_next_starts_when_one_has_ended() -> None:
    trace = timed([(0, 1), (10, 5)], [(0, 1), (4, 1), (30, 1)], [(0, 1), (14, 1)])
    # The first ends at 15: the third begins there, and its second call comes at 29, before the second's last at 30.
    assert order(trace, 2) == [(0, 0), (1, 0), (1, 1), (0, 1), (2, 0), (2, 1), (1, 2)]
    # A session that ends when its last call begins would let the third overtake at 10.
    assert order(timed([(0, 1), (10, 0)], [(0, 1), (12, 1)], [(0, 1)]), 2)[2:] == [(0, 1), (2, 0), (1, 1)]


def test_calls_of_a_subagent_come_at_their_times() -> None:
    calls = [Call("0", ints(i), 64, NOTHING, 0, at, 1.0) for i, at in enumerate([0.0, 20.0, 5.0, 5.0])]
    trace = Trace(Path("t"), "claude-code", 64, calls, 1)
    assert order(trace, 1) == [(0,), (2,), (3,), (1,)]


def test_more_than_there_are_is_all_at_once() -> None:
    trace = timed([(0, 1), (2, 1)], [(0, 1), (1, 1)])
    assert order(trace, 99) == [(0, 0), (1, 0), (1, 1), (0, 1)]


def test_what_cannot_run_side_by_side_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="live is 0"):
        interleave(timed([(0, 1)]), 0)
    call = Call("", ints(1), 64, NOTHING)
    with pytest.raises(InvalidArgument, match="does not tell the session and time of call 1"):
        interleave(Trace(Path("t"), "mooncake", 512, [call], 1), 2)


def test_a_thread_that_is_extended_leaves_nothing() -> None:
    session = SessionBranches()
    assert session.call(ints(1, 2)) is None
    assert session.call(ints(1, 2, 3)) is None
    (left,) = session.close()
    assert left.path.tolist() == [1, 2, 3]
    assert left.keep == 0


def test_a_rewrite_leaves_what_it_does_not_share() -> None:
    session = SessionBranches()
    session.call(ints(1, 2, 3, 4))
    left = session.call(ints(1, 2, 3, 9, 9, 9))
    assert left is not None
    assert (left.path.tolist(), left.keep) == ([1, 2, 3, 4], 3)


def test_a_subagent_is_no_rewrite_of_the_main_thread() -> None:
    session = SessionBranches()
    assert session.call(ints(1, 2, 3, 4)) is None
    assert session.call(ints(1, 8)) is None
    assert session.call(ints(1, 8, 9)) is None
    assert session.call(ints(1, 2, 3, 4, 5)) is None
    assert [left.path.tolist() for left in session.close()] == [[1, 2, 3, 4, 5], [1, 8, 9]]


def rewriting() -> Trace:
    """A session rewrites its history, while another waits that lru would take first."""
    paths = [("b", [1, 2]), ("a", [1, 2, 3, 4]), ("a", [1, 2, 3, 9]), ("b", [1, 2]), ("a", [1, 2, 3, 9])]
    calls = [
        Call(scope, ints(*path), len(path) * 64 + 1, NOTHING, "ab".index(scope), float(i))
        for i, (scope, path) in enumerate(paths)
    ]
    return Trace(Path("t"), "claude-code", 64, calls, 2)


def test_agent_forgets_the_branch_that_was_left_and_lru_does_not_know_it() -> None:
    trace = rewriting()
    best = ideal(trace, 64)
    found = {name: simulate(trace, 6 * 64, best=best, block_size=64, policy=name) for name in ("lru", "agent")}
    assert found["agent"].cached_tokens == found["agent"].ideal_cached_tokens
    assert found["agent"].evicted_blocks == 1
    assert found["lru"].cached_tokens < found["agent"].cached_tokens


@pytest.mark.slow
@pytest.mark.parametrize("live", [8, 32])
def test_agent_does_not_lose_to_lru_on_real_sessions(live: int, real_trace: Callable[[str], Path]) -> None:
    trace = interleave(read_trace(real_trace("claude-code/traces.jsonl.gz")), live)
    best = ideal(trace, trace.unit)
    for capacity in (1_000_000, 4_000_000):
        lru, agent = (
            simulate(trace, capacity, best=best, block_size=trace.unit, policy=name) for name in ("lru", "agent")
        )
        assert lru.cached_tokens <= agent.cached_tokens <= agent.belady_cached_tokens <= best.cached_tokens
