"""Siblings of the cold index are found as by looking at each of them, without doing so."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from radix import Namespace
from radix.cold import ColdIndex, ColdTier, Entry, scope_of, siblings
from radix.cold.digests import PathHash, token_bytes


def block(random: Random, alphabet: int = 2) -> bytes:
    # Ids above 255 too: the order of bytes is not the order of ids.
    ids = [random.choice([1, 256, 70_000, 7][:alphabet]) for _ in range(random.randint(1, 5))]
    return token_bytes(np.array(ids, dtype=np.int32))


def shared(a: bytes, b: bytes) -> int:
    pairs = zip(np.frombuffer(a, "<i4"), np.frombuffer(b, "<i4"), strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)) // 4)


@pytest.mark.parametrize("seed", range(40))
def test_they_are_found_as_by_looking_at_each(seed: int) -> None:
    random = Random(seed)
    kept: list[Entry] = []
    plain: list[Entry] = []
    for _ in range(120):
        if plain and random.random() < 0.25:
            gone = plain.pop(random.randrange(len(plain)))
            siblings.remove(kept, gone)
        else:
            entry = Entry(b"", b"", block(random, alphabet=2 + seed % 3), 1)
            entry.ready = int(random.random() < 0.8)
            siblings.add(kept, entry)
            plain.append(entry)
        assert sorted(map(id, kept)) == sorted(map(id, plain))
        asked = block(random, alphabet=2 + seed % 3)
        most = max((shared(e.tokens, asked) for e in plain if e.ready), default=0)
        found, length = siblings.most_alike(kept, asked)
        assert length == most
        assert (found is None) == (most == 0)
        assert found is None or (found.ready and shared(found.tokens, asked) == most)
        longer = list(siblings.extensions(kept, asked))
        assert set(longer) == {e for e in plain if e.tokens.startswith(asked)}
        whole = [e.tokens == asked for e in longer]
        assert whole == sorted(whole, reverse=True)
        shorter = {e for e in plain if asked.startswith(e.tokens) and len(e.tokens) < len(asked)}
        assert set(siblings.beginnings(kept, asked)) == shorter


def test_of_many_sessions_behind_one_prompt_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    plain = siblings.shared_tokens

    def counted(a: bytes, b: bytes) -> int:
        nonlocal looked
        looked += 1
        return plain(a, b)

    monkeypatch.setattr(siblings, "shared_tokens", counted)
    namespace = Namespace("w")
    scope, size, sessions = scope_of(namespace), 4, 3_000
    index = ColdIndex(size, [ColdTier("host", sessions)])
    blocks = np.random.default_rng(0).integers(0, 2**20, (sessions, size), dtype=np.int32)
    root = PathHash(scope).digest
    for tokens in blocks:
        entry = index.store(root, scope, token_bytes(tokens), tier=0)
        assert entry is not None
        index.landed(entry, 0)
    assert looked <= 2 * sessions
    looked = 0
    [hit] = index.lookup(blocks[1234], namespace, 0)
    assert hit.entry.tokens == token_bytes(blocks[1234])
    assert looked <= 2
