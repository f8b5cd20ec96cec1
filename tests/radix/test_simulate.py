"""Simulation against hand-computed cases, a brute-force optimum and an independent script."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix.errors import InvalidArgument
from radix.path_tree import PathTree
from radix.simulate import Run, ideal, simulate
from radix.traces import Call, Trace, read_trace

REFERENCE = Path(__file__).with_name("reference_trie.py")


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def hashed(*calls: tuple[str, int, list[int]], unit: int = 64) -> Trace:
    return Trace(
        Path("t"), "mooncake", unit, [Call(scope, ints(ids), length, ints([])) for scope, length, ids in calls]
    )


def tokens(*calls: tuple[list[int], list[int]]) -> Trace:
    return Trace(Path("t"), "tokens", 1, [Call("", ints(path), len(path), ints(out)) for path, out in calls])


def run(trace: Trace, capacity: int | None, block_size: int | None = None) -> Run:
    size = block_size or trace.unit
    return simulate(trace, capacity, best=ideal(trace, size), block_size=size)


def test_cached_is_the_known_path_and_at_most_all_but_one_token() -> None:
    trace = hashed(("", 200, [1, 2, 3]), ("", 200, [1, 2, 3]), ("", 192, [1, 2, 3]), ("", 300, [1, 2, 9, 4]))
    result = run(trace, None)
    # 192 of 200: the tail has no id; 191 of 192: the last token is always computed; then two blocks.
    assert result.cached_tokens == 0 + 192 + 191 + 128
    assert result.input_tokens == 892
    assert result.hit_rate == result.ideal_hit_rate == 511 / 892
    assert result.evicted_blocks == result.refused_calls == 0


def test_scopes_share_nothing() -> None:
    assert run(hashed(("a", 128, [1, 2]), ("b", 128, [1, 2])), None).cached_tokens == 0
    assert run(hashed(("", 128, [1, 2]), ("", 128, [1, 2])), None).cached_tokens == 127


def test_the_tail_of_the_least_recent_path_goes_first() -> None:
    trace = hashed(("", 192, [1, 2, 3]), ("", 128, [4, 5]), ("", 192, [1, 2, 3]))
    result = run(trace, 4 * 64)
    # One block had to go for [4, 5], and it was 3.
    assert result.cached_tokens == 128
    # Then 3 came back in place of 5.
    assert result.evicted_blocks == 2
    assert result.evicted_tokens == 128
    assert result.ideal_cached_tokens == 191


def test_a_whole_hit_evicts_nothing() -> None:
    trace = hashed(*[("", 128, [1, 2])] * 5)
    result = run(trace, 128)
    assert result.cached_tokens == 4 * 127
    assert result.evicted_blocks == 0


def test_a_call_beyond_the_capacity_is_served_and_kept_as_far_as_it_fits() -> None:
    long = ("", 320, [1, 2, 3, 4, 5])
    result = run(hashed(long, long, ("", 64, [1])), 3 * 64)
    assert result.calls == 3
    assert result.refused_calls == 2
    assert result.cached_tokens == 192 + 63


def test_a_capacity_below_a_block_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="capacity_tokens is 63: it must hold one block of 64 tokens"):
        run(hashed(("", 64, [1])), 63)


def test_an_unknown_policy_is_refused() -> None:
    trace = hashed(("", 64, [1]))
    with pytest.raises(InvalidArgument, match="known policies are"):
        simulate(trace, None, best=ideal(trace, 64), block_size=64, policy="newest")


def test_outputs_are_known_to_the_next_turn_but_for_their_last_token() -> None:
    trace = tokens((list(range(10)), [50, 51, 52, 53, 54]), ([*range(10), 50, 51, 52, 53, 54, 60], []))
    for block_size in (1, 4, 16):
        result = run(trace, None, block_size)
        assert result.cached_tokens == result.ideal_cached_tokens == 14


def test_a_token_trace_at_a_pool_with_no_room_for_a_copy_gives_up_the_partial_block() -> None:
    trace = tokens(([1, 2, 3, 4, 5, 6], []), ([1, 2, 3, 4, 5, 9, 9, 9], []))
    assert run(trace, 12, 4).cached_tokens == 5
    assert run(trace, 8, 4).cached_tokens == 4


PATHS = st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 2), min_size=1, max_size=12)), min_size=1)


def optimum(calls: list[tuple[str, list[int]]], unit: int) -> int:
    known: set[tuple[str, tuple[int, ...]]] = set()
    cached = 0
    for scope, path in calls:
        prefixes = [(scope, tuple(path[:n])) for n in range(1, len(path) + 1)]
        cached += min(unit * sum(prefix in known for prefix in prefixes), len(path) * unit - 1)
        known.update(prefixes)
    return cached


@settings(max_examples=150, deadline=None)
@given(PATHS, st.integers(1, 40))
def test_any_hash_id_trace_reaches_the_optimum_and_no_capacity_exceeds_it(
    calls: list[tuple[str, list[int]]], blocks: int
) -> None:
    trace = hashed(*[(scope, len(path) * 8, path) for scope, path in calls], unit=8)
    best = optimum(calls, 8)
    assert ideal(trace, 8).cached_tokens == best
    assert run(trace, None).cached_tokens == best
    small = run(trace, blocks * 8)
    assert small.cached_tokens <= best
    assert small.refused_calls == sum(len(path) > blocks for _, path in calls)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1), st.sampled_from([1, 3, 16]), st.data()
)
def test_any_token_trace_reaches_the_optimum_and_no_capacity_exceeds_it(
    paths: list[list[int]], block_size: int, data: st.DataObject
) -> None:
    trace = tokens(*[(path, []) for path in paths])
    best = optimum([("", path) for path in paths], 1)
    assert run(trace, None, block_size).cached_tokens == best
    capacity = data.draw(st.integers(block_size, 100))
    assert run(trace, capacity, block_size).cached_tokens <= best


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=10)))
def test_a_path_tree_knows_exactly_the_prefixes_that_it_was_shown(paths: list[list[int]]) -> None:
    tree = PathTree()
    known: set[tuple[int, ...]] = set()
    for path in paths:
        prefixes = [tuple(path[:n]) for n in range(1, len(path) + 1)]
        assert tree.add(ints(path)) == sum(prefix in known for prefix in prefixes)
        known.update(prefixes)
        assert tree.size == len(known)


def reference(path: Path, *sessions: str) -> dict[str, int]:
    command = [sys.executable, str(REFERENCE), str(path), *sessions]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def totals(result: Run) -> dict[str, int]:
    return {"calls": result.calls, "input_tokens": result.input_tokens, "cached_tokens": result.cached_tokens}


@pytest.mark.slow
def test_the_first_sessions_equal_the_independent_script(real_trace: Callable[[str], Path]) -> None:
    path = real_trace("claude-code/traces.jsonl.gz")
    assert totals(run(read_trace(path, sessions=12), None)) == reference(path, "12")


@pytest.mark.slow
def test_the_whole_of_claude_code_equals_the_independent_script(real_trace: Callable[[str], Path]) -> None:
    path = real_trace("claude-code/traces.jsonl.gz")
    trace = read_trace(path)
    assert trace.uneven == 0
    result = run(trace, None)
    assert totals(result) == reference(path)
    assert result.cached_tokens == result.ideal_cached_tokens
    assert result.evicted_blocks == 0


@pytest.mark.slow
def test_a_bigger_cache_finds_more_on_mooncake(real_trace: Callable[[str], Path]) -> None:
    trace = read_trace(real_trace("mooncake/conversation_trace.jsonl.gz"), sessions=3000)
    found = [run(trace, capacity).cached_tokens for capacity in (1_000_000, 4_000_000, 16_000_000, None)]
    assert found == sorted(found)
    assert found[0] < found[-1] == ideal(trace, 512).cached_tokens
