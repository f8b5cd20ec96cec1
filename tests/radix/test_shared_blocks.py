"""What open sequences save by sharing blocks, as the store tells it."""

from __future__ import annotations

import numpy as np

from radix import PrefixStore


def test_blocks_of_forks_are_counted_once_and_told_as_saved() -> None:
    store = PrefixStore(32, 4)
    tokens = np.arange(12, dtype=np.int32)
    first = store.open(tokens)
    store.reserve(first, 12)
    store.commit(first, tokens)
    assert store.stats().shared_blocks == 0
    held = store.stats().active_blocks
    child = store.fork(first)
    assert store.stats().active_blocks == held
    assert store.stats().shared_blocks == held
    other = store.fork(first)
    assert store.stats().shared_blocks == 2 * held
    store.close(child)
    store.close(first)
    assert store.stats().shared_blocks == 0
    store.close(other)
