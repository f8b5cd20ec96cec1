"""What runs leave behind is written to disk too while the pool still holds it: a crash forgets the pool.

In slices, between steps, for as long as it takes. Between two slices nothing is held: what is evicted meanwhile goes to
a tier by itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from radix import Namespace, PrefixStore
from radix.cold import ColdIndex, Demotion, scope_of
from radix.cold.digests import TOKEN_BYTES, PathHash, token_bytes
from radix.tokens import Ints, common_prefix

# Prefixes that wait, and their tokens together; the oldest are given up for a new one.
_PATHS = 256
_TOKENS = 2**22
# Blocks that are looked at in a turn, most of which may be there.
_LOOKED_AT = 1024


@dataclass(eq=False)
class _Path:
    """A prefix, and how many of its blocks were looked at. `parent` is the digest before the next."""

    tokens: Ints
    namespace: Namespace
    scope: bytes
    hash: PathHash
    parent: bytes
    looked_at: int = 0


class Backup:
    """Prefixes that wait to be written to the tier `tier` of an index."""

    def __init__(self, index: ColdIndex, tier: int) -> None:
        self._index = index
        self._tier = tier
        self._paths: deque[_Path] = deque()

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def _tokens(self) -> int:
        return sum(len(path.tokens) for path in self._paths)

    def add(self, tokens: Ints, namespace: Namespace) -> None:
        """A run left these tokens in the tree."""
        whole = len(tokens) // self._index.block_size * self._index.block_size
        if not whole:
            return
        tokens = tokens[:whole].copy()
        # A turn of a conversation takes the place of the turns before it.
        for path in list(self._paths):
            if path.namespace == namespace and common_prefix(path.tokens, tokens) == len(path.tokens):
                self._paths.remove(path)
        while self._paths and (len(self._paths) == _PATHS or self._tokens + whole > _TOKENS):
            self._paths.popleft()
        scope = scope_of(namespace)
        start = PathHash(scope)
        self._paths.append(_Path(tokens, namespace, scope, start, start.add(b"")))

    def clear(self) -> None:
        self._paths.clear()

    def take(self, store: PrefixStore, limit: int) -> list[Demotion]:
        """Return the next copies, at most `limit`, whose blocks are on loan for them."""
        found: list[Demotion] = []
        looks = _LOOKED_AT
        while self._paths and len(found) < limit and looks > 0:
            path = self._paths[0]
            blocks = store.blocks_of(path.tokens, path.namespace)
            # It may be shorter than it was: what was evicted meanwhile has gone down.
            upto = min(len(blocks), path.looked_at + looks)
            looks -= max(0, upto - path.looked_at)
            if self._slice(path, blocks[:upto], found, limit) and upto == len(blocks):
                self._paths.popleft()
        if found:
            assert store.demoter is not None
            store.demoter.lend(np.array([demotion.block for demotion in found], dtype=np.int32))
        return found

    def _slice(self, path: _Path, blocks: Ints, found: list[Demotion], limit: int) -> bool:
        """Look at the path's blocks as far as `blocks` goes; False where `limit` was reached before."""
        size = self._index.block_size
        begin = path.looked_at * size
        raw = token_bytes(path.tokens[begin : len(blocks) * size])
        step = size * TOKEN_BYTES
        for i, block in enumerate(blocks[path.looked_at :].tolist()):
            tokens = raw[i * step : (i + 1) * step]
            if self._index.held(path.parent, tokens, self._tier) is None:
                if len(found) == limit:
                    return False
                entry = self._index.store(path.parent, path.scope, tokens, tier=self._tier, spare=True)
                if entry is not None:
                    found.append(Demotion(entry, block, self._tier, spare=True))
            path.parent = path.hash.add(tokens)
            path.looked_at += 1
        return True
