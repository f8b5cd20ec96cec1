"""What a namespace may take, of the pool and of what lies behind it."""

from __future__ import annotations

from radix import Namespace, PrefixStore


def set_quota(store: PrefixStore, namespace: Namespace, share: float | None) -> None:
    """Let a namespace take at most this share of the pool and of every tier; None lifts the limit.

    On the engine's thread. Raises radix.InvalidArgument.
    """
    store.retention.set_quota(namespace, share)
    if store.demoter is not None:
        store.demoter.set_quota(namespace, share)
