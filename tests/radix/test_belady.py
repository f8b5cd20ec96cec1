"""Belady's optimum against an exhaustive search over every order of eviction, and above every policy."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix.belady import belady, find_gaps
from radix.eviction import POLICIES
from radix.simulate import ideal, simulate
from radix.trace_formats import Call, Trace


def hashed(*paths: list[int], unit: int = 8) -> Trace:
    """Inputs have a token beyond their last id, so that every block that was found counts whole."""
    calls = [
        Call("", np.array(path, dtype=np.int32), len(path) * unit + 1, np.empty(0, dtype=np.int32)) for path in paths
    ]
    return Trace(Path("t"), "mooncake", unit, calls)


def exhaustive(paths: list[list[int]], capacity: int) -> int:
    """Try every set that could be kept after each call; items are prefixes, each call's own must all be there."""
    states: dict[frozenset[tuple[int, ...]], int] = {frozenset(): 0}
    for path in paths:
        own = [tuple(path[:n]) for n in range(1, len(path) + 1)]
        following: dict[frozenset[tuple[int, ...]], int] = {}
        for kept, hits in states.items():
            found = 0
            while found < len(own) and own[found] in kept:
                found += 1
            served = own[:capacity]
            others = sorted(kept - set(own))
            for n in range(min(len(others), capacity - len(served)) + 1):
                for stay in combinations(others, n):
                    state = frozenset(served) | set(stay)
                    following[state] = max(following.get(state, 0), hits + found)
        states = following
    return max(states.values())


PATHS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(PATHS, st.integers(1, 7))
def test_no_order_of_eviction_finds_more(paths: list[list[int]], capacity: int) -> None:
    trace = hashed(*paths)
    assert belady(find_gaps(trace), capacity) == 8 * exhaustive(paths, capacity)


def test_it_keeps_what_comes_back_sooner() -> None:
    # Room for two: lru has just forgotten 1 each time it comes.
    paths = [[1], [2], [3], [1], [2], [3], [1]]
    trace = hashed(*paths)
    assert simulate(trace, 16, best=ideal(trace, 8), block_size=8).cached_tokens == 0
    assert belady(find_gaps(trace), 2) == 2 * 8


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=40),
    st.integers(1, 40),
    st.sampled_from(sorted(POLICIES)),
)
def test_the_store_never_beats_it_and_it_never_beats_infinity(paths: list[list[int]], blocks: int, policy: str) -> None:
    trace = hashed(*paths)
    run = simulate(trace, blocks * 8, best=ideal(trace, 8), block_size=8, policy=policy)
    assert run.cached_tokens <= run.belady_cached_tokens <= run.ideal_cached_tokens
    assert belady(find_gaps(trace), 10**9) == run.ideal_cached_tokens


def test_outputs_take_room_and_are_found_as_input() -> None:
    ints = [np.array(x, dtype=np.int32) for x in ([1, 2], [7, 8, 9], [1, 2, 7, 8, 5], [])]
    trace = Trace(Path("t"), "tokens", 1, [Call("", ints[0], 2, ints[1]), Call("", ints[2], 5, ints[3])])
    # The last output token is never fed back: 9 is not stored, and 1, 2, 7, 8 are.
    assert belady(find_gaps(trace), 100) == 4
    assert belady(find_gaps(trace), 3) == 3


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_scopes_share_room_but_no_items(capacity: int) -> None:
    one = np.array([1], dtype=np.int32)
    nothing = np.empty(0, dtype=np.int32)
    calls = [Call(scope, one, 9, nothing) for scope in "abab"]
    trace = Trace(Path("t"), "mooncake", 8, calls)
    assert belady(find_gaps(trace), capacity) == (0 if capacity == 1 else 16)
