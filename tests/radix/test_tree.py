"""The tree's shape and what eviction takes from it."""

from __future__ import annotations

import numpy as np
import pytest

from radix import Namespace, PrefixStore
from tests.radix.store_writing import NS, cache, write


def test_depth_is_branch_points_not_turns() -> None:
    store = PrefixStore(4096, 16)
    history: list[int] = []
    for turn in range(500):
        history += [turn % 7] * 11
        cache(store, history)
    assert store.stats().nodes == 1
    assert store.stats().max_depth == 1
    assert store.match(history, NS) == 5500


def test_a_turn_in_a_long_session_holds_no_block_twice() -> None:
    """The tail block of each turn is replaced by the writer's copy, so that 100 turns take no more room than one."""
    store = PrefixStore(4096, 16)
    history: list[int] = []
    for turn in range(100):
        history += [turn] * 5
        cache(store, history)
    assert store.stats().cached_blocks == -(-500 // 16)


def test_only_children_are_merged() -> None:
    store = PrefixStore(64, 4)
    cache(store, [1, 2, 3, 4, 5, 6, 7])
    cache(store, [1, 2, 3, 8, 9])
    assert store.stats().nodes == 3
    # The older branch goes, its sibling becomes part of the trunk, and one copy of the block that both touch is enough.
    assert store.evict(2) == 2
    store.check()
    assert store.stats().nodes == 1
    assert store.match([1, 2, 3, 8, 9], NS) == 5


def test_asking_for_one_block_frees_one_block() -> None:
    store = PrefixStore(64, 4)
    cache(store, list(range(40)))
    for left in (36, 32, 28):
        assert store.evict(1) == 1
        assert store.match(list(range(40)), NS) == left


def test_a_split_under_an_open_sequence_protects_what_it_reads() -> None:
    store = PrefixStore(16, 4)
    reader = write(store, list(range(10)))
    cache(store, [0, 1, 2, 3, 4, 5, 60, 61, 62])
    cache(store, [0, 1, 70])
    store.evict(16)
    store.check()
    assert store.match(list(range(10)), NS) == 10
    store.reserve(reader, 6)
    store.commit(reader, list(range(10, 16)))
    assert store.match(list(range(16)), NS) == 16
    store.close(reader)
    assert store.evict(16) == 4


def test_eviction_trims_no_further_than_an_open_sequence_reads() -> None:
    store = PrefixStore(16, 4)
    cache(store, list(range(20)))
    reader = store.open([*range(10), 99], NS)
    assert store.evict(16) == 2
    assert store.match(list(range(20)), NS) == 12
    store.close(reader)
    assert store.evict(16) == 3


def test_least_recently_used_goes_first() -> None:
    """Against a list in order of use, over random uses of single-block prefixes."""
    rng = np.random.default_rng(0)
    store = PrefixStore(64, 4)
    order: list[int] = []
    for prefix in rng.integers(0, 40, 400).tolist():
        cache(store, [prefix] * 4)
        if prefix in order:
            order.remove(prefix)
        order.append(prefix)
    while order:
        assert store.evict(1) == 1
        gone = order.pop(0)
        assert store.match([gone] * 4, NS) == 0
        assert all(store.match([kept] * 4, NS) == 4 for kept in order)


def test_a_refreshed_prefix_outlives_an_older_one() -> None:
    store = PrefixStore(8, 4)
    cache(store, [1, 1, 1, 1])
    cache(store, [2, 2, 2, 2])
    store.refresh([1, 1, 1, 1, 5], NS)
    store.evict(1)
    assert store.match([1, 1, 1, 1], NS) == 4
    assert store.match([2, 2, 2, 2], NS) == 0


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_duplicates_computed_side_by_side_are_kept_once(block_size: int) -> None:
    store = PrefixStore(256, block_size)
    tokens = list(range(32))
    twins = [store.open(tokens, NS) for _ in range(4)]
    for seq in twins:
        store.reserve(seq, 32)
        store.commit(seq, tokens)
    store.check()
    assert store.stats().active_blocks == 32 // block_size
    for seq in twins:
        store.close(seq)


def test_an_emptied_namespace_leaves_no_root_behind() -> None:
    store = PrefixStore(16, 4)
    for i in range(50):
        name = Namespace("w", salt=str(i))
        seq = store.open([1, 2], name)
        store.close(seq)
    assert store.stats().namespaces == 0
    cache(store, [1, 2, 3])
    store.evict(16)
    assert store.stats().namespaces == 0
