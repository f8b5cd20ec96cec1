"""Belady's optimum: what the best order of eviction would have found, knowing every later call.

It bounds, from above, what any order of eviction can find at a capacity, for calls in this order, when a call's whole
path must be in the cache while it is served, as the store does it. The items are elements of paths: blocks in a hash-id
trace, tokens in a token trace, where a store of larger blocks can only find less.

An item that is used at call s and again at call t is a gap (s, t); keeping it over the gap is one hit. At any call,
what is kept over gaps around it and what the call itself uses must fit together. All items are of one size, so giving
up the gap that ends last, whenever too many are kept, is optimal (Belady 1966; for a capacity that varies with the
call it is the greedy choice among intervals). A prefix is always needed again before what follows it, so what is kept
is a tree at all times.

Only the lengths of gaps count: items that were used last at the same call are one stretch, and nothing is done by item.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from radix.tokens import Ints, common_prefix
from radix.trace_formats import Call, Trace


@dataclass(slots=True)
class Gaps:
    """When the items of a trace are used again.

    Attributes:
        next_uses: for each call, (call that uses them next, how many items) of what it uses.
    """

    trace: Trace
    next_uses: list[list[tuple[int, int]]] = field(default_factory=list)


class _Stretch:
    """A run of the tree whose items were all used last at one call."""

    __slots__ = ("children", "ids", "used")

    def __init__(self, ids: Ints, used: int) -> None:
        self.ids = ids
        self.used = used
        self.children: dict[int, _Stretch] = {}


def find_gaps(trace: Trace) -> Gaps:
    """Return when each call's items are used next."""
    gaps = Gaps(trace, [[] for _ in trace.calls])
    roots: dict[str, _Stretch] = {}
    for number, call in enumerate(trace.calls):
        root = roots.setdefault(call.scope, _Stretch(call.path[:0], 0))
        for last, items in _use(root, _stored(call), number, len(call.path)):
            gaps.next_uses[last].append((number, items))
    return gaps


def _stored(call: Call) -> Ints:
    return np.concatenate((call.path, call.output[:-1])) if len(call.output) > 1 else call.path


def _use(root: _Stretch, path: Ints, number: int, counted: int) -> list[tuple[int, int]]:
    """Stamp `path` with the call's number; return (last use, how many) of its first `counted` items seen before."""
    found: list[tuple[int, int]] = []
    parent, done = root, 0
    while done < len(path):
        key = int(path[done])
        child = parent.children.get(key)
        if child is None:
            break
        shared = common_prefix(child.ids, path[done:])
        hits = min(shared, max(0, counted - done))
        if hits:
            found.append((child.used, hits))
        if shared < len(child.ids):
            rest = _Stretch(child.ids[shared:], child.used)
            rest.children = child.children
            child.ids, child.children = child.ids[:shared], {int(rest.ids[0]): rest}
        child.used = number
        parent, done = child, done + shared
    if done < len(path):
        parent.children[int(path[done])] = _Stretch(path[done:], number)
    _join(root, path)
    return found


def _join(root: _Stretch, path: Ints) -> None:
    """Put a stretch together with its only child where both were used last at one call."""
    node, done = root, 0
    while done < len(path):
        node = node.children[int(path[done])]
        while len(node.children) == 1:
            (child,) = node.children.values()
            if child.used != node.used:
                break
            node.ids = np.concatenate((node.ids, child.ids))
            node.children = child.children
        done += len(node.ids)


def belady(gaps: Gaps, capacity: int) -> int:
    """Return the cached tokens of all calls at a capacity in items, the most that any order of eviction could find.

    A call longer than the capacity is kept as far as it fits, as the simulator does.
    """
    trace = gaps.trace
    kept: dict[int, int] = {}
    last_first: list[int] = []
    total = cached = 0
    for number, call in enumerate(trace.calls):
        found = kept.pop(number, 0)
        total -= found
        cached += min(found * trace.unit, call.input_tokens - 1)
        excess = total - max(0, capacity - len(_stored(call)))
        while excess > 0:
            end = -last_first[0]
            cut = min(excess, kept.get(end, 0))
            excess -= cut
            total -= cut
            if cut == kept.get(end, 0):
                kept.pop(end, None)
                heapq.heappop(last_first)
            else:
                kept[end] -= cut
        room = capacity
        for end, used in gaps.next_uses[number]:
            items = min(used, room)
            room -= items
            if items:
                if end not in kept:
                    heapq.heappush(last_first, -end)
                kept[end] = kept.get(end, 0) + items
                total += items
    return cached
