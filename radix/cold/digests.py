"""Names of blocks by content: a digest over everything that comes before a block.

All blocks at one place of the tree's paths share their digest and differ in their tokens. A digest is 128 bits, keyed
by the namespace, whose parts are typed: the hash by which KV events name the block before, and 64 bits of BLAKE2b that
are chained through whole digests.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

from radix.block_events import namespace_digest, tokens_of_path
from radix.namespace import Namespace
from radix.node import Node
from radix.observers import TreeObserver
from radix.tokens import Ints

TOKEN_BYTES = 4
_HALF = 8
# Paths whose digests are kept. Eviction comes back to a leaf once for each of its marks.
_PATHS_KEPT = 64


class PathHash:
    """The running digest of a path of blocks.

    Args:
        after: the digest to go on from; None begins a path.

    Attributes:
        digest: of all blocks so far, 16 bytes.
    """

    __slots__ = ("_event", "_own", "_root", "digest")

    def __init__(self, scope: bytes, after: bytes | None = None) -> None:
        self._event = blake2b(key=scope, digest_size=_HALF)
        self._own = blake2b(key=scope, digest_size=_HALF, person=b"path")
        self._root = bytes(_HALF) + self._own.digest()
        self.digest = self._root if after is None else after

    @property
    def empty(self) -> bool:
        return self.digest == self._root

    @property
    def block_hash(self) -> int:
        """The last block's name in KV events."""
        return int.from_bytes(self.digest[:_HALF], "big")

    def add(self, tokens: bytes) -> bytes:
        """Append a block's tokens (little-endian int32); return the digest of all so far."""
        if not tokens:
            return self.digest
        event, own = self._event.copy(), self._own.copy()
        if not self.empty:
            event.update(self.digest[:_HALF])
        event.update(tokens)
        own.update(self.digest)
        own.update(tokens)
        self.digest = event.digest() + own.digest()
        return self.digest

    def skip(self, tokens: bytes, step: int) -> bytes:
        """Append blocks of `step` bytes each; return the digest of all so far."""
        for start in range(0, len(tokens), step):
            self.add(tokens[start : start + step])
        return self.digest


def scope_of(namespace: Namespace) -> bytes:
    """Return what tells a namespace from every other, 32 bytes."""
    return namespace_digest(namespace)


def token_bytes(tokens: Ints) -> bytes:
    """Return tokens as little-endian int32."""
    return tokens.astype("<i4", copy=False).tobytes()


class PathDigests(TreeObserver):
    """Digests along the paths to the leaves that were trimmed last, so that trimming block by block hashes once."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        # For each node the digests before blocks 0, 1, … of its path, as far as they are known.
        self._known: OrderedDict[Node, list[bytes]] = OrderedDict()

    def before(self, node: Node, scope: bytes, first: int, last: int) -> list[bytes]:
        """Return what comes before each of the blocks `first` .. `last` - 1 of the path that ends in `node`."""
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = []
            if len(self._known) > _PATHS_KEPT:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(node)
        if len(known) < last:
            self._extend(known, node, scope, last)
        return known[first:last]

    def _extend(self, known: list[bytes], node: Node, scope: bytes, last: int) -> None:
        step = self._size * TOKEN_BYTES
        path = PathHash(scope, known[-1] if known else None)
        if not known:
            known.append(path.digest)
        tokens = token_bytes(tokens_of_path(node, (len(known) - 1) * self._size, (last - 1) * self._size))
        known += [path.add(tokens[start : start + step]) for start in range(0, len(tokens), step)]

    def _cut(self, node: Node, end: int) -> None:
        known = self._known.get(node)
        if known is not None:
            del known[end // self._size + 1 :]

    def stored(self, node: Node, pos: int) -> None:
        self._cut(node, pos)

    def split(self, node: Node, child: Node) -> None:
        self._cut(node, node.end)

    def trimming(self, node: Node, end: int) -> None:
        self._cut(node, end)

    def removed(self, node: Node) -> None:
        self._known.pop(node, None)

    def merged(self, node: Node, child: Node) -> None:
        self._known.pop(child, None)
