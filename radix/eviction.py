"""Eviction: an order over leaves, and a queue that gives the next one in O(log n).

A policy is one function of a node whose value sorts first what should go first. To add one, write the function and
name it in POLICIES.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

from radix.errors import InvalidArgument
from radix.node import Node

Policy: TypeAlias = Callable[[Node], float]


def lru(node: Node) -> float:
    """Least recently used first. A path is touched as a whole, so a parent is never older than its children."""
    return node.last_used


POLICIES: dict[str, Policy] = {"lru": lru}


def policy_named(name: str) -> Policy:
    """Return the policy of that name. Raises InvalidArgument, which lists the names."""
    if name not in POLICIES:
        raise InvalidArgument(f"eviction is {name!r}: known policies are {', '.join(sorted(POLICIES))}")
    return POLICIES[name]


class EvictionQueue:
    """Leaves in the order of a policy.

    Entries are lazy: a use of a node changes its key and not the heap. When an entry comes up, its key is compared with
    the node's present one and it is queued again if it grew.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._heap: list[tuple[float, int, Node]] = []
        self._tickets = count(1)
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def push(self, node: Node) -> None:
        """Queue a leaf under its present key; an entry that it had before is void."""
        if not node.ticket:
            self._live += 1
        node.ticket = next(self._tickets)
        heapq.heappush(self._heap, (self._policy(node), node.ticket, node))
        if len(self._heap) > 2 * self._live + 64:
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapq.heapify(self._heap)

    def discard(self, node: Node) -> None:
        if node.ticket:
            node.ticket = 0
            self._live -= 1

    def pop(self) -> Node | None:
        """Remove and return the leaf that should go first; None when there is none."""
        while self._heap:
            key, ticket, node = heapq.heappop(self._heap)
            if node.ticket != ticket:
                continue
            if self._policy(node) > key:
                self.push(node)
                continue
            self.discard(node)
            return node
        return None
