"""Which leaf goes next, over all namespaces or within one that has a quota."""

from __future__ import annotations

from itertools import count

from radix.eviction import EvictionQueue, Policy
from radix.namespace import Namespace
from radix.node import Node


class _Quota:
    """A namespace with a limit of its own, while it has a tree."""

    def __init__(self, queue: EvictionQueue, limit: int) -> None:
        self.queue = queue
        self.limit = limit
        self.held = 0


class LeafQueues:
    """One queue for all, and one for each namespace with a quota, so that it can be made to evict its own.

    A quota is a limit in blocks. It is enforced when its namespace asks for more, by evicting there first.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._tickets = count(1)
        self._shared = EvictionQueue(policy, self._tickets)
        self._limits: dict[Namespace, int] = {}
        self._quotas: dict[Node, _Quota] = {}

    def __len__(self) -> int:
        return len(self._shared) + sum(len(quota.queue) for quota in self._quotas.values())

    def _of(self, node: Node) -> EvictionQueue:
        if not self._quotas:
            return self._shared
        quota = self._quotas.get(node.root)
        return quota.queue if quota is not None else self._shared

    def push(self, node: Node) -> None:
        self._of(node).push(node)

    def discard(self, node: Node) -> None:
        if node.ticket:
            self._of(node).discard(node)

    def requeue_if_lower(self, node: Node) -> None:
        """Queue a leaf again whose key may have fallen below the one that it is queued under."""
        if node.ticket:
            self._of(node).requeue_if_lower(node)

    def pop(self, root: Node | None = None) -> Node | None:
        """Remove and return the leaf that should go first; of one namespace, if its root is given."""
        if root is not None:
            quota = self._quotas.get(root)
            return quota.queue.pop() if quota is not None else None
        if not self._quotas:
            return self._shared.pop()
        queues = [self._shared, *(quota.queue for quota in self._quotas.values())]
        heads = [(head[:-1], queue) for queue in queues if (head := queue.peek()) is not None]
        return min(heads, key=lambda head: head[0])[1].pop() if heads else None

    # Quotas

    @property
    def limits(self) -> dict[Namespace, int]:
        """Blocks by namespace."""
        return dict(self._limits)

    def set_limit(self, namespace: Namespace, limit: int | None, root: Node | None, nodes: list[Node]) -> None:
        """Limit a namespace to `limit` blocks, None for no limit. `root` and `nodes` are its tree, if it has one."""
        leaves = [node for node in nodes if node.ticket]
        for node in leaves:
            self.discard(node)
        if limit is None:
            self._limits.pop(namespace, None)
        else:
            self._limits[namespace] = limit
        if root is not None:
            self._quotas.pop(root, None)
            self.planted(root, namespace)
            for node in nodes:
                self.held(node, len(node.blocks))
        for node in leaves:
            self.push(node)

    def planted(self, root: Node, namespace: Namespace) -> None:
        if namespace in self._limits:
            self._quotas[root] = _Quota(EvictionQueue(self._policy, self._tickets), self._limits[namespace])

    def uprooted(self, root: Node) -> None:
        self._quotas.pop(root, None)

    def held(self, node: Node, blocks: int) -> None:
        """`node` holds so many blocks more (or fewer)."""
        if self._quotas:
            quota = self._quotas.get(node.root)
            if quota is not None:
                quota.held += blocks

    def excess(self, root: Node, blocks: int) -> int:
        """Return by how many blocks a namespace would pass its limit if it took `blocks` more."""
        quota = self._quotas.get(root)
        return max(0, quota.held + blocks - quota.limit) if quota is not None else 0
