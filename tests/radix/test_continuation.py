"""What the tree holds below an open sequence: read for drafts, without a trace and within the namespace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix import InvalidArgument, Namespace, PrefixStore, SequenceClosed
from tests.radix.store_writing import NS, cache, write

Texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=8)


@settings(deadline=None)
@given(
    texts=Texts, prompt=st.lists(st.integers(0, 2), min_size=1, max_size=12), ahead=st.integers(0, 3), data=st.data()
)
def test_it_is_a_cached_text_that_goes_on_from_here(
    texts: list[list[int]], prompt: list[int], ahead: int, data: st.DataObject
) -> None:
    store = PrefixStore(256, 4)
    for text in texts:
        cache(store, text)
    seq = store.open([*prompt, 9], NS)
    base = prompt[: seq.length]
    after = data.draw(st.lists(st.integers(0, 2), min_size=ahead, max_size=ahead))
    n = data.draw(st.integers(0, 12))
    before = str((store.stats(), list(store.nodes())))
    found = store.continuation(seq, after, n).tolist()
    assert str((store.stats(), list(store.nodes()))) == before
    here = base + after
    longest = max((len(t) - len(here) for t in texts if t[: len(here)] == here), default=0)
    assert (len(found) > 0) == (min(n, longest) > 0)
    assert not found or any(t[: len(here) + len(found)] == here + found for t in texts)
    # It ends because enough was found or because no text goes on from there.
    there = here + found
    assert len(found) == n or not found or all(t[: len(there)] != there or len(t) == len(there) for t in texts)
    store.close(seq)


def test_at_a_fork_it_follows_the_latest() -> None:
    now = [0.0]
    store = PrefixStore(64, 4, clock=lambda: now[0])
    for last, branch in enumerate(([1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 3, 4, 8])):
        now[0] = last
        cache(store, branch)
    seq = store.open([1, 2, 9], NS)
    assert store.continuation(seq, [], 9).tolist() == [3, 4, 8]
    assert store.continuation(seq, [3, 6], 9).tolist() == [7]
    now[0] = 9
    cache(store, [1, 2, 3, 6, 7])
    assert store.continuation(seq, [], 9).tolist() == [3, 6, 7]


def test_in_a_crowd_it_makes_no_guess() -> None:
    store = PrefixStore(256, 4)
    for i in range(40):
        cache(store, [1, 2, 10 + i, 5])
    seq = store.open([1, 2], NS)
    assert store.continuation(seq, [], 4).tolist() == [2]
    assert store.continuation(seq, [2, 17], 4).tolist() == [5]


def test_no_namespace_shows_what_another_wrote() -> None:
    """Not another tenant's, and not what the public tree holds past the public part."""
    store = PrefixStore(64, 4)
    alice, bob = Namespace("weights", salt="alice"), Namespace("weights", salt="bob")
    cache(store, [1, 2, 3, 4, 5, 6], alice)
    cache(store, [1, 2, 3, 7, 8, 9], NS)
    theirs = write(store, [1, 2, 3], bob, public_tokens=3)
    assert store.continuation(theirs, [], 4).tolist() == []
    assert store.continuation(theirs, [4], 4).tolist() == []
    assert store.continuation(theirs, [7], 4).tolist() == []
    ours = write(store, [1, 2, 3], alice, public_tokens=3)
    assert store.continuation(ours, [], 4).tolist() == [4, 5, 6]


def test_what_bypasses_the_cache_is_told_nothing() -> None:
    store = PrefixStore(64, 4)
    cache(store, [1, 2, 3, 4])
    seq = store.open([1, 2], NS, publish=False)
    store.reserve(seq, 2)
    store.commit(seq, [1, 2])
    assert store.continuation(seq, [], 4).tolist() == []


def test_after_a_flush_there_is_nothing() -> None:
    store = PrefixStore(64, 4)
    cache(store, [1, 2, 3, 4])
    seq = write(store, [1, 2])
    store.flush()
    assert store.continuation(seq, [], 4).tolist() == []


def test_bad_input_is_refused() -> None:
    store = PrefixStore(64, 4)
    seq = write(store, [1, 2])
    with pytest.raises(InvalidArgument, match="n is -1"):
        store.continuation(seq, [], -1)
    store.close(seq)
    with pytest.raises(SequenceClosed):
        store.continuation(seq, [], 1)


def test_what_is_returned_is_a_copy() -> None:
    store = PrefixStore(64, 4)
    cache(store, [1, 2, 3, 4])
    seq = write(store, [1, 2])
    store.continuation(seq, [], 2)[:] = 0
    assert store.match(np.array([1, 2, 3, 4]), NS) == 4
