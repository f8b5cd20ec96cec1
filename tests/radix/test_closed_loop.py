"""Sessions side by side: the order of their calls, and the branches that they leave."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from radix.cli import app
from radix.closed_loop import interleave
from radix.errors import InvalidArgument
from radix.session_branches import SessionBranches
from radix.simulate import ideal, simulate
from radix.traces import Call, Trace, TraceError, read_trace

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
    session.call(ints(1, 2, 3, 4, 5))
    left = session.call(ints(1, 2, 3, 4, 9, 9))
    assert left is not None
    assert (left.path.tolist(), left.keep) == ([1, 2, 3, 4, 5], 4)


def test_a_subagent_is_no_rewrite_of_the_main_thread() -> None:
    session = SessionBranches()
    # Three of its four are the system prompt.
    assert session.call(ints(1, 2, 3, 4)) is None
    assert session.call(ints(1, 2, 3, 8)) is None
    assert session.call(ints(1, 2, 3, 8, 9)) is None
    assert session.call(ints(1, 2, 3, 4, 5)) is None
    assert [left.path.tolist() for left in session.close()] == [[1, 2, 3, 4, 5], [1, 2, 3, 8, 9]]


def rewriting() -> Trace:
    """A session rewrites its history, while another waits that lru would take first."""
    old, new = [1, 2, 3, 4, 5], [1, 2, 3, 4, 9]
    paths = [("b", [1, 2]), ("a", old), ("a", new), ("b", [1, 2]), ("a", new)]
    calls = [
        Call(scope, ints(*path), len(path) * 64 + 1, NOTHING, "ab".index(scope), float(i))
        for i, (scope, path) in enumerate(paths)
    ]
    return Trace(Path("t"), "claude-code", 64, calls, 2)


def test_agent_forgets_the_branch_that_was_left_and_lru_does_not_know_it() -> None:
    trace = rewriting()
    best = ideal(trace, 64)
    found = {name: simulate(trace, 7 * 64, best=best, block_size=64, policy=name) for name in ("lru", "agent")}
    assert found["agent"].cached_tokens == found["agent"].ideal_cached_tokens
    assert found["agent"].evicted_blocks == 1
    assert found["lru"].cached_tokens < found["agent"].cached_tokens


GRID = (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)


@pytest.mark.parametrize(
    ("live", "capacities"),
    [
        pytest.param(16, (1_000_000,), marks=pytest.mark.slow),
        *(pytest.param(live, GRID, marks=pytest.mark.nightly) for live in (None, 8, 16, 32, 64)),
    ],
)
def test_agent_does_not_lose_to_lru_on_real_sessions(
    live: int | None, capacities: tuple[int, ...], real_trace: Callable[[str], Path]
) -> None:
    trace = read_trace(real_trace("claude-code/traces.jsonl.gz"))
    if live is not None:
        trace = interleave(trace, live)
    best = ideal(trace, trace.unit)
    for capacity in capacities:
        lru, agent = (
            simulate(trace, capacity, best=best, block_size=trace.unit, policy=name) for name in ("lru", "agent")
        )
        assert lru.cached_tokens <= agent.cached_tokens <= agent.belady_cached_tokens <= best.cached_tokens
        if live is not None:
            assert lru.cached_tokens < agent.cached_tokens


def write_sessions(folder: Path) -> str:
    """Two sessions that take turns, each with a history of two blocks."""
    lines = [
        {
            "block_size": 64,
            "hash_id_scope": "local",
            "requests": [{"t": float(2 * i + s), "in": 129, "hash_ids": [1, 2], "api_time": 0.5} for i in range(3)],
        }
        for s in (0, 1)
    ]
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(file)


def test_the_command_runs_each_number_of_live_sessions(tmp_path: Path) -> None:
    options = ["--live", "1,2", "--capacity-tokens", "128,256", "--policy", "lru,agent", "--json", "-"]
    done = CliRunner().invoke(app, ["simulate", write_sessions(tmp_path), *options])
    assert done.exit_code == 0, done.output
    runs = json.loads(done.stdout)["runs"]
    cells = {(run["live"], run["capacity_tokens"], run["policy"]): run for run in runs}
    assert len(cells) == len(runs) == 8
    # One after another they fit; side by side only the larger cache holds both.
    assert cells[1, 128, "lru"]["cached_tokens"] == cells[2, 256, "lru"]["cached_tokens"] == 4 * 128
    assert cells[2, 128, "lru"]["cached_tokens"] == 0
    assert {run["ideal_cached_tokens"] for run in runs} == {4 * 128}
    assert all(run["cached_tokens"] <= run["belady_cached_tokens"] <= run["ideal_cached_tokens"] for run in runs)


def test_the_table_sets_each_policy_against_lru(tmp_path: Path) -> None:
    options = ["--live", "2", "--capacity-tokens", "256", "--policy", "lru,agent"]
    done = CliRunner().invoke(app, ["simulate", write_sessions(tmp_path), *options], env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    for text in ("live", "over lru", "belady", "+0.000"):
        assert text in done.stdout


@pytest.mark.parametrize("live", ["0", "two", "-1"])
def test_a_number_of_live_sessions_that_is_none_is_refused(live: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["simulate", write_sessions(tmp_path), "--live", live], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert f"'{live}' is no number of sessions from 1" in done.output


def test_a_trace_without_sessions_cannot_be_live(tmp_path: Path) -> None:
    file = tmp_path / "moon.jsonl"
    file.write_text(json.dumps({"timestamp": 0, "input_length": 512, "hash_ids": [1]}) + "\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["simulate", str(file), "--live", "2"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "does not tell the session and time of call 1" in done.output


def test_a_time_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    line = {"block_size": 64, "requests": [{"t": "noon", "in": 64, "hash_ids": [1]}]}
    file.write_text(json.dumps(line) + "\n", encoding="utf-8")
    with pytest.raises(TraceError, match=r'requests\[0\]\.t is "noon": it must be a number of seconds from 0'):
        read_trace(file)
