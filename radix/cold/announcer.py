"""Events about blocks that lie behind the device, for those who index them: what can be found there, and what cannot.

A block goes by the same hash wherever it lies. Tiers of one medium are one place: a block that leaves one of two is
still there. A scope whose namespace nobody has used yet is passed over, since its salt is not known: blocks from before
a restart are told when somebody first asks for their namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import numpy as np

from radix.block_events import BlockEvent, BlockRemoved, BlockStored, Tier
from radix.cold.digests import TOKEN_BYTES, PathHash, scope_of
from radix.cold.entry import Entry
from radix.cold.index import ColdIndex
from radix.namespace import Namespace


class Announcer:
    """Watches an index. For its thread.

    Args:
        places: by the number of a tier, what its medium is called in events.
        namespaces: those that were used so far, in order; it grows.
    """

    def __init__(self, index: ColdIndex, places: Mapping[int, Tier], namespaces: dict[Namespace, None]) -> None:
        self._index = index
        self._places = dict(places)
        self._namespaces = namespaces
        self._known: dict[bytes, Namespace] = {}
        self._events: list[BlockEvent] = []
        index.watcher = self._changed

    def take(self) -> list[BlockEvent]:
        """Return the events since the last call, in order."""
        for namespace in islice(reversed(self._namespaces), len(self._namespaces) - len(self._known)):
            scope = scope_of(namespace)
            self._known[scope] = namespace
            self._events += self._all(namespace, scope)
        events, self._events = self._events, []
        return events

    def snapshot(self) -> list[BlockStored]:
        """Return what would rebuild all that was told."""
        return [event for scope, namespace in self._known.items() for event in self._all(namespace, scope)]

    def _all(self, namespace: Namespace, scope: bytes) -> list[BlockStored]:
        return [
            self._stored(entry, namespace, place)
            for entry in self._index.of_scope(scope)
            if self._whole(entry)
            for place in dict.fromkeys(p for t, p in self._places.items() if entry.is_ready(t))
        ]

    def _changed(self, entry: Entry, tier: int) -> None:
        """A tier has an entry, or has it no more."""
        namespace, place = self._known.get(entry.scope), self._places[tier]
        elsewhere = any(p == place and t != tier and entry.is_ready(t) for t, p in self._places.items())
        if namespace is None or elsewhere or not self._whole(entry):
            return
        if entry.is_ready(tier):
            self._events.append(self._stored(entry, namespace, place))
        else:
            own = PathHash(entry.scope, entry.parent)
            own.add(entry.tokens)
            self._events.append(BlockRemoved(namespace, (own.block_hash,), place))

    def _whole(self, entry: Entry) -> bool:
        return len(entry.tokens) == self._index.block_size * TOKEN_BYTES

    def _stored(self, entry: Entry, namespace: Namespace, place: Tier) -> BlockStored:
        path = PathHash(entry.scope, entry.parent)
        parent = None if path.empty else path.block_hash
        path.add(entry.tokens)
        tokens = np.frombuffer(entry.tokens, dtype="<i4").astype(np.int32)
        return BlockStored(namespace, (path.block_hash,), parent, tokens, self._index.block_size, place)
