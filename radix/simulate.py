"""Simulation: the calls of a trace go through a PrefixStore with no model behind it.

What a call finds is counted before it is stored, and what it sent is known from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import numpy as np

from radix.belady import Gaps, belady, find_gaps
from radix.errors import InvalidArgument, OutOfBlocks
from radix.eviction import DEFAULT_POLICY
from radix.namespace import Namespace
from radix.path_tree import PathTree
from radix.session_branches import LeftBranch, SessionBranches
from radix.store import PrefixStore
from radix.traces import Call, Trace

# Ends a path in the store's eyes: a store leaves the last token of a request to be computed, which stands for the
# part of an input that no hash id names. Ids and tokens of traces stay below it.
END = np.array([2**31 - 1], dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Ideal:
    """What a cache that never forgets would have found.

    Attributes:
        cached_tokens: of all calls together.
        blocks: enough to hold everything that the trace sends.
        gaps: for the optimum at a capacity.
    """

    cached_tokens: int
    blocks: int
    gaps: Gaps


@dataclass(frozen=True, slots=True)
class Run:
    """One trace at one capacity under one policy.

    Attributes:
        live: sessions side by side; None for calls in file order.
        capacity_tokens: None has no limit.
        capacity_blocks: what the store was given; the capacity rounded down to blocks.
        block_size: tokens a block.
        refused_calls: longer than the whole capacity. They are served, and counted as every other call; the part that
            does not fit is not kept.
        evicted_tokens: in a hash-id trace, evicted blocks at their full size.
        belady_cached_tokens: of the best order of eviction at this capacity, see `radix.belady`.
        seconds: inside the store and the loop around it, reading the trace left out.
    """

    trace: str
    format: str
    live: int | None
    policy: str
    capacity_tokens: int | None
    capacity_blocks: int
    block_size: int
    sessions: int
    calls: int
    input_tokens: int
    cached_tokens: int
    hit_rate: float
    belady_cached_tokens: int
    belady_hit_rate: float
    ideal_cached_tokens: int
    ideal_hit_rate: float
    evicted_blocks: int
    evicted_tokens: int
    refused_calls: int
    nodes: int
    max_depth: int
    seconds: float
    us_per_call: float

    def as_json(self) -> dict[str, Any]:
        """Return plain values; an unlimited capacity is the string "inf"."""
        values = asdict(self)
        values["capacity_tokens"] = "inf" if self.capacity_tokens is None else self.capacity_tokens
        return values


def ideal(trace: Trace, block_size: int) -> Ideal:
    """Return the infinite-cache optimum of a trace, found without the store."""
    trees: dict[str, PathTree] = {}
    cached = 0
    longest = 0
    for call in trace.calls:
        tree = trees.setdefault(call.scope, PathTree())
        cached += min(tree.add(call.path) * trace.unit, call.input_tokens - 1)
        if len(call.output) > 1:
            tree.add(np.concatenate((call.path, call.output[:-1])))
        longest = max(longest, len(call.path) + len(call.output))
    elements = sum(tree.size for tree in trees.values())
    if not trace.has_tokens:
        return Ideal(cached, elements + 1, find_gaps(trace))
    # Runs begin and end inside blocks: at most one block more at each end of what a call adds, and the call itself.
    return Ideal(cached, (elements + longest) // block_size + 3 * len(trace.calls) + 2, find_gaps(trace))


def simulate(
    trace: Trace,
    capacity_tokens: int | None,
    *,
    best: Ideal,
    block_size: int,
    policy: str = DEFAULT_POLICY,
    live: int | None = None,
    on_call: Callable[[int], None] | None = None,
) -> Run:
    """Drive a new store with every call of the trace.

    Args:
        capacity_tokens: None for a store that never evicts.
        best: what `ideal` returned for this trace and block size.
        block_size: tokens a block; in a hash-id trace it is `trace.unit`.
        policy: an eviction policy of the store.
        live: how many sessions `trace` was interleaved from, for the record.
        on_call: told how many calls are done, some fifty times in all.

    Raises:
        InvalidArgument: less than one block of capacity, or an unknown policy.
    """
    blocks = best.blocks if capacity_tokens is None else capacity_tokens // block_size
    if blocks < 1:
        raise InvalidArgument(f"capacity_tokens is {capacity_tokens}: it must hold one block of {block_size} tokens")
    # The clock counts: two runs of one trace evict the same blocks in the same order.
    store = PrefixStore(blocks, block_size if trace.has_tokens else 1, eviction=policy, clock=count().__next__)
    serve = _serve_tokens if trace.has_tokens else _serve_ids
    cached = refused = 0
    started = time.perf_counter()
    for found, fitted in serve_all(trace, store, serve, on_call):
        cached += found
        refused += not fitted
    seconds = time.perf_counter() - started
    stats = store.stats()
    total = trace.input_tokens
    optimum = best.cached_tokens if capacity_tokens is None else belady(best.gaps, blocks * block_size // trace.unit)
    return Run(
        trace=str(trace.file),
        format=trace.format,
        live=live,
        policy=policy,
        capacity_tokens=capacity_tokens,
        capacity_blocks=blocks,
        block_size=block_size,
        sessions=trace.sessions,
        calls=len(trace.calls),
        input_tokens=total,
        cached_tokens=cached,
        hit_rate=cached / total,
        belady_cached_tokens=optimum,
        belady_hit_rate=optimum / total,
        ideal_cached_tokens=best.cached_tokens,
        ideal_hit_rate=best.cached_tokens / total,
        evicted_blocks=stats.evicted_blocks,
        evicted_tokens=stats.evicted_tokens * trace.unit,
        refused_calls=refused,
        nodes=stats.nodes,
        max_depth=stats.max_depth,
        seconds=seconds,
        us_per_call=seconds / len(trace.calls) * 1e6,
    )


def serve_all(
    trace: Trace,
    store: PrefixStore,
    serve: Callable[[PrefixStore, Call, Namespace, int], tuple[int, bool]],
    on_call: Callable[[int], None] | None,
) -> Iterator[tuple[int, bool]]:
    """Let `serve` serve every call, and tell the store which branches are over; yield what `serve` returns."""
    calls = trace.calls
    namespaces: dict[str, Namespace] = {}
    sessions: dict[int, SessionBranches] = {}
    last_call = {call.session: number for number, call in enumerate(calls, start=1)}
    step = len(calls) // 50 + 1
    for done, call in enumerate(calls, start=1):
        namespace = namespaces.setdefault(call.scope, Namespace(salt=call.scope or None))
        session = call.session
        if session is not None:
            branches = sessions.setdefault(session, SessionBranches())
            _supersede(store, namespace, branches.call(call.path))
        yield serve(store, call, namespace, trace.unit)
        if session is not None and last_call[session] == done:
            for left in sessions.pop(session).close():
                _supersede(store, namespace, left)
        if on_call is not None and (done % step == 0 or done == len(calls)):
            on_call(done)


def _supersede(store: PrefixStore, namespace: Namespace, left: LeftBranch | None) -> None:
    if left is not None:
        store.retention.supersede(left.path, namespace, left.keep)


def _serve_ids(store: PrefixStore, call: Call, namespace: Namespace, unit: int) -> tuple[int, bool]:
    """Serve a call whose path is block ids; return the cached tokens and whether the call fits the capacity."""
    found = store.match(call.path, namespace)
    kept = call.path[: store.num_blocks]
    seq = store.open(np.concatenate((kept, END)), namespace)
    if seq.length < len(kept):
        store.reserve(seq, len(kept) - seq.length)
        store.commit(seq, kept[seq.length :])
    store.close(seq)
    return min(found * unit, call.input_tokens - 1), len(kept) == len(call.path)


def _serve_tokens(store: PrefixStore, call: Call, namespace: Namespace, unit: int) -> tuple[int, bool]:
    """Serve a call of tokens as a runtime does: the last output token is never fed back, so its KV is never stored."""
    found = min(store.match(call.path, namespace), call.input_tokens - 1)
    whole = np.concatenate((call.path, call.output[:-1])) if len(call.output) > 1 else call.path
    kept = whole[: store.num_blocks * store.block_size]
    seq = store.open(kept[: len(call.path)], namespace)
    try:
        store.reserve(seq, len(kept) - seq.length)
    except OutOfBlocks:
        # A match that ends inside a block holds that block and needs a second one to copy it to.
        found -= store.drop_partial(seq)
        store.reserve(seq, len(kept) - seq.length)
    store.commit(seq, kept[seq.length :])
    store.close(seq)
    return found, len(kept) == len(whole)
