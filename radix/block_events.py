"""KV events: which full blocks the tree holds, as the chained hashes that routers index.

A block is named by a hash over everything before it, so that it means a path and not a place: splits and merges are no
events. Only blocks whose last slot is committed are announced.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from radix.namespace import Namespace
from radix.node import Node
from radix.observers import TreeObserver
from radix.tokens import Ints

Tier: TypeAlias = Literal["device", "host", "disk"]


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that can be found in a tier from now on, in order along one path.

    Attributes:
        block_hashes: unsigned 64-bit.
        parent_hash: of the block before the first; None at the beginning of a path.
        token_ids: int32[blocks * block_size].
    """

    namespace: Namespace
    block_hashes: tuple[int, ...]
    parent_hash: int | None
    token_ids: Ints
    block_size: int
    tier: Tier = "device"


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks that cannot be found in a tier any more, last first."""

    namespace: Namespace
    block_hashes: tuple[int, ...]
    tier: Tier = "device"


BlockEvent: TypeAlias = BlockStored | BlockRemoved


def block_hash(namespace: Namespace, parent: int | None, tokens: Ints) -> int:
    """Chain a block's tokens to its parent's hash: 64 bits of BLAKE2b, keyed by the namespace."""
    digest = hashlib.blake2b(digest_size=8, key=namespace_digest(namespace))
    if parent is not None:
        digest.update(parent.to_bytes(8, "big"))
    digest.update(tokens.astype("<i4").tobytes())
    return int.from_bytes(digest.digest(), "big")


@functools.lru_cache(maxsize=1024)
def namespace_digest(namespace: Namespace) -> bytes:
    """Return 32 bytes that tell a namespace from every other."""
    # Each part behind its presence and length: ("a", "bc") and ("ab", "c") must differ.
    parts = []
    for part in (namespace.fingerprint, namespace.salt, namespace.adapter):
        raw = b"" if part is None else part.encode()
        parts.append((b"\0" if part is None else b"\1") + len(raw).to_bytes(4, "big") + raw)
    return hashlib.blake2b(b"".join(parts), digest_size=32).digest()


class BlockEventLog(TreeObserver):
    """Turns what happens in the trees into events, in order."""

    def __init__(self, block_size: int, namespace_of: Callable[[Node], Namespace]) -> None:
        self._size = block_size
        self._namespace_of = namespace_of
        # For each node the hashes of the blocks that end in its run.
        self._hashes: dict[Node, list[int]] = {}
        self._events: list[BlockEvent] = []

    def take(self) -> list[BlockEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def snapshot(self, nodes: list[Node]) -> list[BlockStored]:
        """Return what would rebuild everything held by `nodes`, parents first."""
        stored = []
        for node in nodes:
            hashes = self._hashes.get(node)
            if hashes:
                stored.append(self._stored(node, hashes, len(hashes)))
        return stored

    def stored(self, node: Node, pos: int) -> None:
        first, last = pos // self._size, node.end // self._size
        if first >= last:
            return
        tokens = tokens_of_path(node, first * self._size, last * self._size)
        namespace = self._namespace_of(node)
        parent = self._last_hash(node)
        hashes = self._hashes.setdefault(node, [])
        for start in range(0, len(tokens), self._size):
            parent = block_hash(namespace, parent, tokens[start : start + self._size])
            hashes.append(parent)
        self._events.append(self._stored(node, hashes, last - first))

    def _stored(self, node: Node, hashes: list[int], n: int) -> BlockStored:
        last = node.end // self._size
        before = hashes[-n - 1] if len(hashes) > n else self._last_hash(node.parent)
        return BlockStored(
            self._namespace_of(node),
            tuple(hashes[-n:]),
            before,
            tokens_of_path(node, (last - n) * self._size, last * self._size),
            self._size,
        )

    def _last_hash(self, node: Node | None) -> int | None:
        while node is not None:
            hashes = self._hashes.get(node)
            if hashes:
                return hashes[-1]
            node = node.parent
        return None

    def split(self, node: Node, child: Node) -> None:
        hashes = self._hashes.pop(node, None)
        if hashes:
            kept = len(hashes) - (child.end // self._size - child.start // self._size)
            self._put(node, hashes[:kept])
            self._put(child, hashes[kept:])

    def merged(self, node: Node, child: Node) -> None:
        self._put(node, self._hashes.pop(node, []) + self._hashes.pop(child, []))

    def trimming(self, node: Node, end: int) -> None:
        hashes = self._hashes.get(node)
        gone = node.end // self._size - end // self._size
        if not hashes or not gone:
            return
        self._events.append(BlockRemoved(self._namespace_of(node), tuple(reversed(hashes[-gone:]))))
        # In place: a leaf may have thousands, and is trimmed one at a time.
        del hashes[-gone:]
        if not hashes:
            del self._hashes[node]

    def removed(self, node: Node) -> None:
        self._hashes.pop(node, None)

    def _put(self, node: Node, hashes: list[int]) -> None:
        if hashes:
            self._hashes[node] = hashes


def tokens_of_path(node: Node, start: int, end: int) -> Ints:
    """Return the tokens at positions `start` .. `end - 1` of the path that ends in `node`."""
    parts = []
    at: Node | None = node
    while at is not None and end > start:
        if at.start < end:
            parts.append(at.tokens.view[max(0, start - at.start) : end - at.start])
            end = at.start
        at = at.parent
    return np.concatenate(parts[::-1]) if parts else np.empty(0, dtype=np.int32)
