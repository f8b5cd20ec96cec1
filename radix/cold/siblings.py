"""Entries behind one prefix, sorted by their tokens as bytes, so that none of them has to be looked at in turn.

Thousands of sessions part behind one system prompt, and their first blocks are siblings. In sorted order what shares
most with some tokens is a neighbour of the place where these would stand.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

import numpy as np

from radix.cold.digests import TOKEN_BYTES
from radix.cold.entry import Entry
from radix.tokens import common_prefix


def _tokens(entry: Entry) -> bytes:
    return entry.tokens


def add(siblings: list[Entry], entry: Entry) -> None:
    insort(siblings, entry, key=_tokens)


def remove(siblings: list[Entry], entry: Entry) -> None:
    at = bisect_left(siblings, entry.tokens, key=_tokens)
    # Two slots of a file may hold the same block: equal tokens are told apart by identity.
    while siblings[at] is not entry:
        at += 1
    del siblings[at]


def most_alike(siblings: list[Entry], tokens: bytes) -> tuple[Entry | None, int]:
    """Return what can be read and shares most leading tokens with `tokens`, and how many; None where nothing does."""
    at = bisect_left(siblings, tokens, key=_tokens)
    after = _first_ready(siblings[i] for i in range(at, len(siblings)))
    before = _first_ready(siblings[i] for i in range(at - 1, -1, -1))
    best, longest = None, 0
    for entry in (after, before):
        shared = shared_tokens(entry.tokens, tokens) if entry is not None else 0
        if shared > longest:
            best, longest = entry, shared
    return best, longest


def _first_ready(entries: Iterable[Entry]) -> Entry | None:
    return next((entry for entry in entries if entry.ready), None)


def extensions(siblings: list[Entry], tokens: bytes) -> Iterator[Entry]:
    """Yield those that begin with `tokens`, first those that hold nothing else."""
    for i in range(bisect_left(siblings, tokens, key=_tokens), len(siblings)):
        if not siblings[i].tokens.startswith(tokens):
            return
        yield siblings[i]


def beginnings(siblings: list[Entry], tokens: bytes) -> list[Entry]:
    """Return those with which `tokens` begins, and that are shorter."""
    found = []
    at = bisect_left(siblings, tokens, key=_tokens)
    while at:
        entry = siblings[at - 1]
        shared = shared_tokens(entry.tokens, tokens) * TOKEN_BYTES
        if shared == len(entry.tokens):
            found.append(entry)
            at -= 1
        elif shared:
            # All between a beginning and `tokens` share it: a beginning that is left is one of what was shared here.
            at = bisect_right(siblings, tokens[:shared], hi=at - 1, key=_tokens)
        else:
            break
    return found


def shared_tokens(a: bytes, b: bytes) -> int:
    """Return how many leading tokens two blocks share."""
    if b.startswith(a):
        return len(a) // TOKEN_BYTES
    n = min(len(a), len(b))
    return common_prefix(np.frombuffer(a[:n], dtype="<i4"), np.frombuffer(b[:n], dtype="<i4"))
