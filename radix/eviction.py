"""Eviction: an order over leaves, and a queue that gives the next one in O(log n).

A policy is one function of a leaf's last mark, the stretch that would be trimmed first; what sorts first goes first. To
add one, write the function and name it in POLICIES.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

from radix.errors import InvalidArgument
from radix.marks import Mark
from radix.node import Node

# Numbers, of which the first that differs decides.
Key: TypeAlias = tuple[Any, ...]
Policy: TypeAlias = Callable[[Mark], Key]


def lru(tail: Mark) -> Key:
    """Least recently used first. A path is touched from its root, so what comes earlier in a run is never older."""
    return (tail.last_used,)


def lfu(tail: Mark) -> Key:
    """Least often opened first, then least recently."""
    return (tail.hits, tail.last_used)


def slru(tail: Mark) -> Key:
    """Segmented LRU (Karedla, Love, Wherry 1994), as a key: what was never opened again goes before what was."""
    return (tail.hits > 0, tail.last_used)


def priority(tail: Mark) -> Key:
    """Lowest priority of the requests that used it first, then least recently used."""
    return (tail.priority, tail.last_used)


def agent(tail: Mark) -> Key:
    """Branches that are finished or were left by their session first; within that, least recently used first."""
    return (not tail.superseded, tail.last_used)


def lapsed_first(policy: Policy) -> Policy:
    """What a lease kept until it expired goes before all else: where tiers take it in, to let it go costs little."""
    return lambda tail: (not tail.lease_lapsed, *policy(tail))


DEFAULT_POLICY = "agent"
POLICIES: dict[str, Policy] = {"lru": lru, "lfu": lfu, "slru": slru, "priority": priority, "agent": agent}


def policy_named(name: str) -> Policy:
    """Return the policy of that name. Raises InvalidArgument, which lists the names."""
    if name not in POLICIES:
        raise InvalidArgument(f"eviction is {name!r}: known policies are {', '.join(sorted(POLICIES))}")
    return POLICIES[name]


def eviction_key(policy: Policy, node: Node) -> Key:
    """Leased stretches go after all others, by their highest lease priority; within that, the policy decides."""
    tail = node.marks[-1]
    rank = 1 + max(lease.priority for lease in tail.leases) if tail.leases else 0
    return (rank, *policy(tail))


class EvictionQueue:
    """Leaves in the order of a policy.

    Entries are lazy: a use of a node changes its key and not the heap. When an entry comes up, its key is compared with
    the node's present one, and it is queued again if it grew. Whoever lowers a key pushes the node again.
    """

    def __init__(self, policy: Policy, tickets: count[int]) -> None:
        self._policy = policy
        # Key, ticket and node in one flat tuple: a heap compares tuples in tuples at half the speed.
        self._heap: list[tuple[Any, ...]] = []
        self._tickets = tickets
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def push(self, node: Node) -> None:
        """Queue a leaf under its present key; an entry that it had before is void."""
        if not node.ticket:
            self._live += 1
        node.ticket = next(self._tickets)
        node.key = eviction_key(self._policy, node)
        heapq.heappush(self._heap, (*node.key, node.ticket, node))
        if len(self._heap) > 2 * self._live + 64:
            self._heap = [entry for entry in self._heap if entry[-1].ticket == entry[-2]]
            heapq.heapify(self._heap)

    def requeue_if_lower(self, node: Node) -> None:
        if eviction_key(self._policy, node) < node.key:
            self.push(node)

    def discard(self, node: Node) -> None:
        if node.ticket:
            node.ticket = 0
            self._live -= 1

    def peek(self) -> tuple[Any, ...] | None:
        """Return the key's parts, the ticket and the leaf that should go first; None when there is none."""
        while self._heap:
            entry = self._heap[0]
            node: Node = entry[-1]
            if node.ticket != entry[-2]:
                heapq.heappop(self._heap)
            elif eviction_key(self._policy, node) > node.key:
                heapq.heappop(self._heap)
                self.push(node)
            else:
                return entry
        return None

    def pop(self) -> Node | None:
        """Remove and return the leaf that should go first; None when there is none."""
        entry = self.peek()
        if entry is None:
            return None
        heapq.heappop(self._heap)
        node: Node = entry[-1]
        self.discard(node)
        return node
