"""The rules that never bend, one test each. The property test holds them at random; these say what they mean."""

from __future__ import annotations

import numpy as np
import pytest

from radix import (
    InvalidArgument,
    InvalidTokens,
    Namespace,
    OutOfBlocks,
    PrefixStore,
    RadixError,
    SequenceClosed,
)
from tests.radix.store_writing import NS, cache, write


def shape(store: PrefixStore) -> list[str]:
    return [str(node) for node in store.nodes()]


def test_rule_1_lookups_do_not_change_the_tree() -> None:
    store = PrefixStore(16, 4)
    cache(store, [1, 2, 3, 4, 5, 6, 7])
    before, stats = shape(store), store.stats()
    assert store.match([1, 2, 3, 9], NS) == 3
    assert store.match([9, 9], Namespace("other")) == 0
    assert shape(store) == before
    assert store.stats() == stats


def test_rule_2_a_sequence_writes_only_blocks_that_it_allocated() -> None:
    store = PrefixStore(16, 4)
    writer = write(store, [1, 2, 3, 4, 5, 6])
    seq = store.open([1, 2, 3, 4, 5, 6, 7, 8], NS)
    (copy,) = store.reserve(seq, 2)
    assert copy.tokens == 2
    assert copy.src == writer.table[1]
    assert seq.table.tolist() == [writer.table[0], copy.dst]
    assert copy.dst not in writer.table


def test_rule_2_forks_do_not_write_over_each_other() -> None:
    store = PrefixStore(16, 4)
    parent = write(store, [1, 2, 3, 4, 5])
    child = store.fork(parent)
    store.reserve(parent, 1)
    (copy,) = store.reserve(child, 1)
    assert child.table[1] != parent.table[1] == copy.src


def test_rule_3_only_committed_kv_can_be_found() -> None:
    store = PrefixStore(16, 4)
    seq = store.open([1, 2, 3, 4, 5], NS)
    store.reserve(seq, 5)
    assert store.match([1, 2, 3, 4, 5], NS) == 0
    store.commit(seq, [1, 2])
    assert store.match([1, 2, 3, 4, 5], NS) == 2
    store.close(seq)
    assert store.match([1, 2, 3, 4, 5], NS) == 2


def test_rule_3_a_flushed_sequence_publishes_nothing_more() -> None:
    store = PrefixStore(16, 4)
    seq = write(store, [1, 2, 3])
    store.flush(NS)
    store.reserve(seq, 2)
    store.commit(seq, [4, 5])
    assert store.match([1, 2, 3, 4, 5], NS) == 0
    store.close(seq)
    assert store.stats().free_blocks == 16


def test_rule_4_the_last_prompt_token_is_always_computed() -> None:
    store = PrefixStore(16, 4)
    cache(store, [1, 2, 3, 4, 5, 6, 7, 8])
    for n in range(1, 9):
        seq = store.open(list(range(1, n + 1)), NS)
        assert seq.matched == n - 1
        store.close(seq)


def test_rule_5_free_and_held_are_all_there_is() -> None:
    store = PrefixStore(8, 4)
    a = write(store, [1, 2, 3, 4, 5])
    b = store.open([1, 2, 3, 4, 9, 9], NS)
    store.reserve(b, 2)
    stats = store.stats()
    assert (stats.free_blocks, stats.active_blocks, stats.cached_blocks) == (5, 3, 0)
    store.close(a)
    store.close(a)
    store.close(b)
    stats = store.stats()
    assert (stats.free_blocks, stats.active_blocks, stats.cached_blocks) == (6, 0, 2)
    assert store.evict(8) == 2
    assert store.stats().free_blocks == 8


@pytest.mark.parametrize("cached", [1, 4, 5, 7, 13])
def test_rule_6_a_request_that_fits_alone_runs(cached: int) -> None:
    """Whatever lies in the cache, and however the request's own prefix ends inside a block."""
    store = PrefixStore(4, 4)
    cache(store, list(range(cached)))
    cache(store, [0, 77, 78])
    tokens = [*range(cached), *range(50, 66 - cached)]
    seq = store.open(tokens, NS)
    try:
        store.reserve(seq, 16 - seq.length)
    except OutOfBlocks:
        assert store.drop_partial(seq) > 0
        store.reserve(seq, 16 - seq.length)
    store.commit(seq, tokens[seq.length :])
    assert store.match(tokens, NS) == 16
    store.check()


def test_rule_7_namespaces_never_share() -> None:
    store = PrefixStore(64, 4)
    names = [
        Namespace("w"),
        Namespace("w2"),
        Namespace("w", salt="x"),
        Namespace("w", adapter="x"),
        Namespace("w", salt=""),
        Namespace("wx"),
        Namespace("w", salt="x", adapter="x"),
    ]
    for name in names:
        assert store.match([1, 2, 3], name) == 0
        cache(store, [1, 2, 3], name)
    assert store.stats().namespaces == len(names)
    assert store.namespaces == names
    assert [[node.namespace for node in store.nodes(name)] for name in names] == [[name] for name in names]
    store.flush(names[2])
    assert store.namespaces == [*names[:2], *names[3:]]
    assert list(store.nodes(names[2])) == []


def test_rule_8_bad_input_raises_a_named_error_and_changes_nothing() -> None:
    store = PrefixStore(4, 4)
    seq = write(store, [1, 2, 3])
    before, stats = shape(store), store.stats()
    with pytest.raises(InvalidTokens, match="-1"):
        store.open([-1])
    with pytest.raises(InvalidTokens, match="2147483648"):
        store.match([2**31])
    with pytest.raises(InvalidTokens, match="float"):
        store.open([1.5])
    with pytest.raises(InvalidTokens, match="2 dimensions"):
        store.open([[1]])
    with pytest.raises(InvalidArgument, match="empty"):
        store.open([])
    with pytest.raises(InvalidArgument, match="n is -1"):
        store.reserve(seq, -1)
    with pytest.raises(InvalidArgument, match="1 are reserved"):
        store.commit(seq, [4, 5])
    with pytest.raises(OutOfBlocks, match="4 blocks needed, 3 of 4"):
        store.reserve(seq, 14)
    assert (shape(store), store.stats()) == (before, stats)
    store.close(seq)
    for use in (lambda: store.reserve(seq, 1), lambda: store.commit(seq, [4]), lambda: store.fork(seq)):
        with pytest.raises(SequenceClosed):
            use()
    for bad in ({"num_blocks": 0, "block_size": 4}, {"num_blocks": 4, "block_size": 0}):
        with pytest.raises(InvalidArgument):
            PrefixStore(**bad)
    with pytest.raises(InvalidArgument, match=r"known policies are .*lru"):
        PrefixStore(4, 4, eviction="coin")
    assert issubclass(InvalidTokens, RadixError)


def test_token_arrays_of_any_integer_kind_are_taken() -> None:
    store = PrefixStore(4, 4)
    cache(store, [1, 2, 3, 4])
    for kind in (np.int8, np.uint16, np.int32, np.int64, np.uint64):
        assert store.match(np.array([1, 2, 3, 9], dtype=kind), NS) == 3
    assert store.match(np.arange(1, 9, dtype=np.int32)[::2], NS) == 1
