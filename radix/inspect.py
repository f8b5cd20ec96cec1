"""What the runtimes told Redis, read back: registrations, pools and trees."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import redis

from radix.metadata_client import living_runtimes
from radix.metadata_schema import PREFIX, NodeRecord, RuntimeKeys


class RuntimeNotFound(LookupError):
    """No runtime of that id has a running lease in this Redis."""


class NamespaceNotFound(LookupError):
    """No node of the runtimes shown is in that namespace."""


@dataclass(frozen=True)
class RuntimeView:
    """One runtime as Redis had it at one moment.

    Attributes:
        registration: fields of the registration hash.
        stats: fields of the stats hash.
        sessions: how many sessions are open.
        lease_left_s: seconds until all of this expires if the runtime is dead.
        read_at: Unix time of this look, seconds.
    """

    runtime_id: str
    registration: dict[str, str]
    stats: dict[str, str]
    sessions: int
    nodes: tuple[NodeRecord, ...]
    lease_left_s: float
    read_at: float

    def number(self, name: str) -> float:
        """A field of the stats or the registration as a number, 0 where it is missing or no number."""
        try:
            return float(self.stats.get(name, self.registration.get(name, 0)))
        except ValueError:
            return 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; the nodes as a flat list."""
        return {
            "runtime_id": self.runtime_id,
            "lease_left_s": round(self.lease_left_s, 3),
            "read_at": round(self.read_at, 3),
            "registration": self.registration,
            "stats": self.stats,
            "sessions": self.sessions,
            "nodes": [{**asdict(node), "namespace": node.namespace} for node in self.nodes],
        }


def read_runtimes(
    client: redis.Redis, runtime_id: str | None = None, namespace: str | None = None
) -> list[RuntimeView]:
    """The runtimes that are alive, or one of them, each read in a single transaction.

    Args:
        namespace: keep the nodes of this one only, by its label ("default", "salt=x", …).

    Raises:
        RuntimeNotFound, NamespaceNotFound, BadRuntimeId, redis.RedisError.
    """
    alive = living_runtimes(client)
    if runtime_id is not None:
        RuntimeKeys.of(runtime_id)
        if runtime_id not in alive:
            others = f"alive are: {', '.join(alive)}" if alive else "none is"
            raise RuntimeNotFound(f"no runtime called {runtime_id} is alive in this Redis; {others}")
        alive = [runtime_id]
    views = [view for view in (_read(client, name) for name in alive) if view is not None]
    if namespace is None:
        return views
    chosen = [_only(view, namespace) for view in views]
    if views and not any(view.nodes for view in chosen):
        known = sorted({node.namespace for view in views for node in view.nodes})
        raise NamespaceNotFound(f"no node is in namespace {namespace!r}; there are: {', '.join(known) or 'no nodes'}")
    return chosen


def _read(client: redis.Redis, runtime_id: str) -> RuntimeView | None:
    keys = RuntimeKeys.of(runtime_id)
    with client.pipeline() as pipe:
        pipe.hgetall(keys.registration)
        pipe.pttl(keys.registration)
        pipe.hgetall(keys.stats)
        pipe.hlen(keys.sessions)
        pipe.hgetall(keys.nodes)
        registration, left_ms, stats, sessions, raw = pipe.execute()
    if not registration:
        return None
    nodes = []
    for node_id, text in raw.items():
        try:
            nodes.append(NodeRecord.from_json(node_id, text))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"field {node_id} of {keys.nodes} is no node of schema {PREFIX.rstrip(':')}: {error!r}"
            ) from None
    nodes.sort(key=lambda node: node.id)
    return RuntimeView(runtime_id, registration, stats, sessions, tuple(nodes), max(0, left_ms) / 1000, time.time())


def _only(view: RuntimeView, namespace: str) -> RuntimeView:
    return replace(view, nodes=tuple(node for node in view.nodes if node.namespace == namespace))


@dataclass
class Branch:
    """A node with what is below it, as it is drawn.

    Attributes:
        below_nodes: nodes of the whole subtree, this one left out.
        below_tokens: their tokens.
    """

    node: NodeRecord
    children: list[Branch] = field(default_factory=list)
    below_nodes: int = 0
    below_tokens: int = 0


def build_forest(nodes: Iterable[NodeRecord]) -> dict[str, list[Branch]]:
    """Namespace label -> its topmost branches; siblings with the most tokens first.

    A node whose parent is missing stands on top, so that nothing is hidden.
    """
    branches = {node.id: Branch(node) for node in nodes}
    tops: dict[str, list[Branch]] = {}
    for branch in branches.values():
        parent = branches.get(branch.node.parent)
        if parent is None:
            tops.setdefault(branch.node.namespace, []).append(branch)
        else:
            parent.children.append(branch)
    for siblings in tops.values():
        _sum_up(siblings)
    return dict(sorted(tops.items(), key=lambda item: (item[0] != "default", item[0])))


def _sum_up(tops: list[Branch]) -> None:
    # Without recursion: a tree may be deeper than Python's stack.
    order: list[Branch] = []
    stack = list(tops)
    while stack:
        branch = stack.pop()
        order.append(branch)
        stack.extend(branch.children)
    for branch in reversed(order):
        branch.below_nodes = sum(1 + child.below_nodes for child in branch.children)
        branch.below_tokens = sum(child.node.tokens + child.below_tokens for child in branch.children)
        branch.children.sort(key=_weight)
    tops.sort(key=_weight)


def _weight(branch: Branch) -> tuple[int, int]:
    return (-(branch.node.tokens + branch.below_tokens), branch.node.id)
