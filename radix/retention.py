"""Reasons to keep some prefixes longer than others: leases, quotas, and branches that nobody will come back to.

All of them move the order of eviction. None of them holds a block, so none can keep a request from running.
"""

from __future__ import annotations

from collections.abc import Callable

from numpy.typing import ArrayLike

from radix.cursor import Cursor
from radix.errors import InvalidArgument, LeaseRefused
from radix.leases import Lease, LeaseTable, check_lease_terms
from radix.marks import Mark, split_marks
from radix.namespace import Namespace
from radix.node import Node
from radix.tokens import Ints, as_tokens
from radix.tree import RadixTree


class Retention:
    """What the store was asked to keep, and what it was told to let go."""

    def __init__(
        self,
        tree: RadixTree,
        num_blocks: int,
        block_size: int,
        clock: Callable[[], float],
        leasable_share: float,
    ) -> None:
        if not 0 <= leasable_share <= 1:
            raise InvalidArgument(f"leasable_share is {leasable_share}: it must be from 0 to 1")
        self._tree = tree
        self._num_blocks = num_blocks
        self._clock = clock
        self.cap_tokens = int(leasable_share * num_blocks) * block_size
        self.leases = LeaseTable()

    # Leases

    def lease(
        self, tokens: ArrayLike, namespace: Namespace, *, ttl_s: float, priority: int = 50, label: str = ""
    ) -> tuple[Lease, int]:
        """Prefer the cached prefix of `tokens` to everything unleased, for `ttl_s` seconds.

        Args:
            priority: 0 to 100; among leased prefixes the lower goes first.

        Returns:
            The lease and how many tokens it covers: those that are cached now.

        Raises:
            LeaseRefused: the leased share of the pool would pass its cap; nothing was changed.
            InvalidArgument, InvalidTokens.
        """
        check_lease_terms(ttl_s, priority)
        ids = as_tokens(tokens)
        self.expire()
        path = self._path(ids, namespace)
        fresh = sum(
            end - start for node, upto in path for start, end, mark in _stretches(node, upto) if not mark.leases
        )
        if self._tree.leased_tokens + fresh > self.cap_tokens:
            raise LeaseRefused(fresh, self._tree.leased_tokens, self.cap_tokens)
        lease = self.leases.add(ids.copy(), namespace, priority, self._clock() + ttl_s, label)
        for node, upto in path:
            for mark in _cut_at(node, upto):
                mark.leases = (*mark.leases, lease)
        self._tree.leased_tokens += fresh
        return lease, path[0][1] if path else 0

    def renew(self, lease_id: int, ttl_s: float) -> Lease:
        """Let a lease end `ttl_s` seconds from now. Raises LeaseNotFound, InvalidArgument."""
        self.expire()
        lease = self.leases.get(lease_id)
        check_lease_terms(ttl_s, lease.priority)
        self.leases.renew(lease, self._clock() + ttl_s)
        return lease

    def release(self, lease_id: int) -> Lease:
        """End a lease. Raises LeaseNotFound."""
        self.expire()
        lease = self.leases.get(lease_id)
        self.leases.remove(lease)
        self._lift(lease, lapsed=False)
        return lease

    def expire(self) -> None:
        """End the leases whose time has come."""
        if len(self.leases):
            for lease in self.leases.pop_expired(self._clock()):
                self._lift(lease, lapsed=True)

    def _lift(self, lease: Lease, lapsed: bool) -> None:
        for node, _ in self._path(lease.tokens, lease.namespace):
            start = node.start
            for mark in node.marks:
                if lease in mark.leases:
                    mark.leases = tuple(other for other in mark.leases if other is not lease)
                    if not mark.leases:
                        self._tree.leased_tokens -= mark.end - start
                        mark.lease_lapsed = lapsed
                start = mark.end
            self._tree.queues.requeue_if_lower(node)

    # Branches that nobody will come back to

    def supersede(self, tokens: ArrayLike, namespace: Namespace, keep: int = 0) -> int:
        """The branch `tokens` was left at position `keep`, or finished: what only it needs may go first.

        Returns:
            Tokens that were marked: the end of the branch, as far as nothing else grew from it.

        Raises:
            InvalidArgument: `keep` below 0. InvalidTokens.
        """
        if keep < 0:
            raise InvalidArgument(f"keep is {keep}: it must be at least 0")
        path = self._path(as_tokens(tokens), namespace)
        if not path:
            return 0
        node, end = path[0]
        start = max(keep, node.start)
        if end < node.end or not node.is_leaf or start >= end:
            return 0
        if start > node.start:
            front, back = split_marks(node.marks, start)
            node.marks = [*front, *back]
        for mark in node.marks:
            if mark.end > start:
                mark.superseded = True
        self._tree.queues.requeue_if_lower(node)
        return end - start

    # Quotas

    def set_quota(self, namespace: Namespace, share: float | None) -> None:
        """Let a namespace's prefixes take at most this share of the pool; None lifts the limit.

        A namespace over its quota evicts its own when it needs more. Running requests may pass it.

        Raises:
            InvalidArgument: a share outside (0, 1].
        """
        if share is not None and not 0 < share <= 1:
            raise InvalidArgument(f"share is {share}: it must be above 0 and at most 1")
        limit = None if share is None else max(1, int(share * self._num_blocks))
        root = self._tree.roots.get(namespace)
        nodes = list(self._tree.below(root)) if root is not None else []
        self._tree.queues.set_limit(namespace, limit, root, nodes)

    @property
    def quotas(self) -> dict[Namespace, int]:
        """Limits in blocks."""
        return self._tree.queues.limits

    def over_quota(self, cursor: Cursor, blocks: int) -> int:
        """Return by how many blocks the cursor's namespace would pass its quota if it took `blocks` more."""
        return self._tree.queues.excess(cursor.node.root, blocks) if cursor.node is not None else 0

    def _path(self, tokens: Ints, namespace: Namespace) -> list[tuple[Node, int]]:
        """Return the nodes that hold the cached prefix of `tokens`, deepest first, each with how far it does."""
        found = self._tree.find(tokens, namespace)
        path: list[tuple[Node, int]] = []
        if found is None:
            return path
        node, upto = found
        while node.parent is not None:
            path.append((node, upto))
            node, upto = node.parent, node.start
        return path


def _stretches(node: Node, upto: int) -> list[tuple[int, int, Mark]]:
    stretches = []
    start = node.start
    for mark in node.marks:
        if start >= upto:
            break
        stretches.append((start, min(mark.end, upto), mark))
        start = mark.end
    return stretches


def _cut_at(node: Node, upto: int) -> list[Mark]:
    """Let a mark of `node` end at `upto`; return those that end there or before."""
    if upto >= node.end:
        return node.marks
    front, back = split_marks(node.marks, upto)
    node.marks = [*front, *back]
    return front
