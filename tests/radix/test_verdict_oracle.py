"""Verdicts of real coding-agent calls against an oracle of dictionaries that shares nothing with the store.

The oracle numbers every prefix that it sees, keeps a clock stamp for each one that is cached, and evicts the deepest
prefix of the oldest stamp that nothing cached grows from.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix import Cause, Namespace, PrefixStore
from radix.closed_loop import interleave
from radix.traces import read_trace

END = 2**31 - 1


class Oracle:
    """Least recently used, element by element."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.number: dict[tuple[object, int], int] = {}
        self.parent: list[object] = []
        self.depth: list[int] = []
        self.stamp: dict[int, int] = {}
        self.cached_children: dict[object, int] = {}
        self.branches: dict[object, int] = {}
        self.order: list[tuple[int, int, int]] = []
        self.now = 0

    def verdict(self, scope: str, path: Iterable[int]) -> list[tuple[Cause, int]]:
        """Return runs of (cause, tokens) over `path` and the last token, which is always new."""
        at: object = scope
        cached = stored = 0
        total = 1
        for token in path:
            total += 1
            if stored == total - 2:
                child = self.number.get((at, token))
                if child is not None:
                    at = child
                    stored += 1
                    cached += child in self.stamp
        new = Cause.DIVERGED if stored and self.branches.get(at) else Cause.NEVER_SEEN
        runs = [(Cause.CACHED, cached), (Cause.EVICTED, stored - cached), (new, total - stored)]
        return [(cause, tokens) for cause, tokens in runs if tokens]

    def serve(self, scope: str, path: list[int]) -> None:
        self.now += 1
        held = self.named(scope, path)
        for name in held:
            if name in self.stamp:
                self.use(name)
        missing = [name for name in held if name not in self.stamp]
        self.evict(len(self.stamp) + len(missing) - self.room, set(held))
        for name in missing:
            self.stamp[name] = self.now
            self.cached_children[self.parent[name]] = self.cached_children.get(self.parent[name], 0) + 1
        for name in held:
            self.use(name)

    def named(self, scope: str, path: list[int]) -> list[int]:
        at: object = scope
        names = []
        for depth, token in enumerate(path):
            key = (at, token)
            if key not in self.number:
                self.number[key] = len(self.parent)
                self.parent.append(at)
                self.depth.append(depth)
                self.branches[at] = self.branches.get(at, 0) + 1
            at = self.number[key]
            names.append(at)
        return names

    def use(self, name: int) -> None:
        self.stamp[name] = self.now
        if not self.cached_children.get(name):
            heapq.heappush(self.order, (self.now, -self.depth[name], name))

    def evict(self, n: int, held: set[int]) -> None:
        kept = []
        while n > 0:
            stamp, depth, name = heapq.heappop(self.order)
            if self.stamp.get(name) != stamp or self.cached_children.get(name):
                continue
            if name in held:
                kept.append((stamp, depth, name))
                continue
            del self.stamp[name]
            n -= 1
            parent = self.parent[name]
            self.cached_children[parent] -= 1
            if isinstance(parent, int) and not self.cached_children[parent]:
                heapq.heappush(self.order, (self.stamp[parent], -self.depth[parent], parent))
        for entry in kept:
            heapq.heappush(self.order, entry)


def compare(trace_file: Path, sessions: int, capacity: int) -> dict[Cause, int]:
    """Hold every call's verdict to the oracle's; return tokens (units) by cause, of all calls."""
    trace = interleave(read_trace(trace_file, sessions=sessions), 8)
    blocks = capacity // trace.unit
    ticks = iter(range(10**9))
    store = PrefixStore(blocks, 1, clock=lambda: float(next(ticks)), history_tokens=10**8)
    oracle = Oracle(blocks)
    end = np.array([END], dtype=np.int32)
    counts: dict[Cause, int] = {}
    for number, call in enumerate(trace.calls):
        namespace = Namespace(salt=call.scope)
        path = call.path[:blocks]
        verdict = store.explain(np.concatenate((path, end)), namespace, across=False)
        expected = oracle.verdict(call.scope, path.tolist())
        assert [(span.cause, span.end - span.start) for span in verdict.spans] == expected, f"call {number}"
        assert [span.start for span in verdict.spans] == [0, *(span.end for span in verdict.spans[:-1])]
        for cause, tokens in expected:
            counts[cause] = counts.get(cause, 0) + tokens
        serve(store, path, end, namespace)
        oracle.serve(call.scope, path.tolist())
    return counts


def serve(store: PrefixStore, path: Any, end: Any, namespace: Namespace) -> None:
    seq = store.open(np.concatenate((path, end)), namespace)
    store.reserve(seq, len(path) - seq.length)
    store.commit(seq, path[seq.length :])
    store.close(seq)


@pytest.mark.slow
def test_the_verdict_equals_the_oracles_on_every_call_of_three_sessions(real_trace: Callable[[str], Path]) -> None:
    counts = compare(real_trace("claude-code/traces.jsonl.gz"), 3, 150_000)
    assert counts.keys() == {Cause.CACHED, Cause.EVICTED, Cause.DIVERGED, Cause.NEVER_SEEN}


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [200_000, 500_000, 1_000_000])
def test_the_verdict_equals_the_oracles_on_every_call_of_forty_sessions(
    capacity: int, real_trace: Callable[[str], Path]
) -> None:
    counts = compare(real_trace("claude-code/traces.jsonl.gz"), 40, capacity)
    assert counts.keys() == {Cause.CACHED, Cause.EVICTED, Cause.DIVERGED, Cause.NEVER_SEEN}
